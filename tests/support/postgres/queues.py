"""A queue in Postgres, and workers that answer its bells, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager, suppress

from rxloop.runtime import PostgresQueue


@asynccontextmanager
async def opened(dsn: str, *, tenant_limit: int | None = None) -> AsyncGenerator[PostgresQueue]:
    queue = PostgresQueue(dsn, tenant_limit=tenant_limit)
    try:
        yield queue
    finally:
        await queue.aclose()


@asynccontextmanager
async def serving(
    queue: PostgresQueue,
    settle: Callable[[str], Awaitable[None]],
    *,
    concurrency: int = 1,
    agents: Collection[str] | None = None,
    version: str | None = None,
) -> AsyncGenerator[asyncio.Task[None]]:
    task = asyncio.create_task(queue.serve(settle, concurrency=concurrency, agents=agents, version=version))
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


class Answers:
    """What was answered, in order."""

    def __init__(self, wanted: int) -> None:
        self.got: list[str] = []
        self._wanted = wanted
        self.all = asyncio.Event()

    async def __call__(self, task_id: str) -> None:
        self.got.append(task_id)
        if len(self.got) >= self._wanted:
            self.all.set()
