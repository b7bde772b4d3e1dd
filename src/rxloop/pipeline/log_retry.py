"""Retries for event log calls."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from rxloop.errors import EventLogError, LogUnreachable, RxloopError
from rxloop.protocol.events import TaskEvent
from rxloop.support.tasks import is_cancelled, limit_time
from rxloop.support.threads import compute, free_in_thread

if TYPE_CHECKING:
    from rxloop.pipeline.event_log import EventLog
    from rxloop.protocol.events import Event

log = logging.getLogger("rxloop")

T = TypeVar("T")

RETRY_SECONDS = 30.0
"""Maximum retry time in seconds."""

PAUSES = (0.05, 2.0)
"""Initial and maximum pause between retries in seconds. The pause doubles after each attempt."""

APPEND_TIMEOUT = 10.0
"""Timeout in seconds for storing a batch, per attempt."""

_TIME_LIMIT: ContextVar[float | None] = ContextVar("rxloop_log_time_limit", default=None)

_PERMANENT_ERRORS = (AssertionError, TypeError, ValueError, LookupError, AttributeError, NotImplementedError)
"""Exceptions caused by bugs or invalid events, which a retry cannot fix."""


@contextmanager
def limit_log_time(seconds: float | None) -> Generator[None]:
    """Limit the time for each log call in the current context and in tasks created from it.

    Use this while a client is waiting for a response. None applies the default `RETRY_SECONDS`, for long operations
    such as runs.
    """
    token = _TIME_LIMIT.set(seconds)
    try:
        yield
    finally:
        _TIME_LIMIT.reset(token)


async def retry_log_call(call: Callable[[], Awaitable[T]], failure: str, *, call_timeout: float | None = None) -> T:
    """Call a log and retry temporary failures, for `RETRY_SECONDS` or the time limit set by `limit_log_time`.

    Args:
        call: Function that calls the log.
        failure: Description of the failure for the warning.
        call_timeout: Timeout per attempt in seconds. None means no timeout, for reads of any size.

    Raises:
        LogUnreachable: If the time limit set by `limit_log_time` is exceeded.
    """
    seconds = _TIME_LIMIT.get()
    return await limit_time(
        lambda: _retry(call, failure, call_timeout),
        seconds,
        lambda: LogUnreachable(f"the log did not respond within {seconds:g} s"),
    )


async def _retry(call: Callable[[], Awaitable[T]], failure: str, call_timeout: float | None) -> T:
    loop = asyncio.get_running_loop()
    pause, max_pause = PAUSES
    deadline, warned = loop.time() + RETRY_SECONDS, False
    while True:
        try:
            return await limit_time(
                call, call_timeout, lambda: EventLogError(f"the log did not respond within {call_timeout:g} s")
            )
        except BaseException as error:
            if is_cancelled(error) or not is_temporary(error):
                raise
            if not warned:
                warned = True
                log.warning("%s; trying again: %s", failure, error)
            elif loop.time() + pause > deadline:
                raise
        await asyncio.sleep(pause)
        pause = min(2 * pause, max_pause)


def is_temporary(error: BaseException) -> bool:
    """Return True if a retry may succeed."""
    if isinstance(error, EventLogError):
        return error.retryable
    # Some logs raise `CancelledError` when an internal task, such as a connection, is cancelled.
    return isinstance(error, asyncio.CancelledError) or (
        isinstance(error, Exception) and not isinstance(error, _PERMANENT_ERRORS)
    )


P = ParamSpec("P")


async def read_log(read: Callable[P, Awaitable[T]], *args: P.args, **options: P.kwargs) -> T:
    """Read from a log, retrying temporary failures.

    Raises:
        LogUnreachable: If retries failed until the time limit.
        EventLogError: If a permanent error occurred.
    """
    try:
        return await retry_log_call(lambda: read(*args, **options), "the event log cannot be read")
    except Exception as error:
        if is_temporary(error):
            raise LogUnreachable(f"the event log could not be read: {error}") from error
        if isinstance(error, RxloopError):
            raise
        raise EventLogError(f"the event log could not be read: {error}") from error


async def process_events(log: EventLog, task_id: str, function: Callable[[Sequence[Event]], T], after: int = 0) -> T:
    """Call a function with the events of a run. Large runs are processed and freed in a thread.

    Args:
        log: Event log with the run.
        task_id: Run ID.
        function: Called once. It may keep some of the events.
        after: `seq` of the event before the first event to read.

    Raises:
        EventLogError: As in `read_log`.
    """
    events = [await read_log(log.read, task_id, after_seq=after)]
    try:
        return await compute(lambda: function(events[0]), steps=len(events[0]))
    finally:
        free_in_thread(events)


def check_complete(task_id: str, events: Sequence[Event], until: int) -> None:
    """Check that no event is missing, for example because it was unreadable and skipped.

    Args:
        task_id: Run ID.
        events: Events returned by the log.
        until: Last required `seq`.

    Raises:
        EventLogError: If an event is missing, or if the events lack internal data.
    """
    first = events[0] if events else None
    if isinstance(first, TaskEvent) and first.public_form:
        raise EventLogError(
            f"run {task_id} was imported without its internal data, so it cannot be resumed or forked; import "
            f"the output of rxloop export --full instead",
            retryable=False,
        )
    for seq in range(1, until + 1):
        if seq > len(events) or events[seq - 1].seq != seq:
            remedy = f"; agent.fork({task_id!r}, at={seq - 1}) continues from the event before it" if seq > 1 else ""
            raise EventLogError(
                f"event {seq} of run {task_id} is missing; resuming the run could repeat completed work{remedy}",
                retryable=False,
            )
