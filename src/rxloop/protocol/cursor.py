"""Cursors of readers: places in the stream of a run."""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple

from rxloop.errors import ConfigurationError
from rxloop.protocol.events import Event, GapEvent

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
