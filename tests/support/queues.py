"""In-memory job queue, reliable or faulty."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection
from datetime import datetime

RETRY_DELAY = 1.0
"""Retry delay of failed jobs in seconds."""


class MemoryQueue:
    """Queue that delivers each job once, in order, unless faults are requested.

    Args:
        loss: Share of jobs that are lost.
        duplication: Share of jobs that are delivered three times.
        shuffles: Deliver the jobs in random order.
        seed: Seed of the random numbers.
    """

    def __init__(self, *, loss: float = 0, duplication: float = 0, shuffles: bool = False, seed: int = 1) -> None:
        self._loss, self._duplication, self._shuffles = loss, duplication, shuffles
        self._random = random.Random(seed)
        self._jobs: list[str] = []
        self._idle_workers: list[asyncio.Future[None]] = []
        """Idle workers in the order of waiting."""
        self._woken = set[asyncio.Future[None]]()
        self.enqueued: list[tuple[str, int, datetime | None, str | None, str | None, str | None]] = []
        """Enqueued jobs with priority, time, tenant, agent and version."""
        self.executed: list[str] = []

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
        self.enqueued.append((task_id, priority, at, tenant, agent, version))
        if self._random.random() < self._loss:
            return
        self._jobs += [task_id] * (3 if self._random.random() < self._duplication else 1)
        if self._shuffles:
            self._random.shuffle(self._jobs)
        self._wake()

    def _wake(self) -> None:
        for future in [each for each in self._idle_workers if not each.done()][: len(self._jobs)]:
            future.set_result(None)

    async def serve(
        self,
        execute: Callable[[str], Awaitable[None]],
        *,
        concurrency: int,
        agents: Collection[str] | None = None,
        version: str | None = None,
    ) -> None:
        async def answer() -> None:
            while True:
                while not self._jobs:
                    future = asyncio.get_running_loop().create_future()
                    self._idle_workers.append(future)
                    try:
                        await future
                    except asyncio.CancelledError:
                        self._idle_workers.remove(future)
                        self._wake()
                        raise
                    self._idle_workers.remove(future)
                task_id = self._jobs.pop(0)
                self.executed.append(task_id)
                try:
                    await execute(task_id)
                except Exception:
                    asyncio.get_running_loop().call_later(RETRY_DELAY, self._again, task_id)
                except asyncio.CancelledError:
                    await asyncio.shield(self.enqueue(task_id))
                    raise

        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(answer())

    def _again(self, task_id: str) -> None:
        task = asyncio.ensure_future(self.enqueue(task_id))
        self._woken.add(task)
        task.add_done_callback(self._woken.discard)

    async def wait_for_executed(self, count: int) -> None:
        """Wait until this many jobs have started."""
        while len(self.executed) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    def clear(self) -> None:
        """Remove all pending jobs."""
        self._jobs.clear()

    async def waiting(self, version: str | None = None) -> int:
        return len(self._jobs)

    async def aclose(self) -> None:
        """Do nothing."""
