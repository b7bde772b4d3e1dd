"""View that skips previously received events."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from rxloop.operators.views import EventView
from rxloop.operators.views.make_view import ViewOutput, make_view
from rxloop.protocol.events import Event, GapEvent
from rxloop.protocol.ids import make_gap, read_cursor
from rxloop.stream.deltas import trim_known


def after(cursor: str, *, strict: bool = True) -> EventView:
    """Skip the events that a reader already has.

    ::

        source                 --a(1.1)--b(1.2)--c(1.3)--|
        after("run/1.1.2")     ------------------c(1.3)--|

    If events after the cursor are missing, the view starts with a `gap` event. This happens if the cursor belongs to
    another run or an earlier attempt, or the events are no longer retained.

    Args:
        cursor: `event.cursor` of the last event that the reader has, in the form `task_id/attempt.seq.sub`.
        strict: Whether to reject an invalid cursor. If False, it is treated as the cursor of an unknown run.

    Returns:
        View of the later events.

    Raises:
        ConfigurationError: The cursor is invalid, and `strict` is True.
    """
    task_id, attempt, seq, sub = read_cursor(cursor, strict=strict)
    position = (seq, sub)

    def skip(out: ViewOutput[Event]) -> Callable[[Event], None]:
        emit = out.emit
        first = True
        foreign = newer = False

        def handle(event: Event) -> None:
            nonlocal first, foreign, newer
            if isinstance(event, GapEvent):
                # Events after the gap were already received.
                if event.root_task_id != task_id or event.attempt != attempt or event.seq > position[0]:
                    emit(event)
                return
            if first:
                foreign = task_id != event.root_task_id
            if first and foreign:
                emit(make_gap(event, "unknown-cursor", cursor))
            elif first and event.attempt > attempt and position < (event.seq - 1, 0):
                emit(make_gap(event, "trimmed", cursor))
            elif not foreign and not newer and event.attempt > attempt and position > (event.seq - 1, 0):
                emit(make_gap(event, "lost-attempt", cursor))
            first = False
            newer = newer or event.attempt > attempt
            if foreign or event.attempt > attempt:
                emit(event)
            elif (remaining := trim_known(event, seq, sub)) is not None:
                emit(remaining)

        return handle

    return cast("EventView", make_view(skip))
