"""The view of what follows a cursor."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from rxloop.operators.views import EventView
from rxloop.operators.views.make_view import ViewOutput, make_view
from rxloop.protocol.events import Event, GapEvent
from rxloop.protocol.ids import make_gap, read_cursor
from rxloop.stream.deltas import trim_known


def after(cursor: str, *, strict: bool = True) -> EventView:
    """Leave out what a reader already has.

    ::

        source                 --a(1.1)--b(1.2)--c(1.3)--|
        after("run/1.1.2")     ------------------c(1.3)--|

    If events after the cursor are missing, because it belongs to another run or an earlier attempt, or because they are
    no longer retained, a `gap` event comes first.

    Args:
        cursor: `event.cursor` of the last event that the reader has: `task_id/attempt.seq.sub`.
        strict: Refuse what is not a cursor; otherwise it counts as that of an unknown run.

    Raises:
        ConfigurationError: It is not a cursor.
    """
    task_id, attempt, seq, sub = read_cursor(cursor, strict=strict)
    place = (seq, sub)

    def skip(out: ViewOutput[Event]) -> Callable[[Event], None]:
        emit = out.emit
        first = True
        foreign = newer = False

        def take(event: Event) -> None:
            nonlocal first, foreign, newer
            if isinstance(event, GapEvent):
                # A gap that ends before the cursor does not concern this reader.
                if event.root_task_id != task_id or event.attempt != attempt or event.seq > place[0]:
                    emit(event)
                return
            if first:
                foreign = task_id != event.root_task_id
            if first and foreign:
                emit(make_gap(event, "unknown-cursor", cursor))
            elif first and event.attempt > attempt and place < (event.seq - 1, 0):
                emit(make_gap(event, "trimmed", cursor))
            elif not foreign and not newer and event.attempt > attempt and place > (event.seq - 1, 0):
                emit(make_gap(event, "lost-attempt", cursor))
            first = False
            newer = newer or event.attempt > attempt
            if foreign or event.attempt > attempt:
                emit(event)
            elif (rest := trim_known(event, seq, sub)) is not None:
                emit(rest)

        return take

    return cast("EventView", make_view(skip))
