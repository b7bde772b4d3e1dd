"""A queue without a server, for tests: honest, or one that lies."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection
from datetime import datetime

AGAIN_IN = 1.0
"""Seconds after which a bell rings once more whose call has failed."""


class Bare:
    """Rings for whoever serves, whatever that is, in order, each bell once; and that is all.

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
        self._waiting: list[asyncio.Future[None]] = []
        """Those who have nothing to answer; who waits longest comes first."""
        self._ringing = set[asyncio.Future[None]]()
        self.rung: list[tuple[str, int, datetime | None, str | None, str | None, str | None]] = []
        """All that was rung for, with its priority, time, tenant, agent and version."""
        self.answered: list[str] = []

    async def enqueue(
        self,
        task_id: str,
        *,
        priority: int = 0,
        at: datetime | None = None,
        tenant: str | None = None,
        agent: str | None = None,
        version: str | None = None,
    ) -> None:
        self.rung.append((task_id, priority, at, tenant, agent, version))
        if self._dice.random() < self._lost:
            return
        self._bells += [task_id] * (3 if self._dice.random() < self._doubled else 1)
        if self._shuffled:
            self._dice.shuffle(self._bells)
        self._wake()

    def _wake(self) -> None:
        for waiting in [each for each in self._waiting if not each.done()][: len(self._bells)]:
            waiting.set_result(None)

    async def serve(
        self,
        settle: Callable[[str], Awaitable[None]],
        *,
        concurrency: int,
        agents: Collection[str] | None = None,
        version: str | None = None,
    ) -> None:
        async def answer() -> None:
            while True:
                while not self._bells:
                    place = asyncio.get_running_loop().create_future()
                    self._waiting.append(place)
                    try:
                        await place
                    except asyncio.CancelledError:
                        self._waiting.remove(place)
                        self._wake()
                        raise
                    self._waiting.remove(place)
                task_id = self._bells.pop(0)
                self.answered.append(task_id)
                try:
                    await settle(task_id)
                except Exception:
                    asyncio.get_running_loop().call_later(AGAIN_IN, self._again, task_id)
                except asyncio.CancelledError:
                    await asyncio.shield(self.enqueue(task_id))
                    raise

        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(answer())

    def _again(self, task_id: str) -> None:
        task = asyncio.ensure_future(self.enqueue(task_id))
        self._ringing.add(task)
        task.add_done_callback(self._ringing.discard)

    async def until_answered(self, count: int) -> None:
        """Wait until so many bells were answered, or are about to be."""
        while len(self.answered) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    def empty(self) -> None:
        """Lose all bells that ring."""
        self._bells.clear()

    async def waiting(self, version: str | None = None) -> int:
        return len(self._bells)

    async def aclose(self) -> None:
        """Nothing is open."""
