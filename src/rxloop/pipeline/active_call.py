"""A tool call under way, and its permit among the calls that may be at work at once."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol


class Permit(Protocol):
    """The permission of an answer to be under way, where only a number of answers may be."""

    def release(self) -> None:
        """Give the permit back, so that the next answer may begin."""
        ...

    async def acquire(self) -> None:
        """Wait until the answer may go on; answers that have begun come before others."""
        ...

    def reclaim(self) -> None:
        """Take the permit back at once, even if this is one more than allowed."""
        ...


class ActiveCall:
    """A tool call under way.

    Attributes:
        permit: Its permit; None if any number of calls may be at work.
        task: The task that executes it; None until it begins.
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
        """Wait until the call may go on."""
        if self.permit is not None:
            await self.permit.acquire()

    def reclaim(self) -> None:
        """Take the permit back at once."""
        if self.permit is not None:
            self.permit.reclaim()
