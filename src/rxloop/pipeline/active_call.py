"""Running tool calls, and permits that limit concurrency."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from rxloop.protocol.tool_events import GoalChange


class Permits:
    """Concurrency limit with a queue of waiting answers."""

    __slots__ = ("held", "limit", "returning")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self.returning: deque[Permit] | None = None

    @property
    def available(self) -> bool:
        """True if another answer can get a permit."""
        return self.held < self.limit

    def readmit(self) -> None:
        """Grant available permits to waiting answers."""
        while self.returning and self.available:
            self.returning.popleft().reclaim()


class Permit:
    """Concurrency permit for one answer. It is released while the answer waits for user input."""

    __slots__ = ("_ended", "_granted", "_held", "_on_end", "_on_release", "_permits")

    def __init__(self, permits: Permits, on_release: Callable[[], None], on_end: Callable[[], None]) -> None:
        """Acquire a permit.

        Args:
            permits: Permits of the operator.
            on_release: Called when the permit is released.
            on_end: Called when the answer ends.
        """
        permits.held += 1
        self._permits = permits
        self._on_release = on_release
        self._on_end = on_end
        self._held = True
        self._ended = False
        self._granted: asyncio.Future[None] | None = None

    def release(self) -> None:
        """Release the permit, so that another answer can start."""
        if self._held and not self._ended:
            self._held = False
            self._permits.held -= 1
            self._on_release()

    async def acquire(self) -> None:
        """Acquire the permit again, waiting if necessary. Concurrent calls are allowed."""
        if self._held or self._ended:
            return
        if self._granted is None and self._permits.available:
            self.reclaim()
            return
        if self._granted is None:
            self._granted = asyncio.get_running_loop().create_future()
            if self._permits.returning is None:
                self._permits.returning = deque()
            self._permits.returning.append(self)
        # Awaiting the future directly would cancel it, and thus other waiting tasks, if this task is cancelled.
        await asyncio.wait([self._granted])

    def reclaim(self) -> None:
        """Acquire the permit without waiting, even if this exceeds the limit."""
        if not self._held and not self._ended:
            self._held = True
            self._permits.held += 1
        self._grant()

    def end(self) -> None:
        """End the answer."""
        self._ended = True
        self._grant()
        if self._held:
            self._permits.held -= 1
        self._on_end()

    def _grant(self) -> None:
        if self._granted is not None and not self._granted.done():
            self._granted.set_result(None)
        self._granted = None


class ActiveCall:
    """Running tool call.

    Attributes:
        permit: Concurrency permit, or None without a limit.
        task: Task that executes the call, or None before it starts.
        goal_changes: Changes of goals by a call that was started early, until the model has requested it. Otherwise
            None.
    """

    __slots__ = ("goal_changes", "permit", "task")

    def __init__(self, permit: Permit | None) -> None:
        self.permit = permit
        self.task: asyncio.Task[Any] | None = None
        self.goal_changes: list[Sequence[GoalChange]] | None = None

    def release(self) -> None:
        """Release the permit while the call waits."""
        if self.permit is not None:
            self.permit.release()

    async def acquire(self) -> None:
        """Acquire the permit again, waiting if necessary."""
        if self.permit is not None:
            await self.permit.acquire()

    def reclaim(self) -> None:
        """Acquire the permit without waiting."""
        if self.permit is not None:
            self.permit.reclaim()
