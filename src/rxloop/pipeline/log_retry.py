"""Retries for event log calls."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from rxloop.errors import EventLogError, LogUnreachable, RxloopError

if TYPE_CHECKING:
    from rxloop.protocol.events import Event

log = logging.getLogger("rxloop")

T = TypeVar("T")

PATIENCE = 30.0
"""Maximum retry time in seconds."""

PAUSES = (0.05, 2.0)
"""Initial and maximum pause between retries in seconds. The pause doubles after each attempt."""

ANSWERS_IN = 10.0
"""Timeout in seconds for storing a batch, per attempt."""

_WITHIN: ContextVar[float | None] = ContextVar("rxloop_log_within", default=None)

_MISTAKES = (AssertionError, TypeError, ValueError, LookupError, AttributeError, NotImplementedError)
"""Exceptions caused by bugs or invalid events, which a retry cannot fix."""


@contextmanager
def within(seconds: float | None) -> Generator[None]:
    """Limit the time for each log call in the current context and in tasks created from it.

    Use this while a client is waiting for a response. None applies the default `PATIENCE`, for long operations such as
    runs.
    """
    token = _WITHIN.set(seconds)
    try:
        yield
    finally:
        _WITHIN.reset(token)


async def patiently(ask: Callable[[], Awaitable[T]], trouble: str, *, answers_in: float | None = None) -> T:
    """Call a log and retry temporary failures, for `PATIENCE` seconds or the time limit set by `within`.

    Args:
        ask: Function that calls the log.
        trouble: Description of the failure for the warning.
        answers_in: Timeout per attempt in seconds. None means no timeout, for reads of any size.

    Raises:
        LogUnreachable: If the time limit set by `within` is exceeded.
    """
    deadline = asyncio.timeout(_WITHIN.get())
    try:
        async with deadline:
            return await _until_it_answers(ask, trouble, answers_in)
    except TimeoutError as error:
        if not deadline.expired():
            raise
        raise LogUnreachable(f"no answer has come in {_WITHIN.get():g} s") from error


async def _until_it_answers(ask: Callable[[], Awaitable[T]], trouble: str, answers_in: float | None) -> T:
    loop = asyncio.get_running_loop()
    pause, longest = PAUSES
    over, warned = loop.time() + PATIENCE, False
    while True:
        try:
            return await _once(ask, answers_in)
        except BaseException as error:
            if is_cancelled(error) or not may_pass(error):
                raise
            if not warned:
                warned = True
                log.warning("%s; trying again: %s", trouble, error)
            elif loop.time() + pause > over:
                raise
        await asyncio.sleep(pause)
        pause = min(2 * pause, longest)


async def _once(ask: Callable[[], Awaitable[T]], answers_in: float | None) -> T:
    deadline = asyncio.timeout(answers_in)
    try:
        async with deadline:
            return await ask()
    except TimeoutError as error:
        if not deadline.expired():
            raise
        raise EventLogError(f"the log has not answered for {answers_in:g} s") from error


def may_pass(error: BaseException) -> bool:
    """Return True if a retry may succeed."""
    if isinstance(error, EventLogError):
        return error.retryable
    # Some logs raise `CancelledError` when an internal task, such as a connection, is cancelled.
    return isinstance(error, asyncio.CancelledError) or (
        isinstance(error, Exception) and not isinstance(error, _MISTAKES)
    )


def is_cancelled(error: BaseException) -> bool:
    """Return True if the current task is being cancelled, rather than a task inside the log."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


P = ParamSpec("P")


async def read_log(read: Callable[P, Awaitable[T]], *args: P.args, **options: P.kwargs) -> T:
    """Read from a log, retrying temporary failures.

    Raises:
        LogUnreachable: If retries failed until the time limit.
        EventLogError: If a permanent error occurred.
    """
    try:
        return await patiently(lambda: read(*args, **options), "the event log cannot be read")
    except Exception as error:
        if may_pass(error):
            raise LogUnreachable(f"the event log could not be read: {error}") from error
        if isinstance(error, RxloopError):
            raise
        raise EventLogError(f"the event log could not be read: {error}") from error


def check_whole(task_id: str, events: Sequence[Event], until: int) -> None:
    """Check that no event is missing, for example because it was unreadable and skipped.

    Args:
        task_id: Run ID.
        events: Events returned by the log.
        until: Last required `seq`.

    Raises:
        EventLogError: If an event is missing.
    """
    for seq in range(1, until + 1):
        if seq > len(events) or events[seq - 1].seq != seq:
            before = f"; agent.fork({task_id!r}, at={seq - 1}) goes on before it" if seq > 1 else ""
            raise EventLogError(
                f"the event {seq} of the run {task_id} cannot be read: a run that goes on after it may repeat what was "
                f"done{before}",
                retryable=False,
            )
