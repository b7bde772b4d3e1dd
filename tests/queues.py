"""A queue without a server, for tests: honest, or one that lies."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from datetime import datetime


class Bare:
    """Rings for whoever serves, in order, each bell once; and that is all.

    Args:
        lost: The share of bells that are lost.
        doubled: The share of bells that ring three times.
        shuffled: Whether the order is one of its own.
        seed: Of the dice.
    """

    def __init__(self, *, lost: float = 0, doubled: float = 0, shuffled: bool = False, seed: int = 1) -> None:
        self._lost, self._doubled, self._shuffled = lost, doubled, shuffled
        self._dice = random.Random(seed)
        self._bells: list[str] = []
        self._came = asyncio.Condition()
        self.rung: list[tuple[str, int, datetime | None, str | None, str | None]] = []
        """All that was rung for, with its priority, time, tenant and version."""
        self.answered: list[str] = []

    async def ring(
        self,
        task_id: str,
        *,
        priority: int = 0,
        at: datetime | None = None,
        tenant: str | None = None,
        version: str | None = None,
    ) -> None:
        self.rung.append((task_id, priority, at, tenant, version))
        if self._dice.random() < self._lost:
            return
        self._bells += [task_id] * (3 if self._dice.random() < self._doubled else 1)
        if self._shuffled:
            self._dice.shuffle(self._bells)
        async with self._came:
            self._came.notify_all()

    async def serve(
        self, settle: Callable[[str], Awaitable[None]], *, concurrency: int, version: str | None = None
    ) -> None:
        async def answer() -> None:
            while True:
                async with self._came:
                    await self._came.wait_for(lambda: self._bells)
                    task_id = self._bells.pop(0)
                self.answered.append(task_id)
                try:
                    await settle(task_id)
                except Exception:
                    await self.ring(task_id)
                except asyncio.CancelledError:
                    await asyncio.shield(self.ring(task_id))
                    raise

        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(answer())

    async def waiting(self) -> int:
        return len(self._bells)

    async def aclose(self) -> None:
        """Nothing is open."""
