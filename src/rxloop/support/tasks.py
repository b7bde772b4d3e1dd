"""Clock and task utilities."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


def is_cancelled(error: BaseException) -> bool:
    """Return True if the current task is being cancelled, rather than a task or future that it awaits."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def has_running_loop() -> bool:
    """Return True if an event loop is running in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def limit_time(
    work: Callable[[], Awaitable[T]], seconds: float | None, make_error: Callable[[], BaseException]
) -> T:
    """Call an async function with a time limit.

    Args:
        work: The function. A `TimeoutError` that it raises is not converted.
        seconds: Time limit in seconds, or None for no limit.
        make_error: Returns the error to raise when the time limit is exceeded.
    """
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await work()
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise make_error() from error
    finally:
        # Break a reference cycle between this frame, the timeout, its task and the task's exception.
        del limit


async def wait_all(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Wait until all tasks are done, even if the waiting task is canceled. The cancellation is raised afterwards."""
    # Imported on first use to speed up importing rxloop.
    from anyio import CancelScope

    # A list avoids a reference cycle between the exception and this frame.
    cancelled: list[asyncio.CancelledError] = []
    with CancelScope(shield=True):
        while pending := [task for task in tasks if not task.done()]:
            try:
                await asyncio.wait(pending)
            except asyncio.CancelledError as error:
                cancelled = [error]
    if cancelled:
        raise cancelled.pop()


async def close_all(closers: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Call all functions, then raise the first error if any failed.

    Raises:
        Exception: The first error. Other errors are added as notes.
    """
    failures: list[Exception] = []
    for close in closers:
        try:
            await close()
        except Exception as error:
            failures.append(error)
    if failures:
        for other in failures[1:]:
            failures[0].add_note(f"and then {type(other).__name__}: {other}")
        raise failures[0]


async def close_iterator(iterator: AsyncIterator[Any]) -> None:
    """Close an iterator if it has `aclose`, without waiting for the garbage collector."""
    close = getattr(iterator, "aclose", None)
    if close is not None:
        await close()


class Clock(Protocol):
    """Source of time for runs."""

    def now(self) -> int:
        """Return the current timestamp in milliseconds."""
        ...

    def monotonic(self) -> float:
        """Return monotonic seconds."""
        ...


class SystemClock:
    """System clock."""

    def now(self) -> int:
        """Return the time in milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Return monotonic seconds."""
        return time.monotonic()


CLOCK: ContextVar[Clock] = ContextVar("rxloop_clock", default=SystemClock())  # noqa: B039 (the clock has no state)
"""Clock of runs created in the current context."""

GRACE = 5.0
"""Seconds within which canceled work should stop."""
