"""Cancellation of stalled calls, imported lazily."""

from __future__ import annotations

import asyncio
import math
from types import TracebackType
from typing import Any, Self

import anyio

LOOKS = 10
"""Event loop iterations to wait for data that is already in the socket, if the loop was blocked."""


class Watch:
    """Context manager that ends its block if there is no progress, the deadline passes, or `cancel` is called.

    Events only update a timestamp, which is checked by a single timer. Watches can be reused sequentially.

    Args:
        seconds: Maximum time without events; None means unlimited.
        shielded: Use an anyio cancel scope instead of cancelling the task. Scopes only cancel waiting tasks, which
            never happens while data is always available.
        until: Deadline in event loop time.
    """

    __slots__ = (
        "_held",
        "_loop",
        "_requests",
        "_scope",
        "_shielded",
        "_stopped",
        "_task",
        "_timer",
        "_until",
        "expired",
        "last",
        "late",
        "seconds",
    )

    def __init__(self, seconds: float | None, shielded: bool, until: float = math.inf) -> None:
        self.seconds = math.inf if seconds is None else seconds
        self.expired = False
        """True if the block was ended because no event arrived."""
        self.late = False
        """True if the deadline has passed, also if it had passed before the block began."""
        self._until = until
        self._shielded = shielded
        self.last = 0.0
        """Event loop time of the last event, set by the reader."""
        self._held = False
        self._stopped = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.Handle | None = None
        self._scope: anyio.CancelScope | None = None
        self._task: asyncio.Task[Any] | None = None
        self._requests = 0
        """Number of earlier cancellation requests."""

    def __enter__(self) -> Self:
        self._loop = loop = asyncio.get_running_loop()
        self.last = now = loop.time()
        self.expired = self._held = self._stopped = False
        self.late = now >= self._until
        due = min(now + self.seconds, self._until)
        if due < math.inf:
            self._timer = loop.call_at(due, self._look)
        if self._shielded:
            self._scope = scope = anyio.CancelScope()
            scope.__enter__()
        elif (task := asyncio.current_task(loop)) is not None:
            self._task, self._requests = task, task.cancelling()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if self._timer is not None:
            self._timer.cancel()
        scope, task = self._scope, self._task
        # Break reference cycles.
        self._timer = self._scope = self._task = self._loop = None
        if scope is not None:
            return scope.__exit__(kind, error, traceback)
        if task is None or not (self.expired or self.late):
            return False
        # Propagate cancellations requested elsewhere.
        return task.uncancel() <= self._requests and kind is asyncio.CancelledError

    def cancel(self) -> None:
        """End the block immediately."""
        if self._scope is not None:
            self._scope.cancel()
        elif self._task is not None:
            self._task.cancel()

    def hold(self) -> None:
        """Pause the timer until `go_on`, because no event can arrive while the reader is paused."""
        self._held = True

    def go_on(self) -> None:
        """Restart the timer after `hold`."""
        self._held = False
        if self._loop is not None:
            self.last = self._loop.time()

    def stop(self) -> None:
        """Stop watching. Remaining work has separate limits."""
        self._stopped = True

    def _look(self, remaining: int = LOOKS) -> None:
        loop = self._loop
        if loop is None or self._stopped:
            return
        now = loop.time()
        due = min(self._until, (now if self._held else self.last) + self.seconds)
        if due > now:
            self._timer = loop.call_at(due, self._look)
        elif remaining:
            self._timer = loop.call_soon(self._look, remaining - 1)
        else:
            self.late = now >= self._until
            self.expired = not self.late
            self.cancel()
