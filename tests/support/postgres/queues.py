"""Workers of a Postgres queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager, suppress

from rxloop.runtime import PostgresQueue


@asynccontextmanager
async def open_queue(dsn: str, *, tenant_limit: int | None = None) -> AsyncGenerator[PostgresQueue]:
    queue = PostgresQueue(dsn, tenant_limit=tenant_limit)
    try:
        yield queue
    finally:
        await queue.aclose()


@asynccontextmanager
async def serve_queue(
    queue: PostgresQueue,
    execute: Callable[[str], Awaitable[None]],
    *,
    concurrency: int = 1,
    agents: Collection[str] | None = None,
    version: str | None = None,
) -> AsyncGenerator[asyncio.Task[None]]:
    task = asyncio.create_task(queue.serve(execute, concurrency=concurrency, agents=agents, version=version))
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


class JobRecorder:
    """Job handler that records the jobs in order."""

    def __init__(self, wanted: int) -> None:
        self.jobs: list[str] = []
        self._wanted = wanted
        self.all = asyncio.Event()

    async def __call__(self, task_id: str) -> None:
        self.jobs.append(task_id)
        if len(self.jobs) >= self._wanted:
            self.all.set()
