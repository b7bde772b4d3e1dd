"""Waiting: for tasks, and on the clock; closing several things in turn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextvars import ContextVar
from typing import Any, Protocol


async def wait_all(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Wait until tasks are over, however often the waiting task is cancelled itself; that is raised at the end."""
    # Imported here: importing rxloop is quicker without.
    from anyio import CancelScope

    cancelled: asyncio.CancelledError | None = None
    with CancelScope(shield=True):
        while under_way := [task for task in tasks if not task.done()]:
            try:
                await asyncio.wait(under_way)
            except asyncio.CancelledError as error:
                cancelled = error
    if cancelled is not None:
        raise cancelled


async def close_all(closers: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Call one after the other, also when one fails.

    Raises:
        Exception: The first failure; the others are notes on it.
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
    """Close an iterator that may be closed, as generators may: at once, and not when it is collected."""
    close = getattr(iterator, "aclose", None)
    if close is not None:
        await close()


class Clock(Protocol):
    """Where a run takes its time from."""

    def now(self) -> int:
        """Milliseconds since 1970, for timestamps."""
        ...

    def monotonic(self) -> float:
        """Seconds that only grow, for durations."""
        ...


class SystemClock:
    """The clock of the machine."""

    def now(self) -> int:
        """Milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds that only grow."""
        return time.monotonic()


CLOCK: ContextVar[Clock] = ContextVar("rxloop_clock", default=SystemClock())  # noqa: B039 (it has no state)
"""The clock of the runs that are made in this context."""

GRACE = 5.0
"""Seconds that what is cancelled has to stop in."""
