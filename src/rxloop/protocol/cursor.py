"""Cursors, which mark positions in the event stream of a run."""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple

from rxloop.errors import ConfigurationError
from rxloop.protocol.events import Event, GapEvent

_CURSOR = re.compile(r"(?P<task>[^/]*)/(?P<attempt>\d{1,18})\.(?P<seq>\d{1,18})\.(?P<sub>\d{1,18})", re.ASCII)

UNKNOWN = "/0.0.0"
"""Cursor that matches no run. It replaces invalid cursors."""


class Cursor(NamedTuple):
    """Parsed form of `event.cursor`."""

    task_id: str
    attempt: int
    seq: int
    sub: int


def read_cursor(text: str, *, strict: bool = True) -> Cursor:
    """Parse a cursor.

    Args:
        text: Cursor in the form `task_id/attempt.seq.sub`.
        strict: Reject invalid cursors. Otherwise, they are treated as cursors of an unknown run.

    Raises:
        ConfigurationError: The text is not a cursor, and `strict` is set.
    """
    match = _CURSOR.fullmatch(text)
    if match is not None:
        return Cursor(match["task"], int(match["attempt"]), int(match["seq"]), int(match["sub"]))
    if strict:
        raise ConfigurationError(f"a cursor must have the form task_id/attempt.seq.sub, got {text!r}")
    return Cursor("", 0, 0, 0)


def has_unread(cursor: Cursor, end: Event) -> bool:
    """True if a run has events after the cursor, or if the cursor belongs to another run."""
    return cursor.task_id != end.root_task_id or cursor[1:] < (end.attempt, end.seq, end.sub)


def make_gap(
    event: Event,
    reason: Literal["unknown-cursor", "lost-attempt", "trimmed", "log-went-back"],
    after: str | None,
    **fields: Any,
) -> GapEvent:
    """Return a gap event for a reader that was at cursor `after` and continues with this event."""
    run = {"context_id": event.context_id, "task_id": event.root_task_id, "attempt": event.attempt}
    return GapEvent(reason=reason, after=after, **run, **fields)
