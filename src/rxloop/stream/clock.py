"""Where time comes from: the system, unless a test has put another clock in its place."""

from __future__ import annotations

import time
from contextvars import ContextVar

from rxloop.pipeline.seams import Clock


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
