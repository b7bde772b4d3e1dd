"""Count of attempts without progress, and of attempts that ended with their process."""

from __future__ import annotations

from typing import Any

from rxloop.protocol.events import (
    RELEASED,
    ContentCompleteEvent,
    Event,
    StatusUpdateEvent,
    ToolCompleteEvent,
)
from rxloop.protocol.settings import Limits
from rxloop.state.history import INTERRUPTED
from rxloop.state.run_state import LimitHit, RunState

_STABLE_MS = 60_000
"""Milliseconds after which an attempt that makes progress clears the run of suspicion."""


def count_attempt(state: RunState, event: StatusUpdateEvent) -> dict[str, Any]:
    """Return the changes of the counters when an attempt starts, ends or is released."""
    if event.final:
        # A temporary failure is a proper end, but also an attempt without progress.
        return {"starts": 0} if event.state == "failed" else {"starts": 0, "tries": 0}
    if event.reason == RELEASED:
        # The process stopped for another reason, such as a deployment.
        return {"starts": max(0, state.starts - 1), "tries": max(0, state.tries - 1)}
    if event.attempt > state.attempt or state.state == "submitted":
        return {"starts": state.starts + 1, "tries": state.tries + 1, "attempt_began": event.timestamp}
    return {}


def count_progress(state: RunState, event: Event) -> dict[str, Any]:
    """Return the changes of the counters if the event is progress."""
    is_stable = event.timestamp - state.attempt_began >= _STABLE_MS
    if not (state.tries or is_stable) or not is_progress(event):
        return {}
    return {"tries": 0, "starts": 0} if is_stable else {"tries": 0}


def is_progress(event: Event) -> bool:
    """Return True if the event is progress that the next attempt does not repeat.

    An answer is progress, and so is the result of a call. A message that only requests calls is not: a tool that kills
    its process and is not idempotent makes the model request another call in each attempt.
    """
    if isinstance(event, ContentCompleteEvent):
        return not event.tool_calls and event.finish_reason not in ("canceled", "interrupted")
    return isinstance(event, ToolCompleteEvent) and event.error not in (INTERRUPTED, "canceled")


def check_attempts(state: RunState, limits: Limits) -> LimitHit | None:
    """Check whether another attempt is allowed. Return the exceeded limit, if any.

    Args:
        state: State after the last attempt.
        limits: Limits of the run.
    """
    if limits.attempts is None or state.tries < limits.attempts:
        return None
    last = _describe_last_attempt(state)
    return LimitHit(
        "attempts", f"{state.tries} attempts in a row made no progress; the last one {last} (limits.attempts)"
    )


def _describe_last_attempt(state: RunState) -> str:
    """Describe how and where the last attempt ended, for error messages."""
    if state.state == "failed" and state.error is not None:
        return f"failed: {state.error.message}"
    batch = state.batch
    started = [batch.calls[index].name for index in batch.open if batch.started >> index & 1] if batch else []
    if started:
        return f"ended during the call of {', '.join(dict.fromkeys(started))}"
    return "ended during a model call" if state.open_step is not None else "ended before its next model call"
