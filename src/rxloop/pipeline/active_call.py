"""A tool call under way, and the permits that limit how many answers are under way at once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any


class Permits:
    """Number of permits, and the answers that wait to get theirs back."""

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
        """Give permits to the answers that wait to continue, as far as there are permits."""
        while self.returning and self.available:
            self.returning.popleft().reclaim()


class Permit:
    """Permit of one answer, which gives it back while it waits for a person."""

    __slots__ = ("_granted", "_held", "_on_end", "_on_release", "_over", "_permits")

    def __init__(self, permits: Permits, on_release: Callable[[], None], on_end: Callable[[], None]) -> None:
        """Take a permit.

        Args:
            permits: Permits of the operator.
            on_release: Called when the answer gives the permit back.
            on_end: Called when the answer has ended.
        """
        permits.held += 1
        self._permits = permits
        self._on_release = on_release
        self._on_end = on_end
        self._held = True
        self._over = False
        self._granted: asyncio.Future[None] | None = None

    def release(self) -> None:
        """Give the permit back, so that the next answer can begin."""
        if self._held and not self._over:
            self._held = False
            self._permits.held -= 1
            self._on_release()

    async def acquire(self) -> None:
        """Wait until the answer can continue. Several of its tasks may wait at once."""
        if self._held or self._over:
            return
        if self._granted is None and self._permits.available:
            self.reclaim()
            return
        if self._granted is None:
            self._granted = asyncio.get_running_loop().create_future()
            if self._permits.returning is None:
                self._permits.returning = deque()
            self._permits.returning.append(self)
        # If a task is cancelled while it awaits the future itself, the other tasks are cancelled too.
        await asyncio.wait([self._granted])

    def reclaim(self) -> None:
        """Take the permit back at once, even if this exceeds the limit."""
        if not self._held and not self._over:
            self._held = True
            self._permits.held += 1
        self._grant()

    def end(self) -> None:
        """End the answer."""
        self._over = True
        self._grant()
        if self._held:
            self._permits.held -= 1
        self._on_end()

    def _grant(self) -> None:
        if self._granted is not None and not self._granted.done():
            self._granted.set_result(None)
        self._granted = None


class ActiveCall:
    """A tool call under way.

    Attributes:
        permit: Its permit, or None if the number of calls is not limited.
        task: The task that executes it, or None until it begins.
    """

    __slots__ = ("permit", "task")

    def __init__(self, permit: Permit | None) -> None:
        self.permit = permit
        self.task: asyncio.Task[Any] | None = None

    def release(self) -> None:
        """Give the permit back while the call waits."""
        if self.permit is not None:
            self.permit.release()

    async def acquire(self) -> None:
        """Wait until the call can continue."""
        if self.permit is not None:
            await self.permit.acquire()

    def reclaim(self) -> None:
        """Take the permit back at once."""
        if self.permit is not None:
            self.permit.reclaim()
