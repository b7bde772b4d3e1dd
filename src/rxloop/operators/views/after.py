"""The view of what follows a cursor."""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple, cast

from reactivex import Observable, abc

from rxloop.errors import ConfigurationError
from rxloop.operators.views._types import EventView
from rxloop.protocol.events import Event, GapEvent
from rxloop.stream.deltas import rest_after

_CURSOR = re.compile(r"(?P<task>[^/]*)/(?P<attempt>\d{1,18})\.(?P<seq>\d{1,18})\.(?P<sub>\d{1,18})", re.ASCII)
UNKNOWN = "/0.0.0"
"""The cursor of no run, for what is not a cursor."""


class Cursor(NamedTuple):
    """The parts of `event.cursor`."""

    task_id: str
    attempt: int
    seq: int
    sub: int


def read_cursor(text: str, *, strict: bool = True) -> Cursor:
    """Read a cursor.

    Args:
        text: `task_id/attempt.seq.sub`.
        strict: Refuse what is not a cursor; otherwise it counts as that of an unknown run.

    Raises:
        ConfigurationError: It is not a cursor.
    """
    match = _CURSOR.fullmatch(text)
    if match is not None:
        return Cursor(match["task"], int(match["attempt"]), int(match["seq"]), int(match["sub"]))
    if strict:
        raise ConfigurationError(f"{text!r} is not a cursor: it has the form task_id/attempt.seq.sub")
    return Cursor("", 0, 0, 0)


def is_behind(cursor: Cursor, end: Event) -> bool:
    """Tell whether a cursor lies before the last event of a run, or is not of that run: its reader lacks something."""
    return cursor.task_id != end.root_task_id or cursor[1:] < (end.attempt, end.seq, end.sub)


def gap_before(
    event: Event,
    reason: Literal["unknown-cursor", "lost-attempt", "trimmed", "log-went-back"],
    after: str | None,
    **fields: Any,
) -> GapEvent:
    """What a reader lacks that was at the cursor `after` and goes on with this event."""
    run = {"context_id": event.context_id, "task_id": event.root_task_id, "attempt": event.attempt}
    return GapEvent(reason=reason, after=after, **run, **fields)


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

    def operator(source: Observable[Event]) -> Observable[Event]:
        def subscribe(
            observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            first = True
            foreign = newer = False

            def on_next(event: Event) -> None:
                nonlocal first, foreign, newer
                if isinstance(event, GapEvent):
                    # A gap that ends before the cursor does not concern this reader.
                    if event.root_task_id != task_id or event.attempt != attempt or event.seq > place[0]:
                        observer.on_next(event)
                    return
                if first:
                    foreign = task_id != event.root_task_id
                if first and foreign:
                    observer.on_next(gap_before(event, "unknown-cursor", cursor))
                elif first and event.attempt > attempt and place < (event.seq - 1, 0):
                    observer.on_next(gap_before(event, "trimmed", cursor))
                elif not foreign and not newer and event.attempt > attempt and place > (event.seq - 1, 0):
                    observer.on_next(gap_before(event, "lost-attempt", cursor))
                first = False
                newer = newer or event.attempt > attempt
                if foreign or event.attempt > attempt:
                    observer.on_next(event)
                elif (rest := rest_after(event, seq, sub)) is not None:
                    observer.on_next(rest)

            return source.subscribe(on_next, observer.on_error, observer.on_completed, scheduler=scheduler)

        return Observable(subscribe)

    return cast("EventView", operator)
