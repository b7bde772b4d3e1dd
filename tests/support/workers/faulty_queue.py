"""Faulty job queue in a database table, shared by several processes."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import psycopg

from rxloop.runtime import PostgresQueue

TABLE = "CREATE TABLE bells (number bigserial PRIMARY KEY, task text NOT NULL, due timestamptz NOT NULL)"
_RING = "INSERT INTO bells (task, due) SELECT %s, now() + random() * interval '2 s' FROM generate_series(1, %s)"
_ANY = "number = (SELECT number FROM bells WHERE due <= now() ORDER BY random() LIMIT 1 FOR UPDATE SKIP LOCKED)"
_TAKE = f"DELETE FROM bells WHERE {_ANY} RETURNING task"
_KEEP = f"UPDATE bells SET due = now() + interval '1 s' WHERE {_ANY} RETURNING task"
_KNOWN = "SELECT task_id FROM rxloop.runs ORDER BY random() LIMIT 1"

Execute = Callable[[str], Awaitable[None]]


class FaultyQueue:
    """Queue that loses 30 % of its jobs, duplicates, delays and reorders others, and invents some.

    It may forget a job before its run is idle, or never, and then deliver it repeatedly. `serve` fails every few
    seconds.
    """

    def __init__(self, dsn: str, waiting: int = 0) -> None:
        """Create a queue that always reports `waiting` pending jobs."""
        self._dsn, self._waiting = dsn, waiting
        self._rng = random.Random()
        self._executing: set[asyncio.Task[None]] = set()

    async def enqueue(self, task_id: str, **_: Any) -> None:
        if self._rng.random() < 0.3:
            return
        if self._rng.random() < 0.1:
            raise OSError("queue unavailable")
        await self._fetch_value(_RING, task_id, self._rng.choice((1, 1, 2)))

    async def serve(self, execute: Execute, *, concurrency: int, **options: Any) -> None:
        try:
            for _ in range(self._rng.randint(20, 100)):
                await asyncio.sleep(0.03)
                job = await self._fetch_value(self._rng.choice((_TAKE, _TAKE, _KEEP)))
                if self._rng.random() < 0.1:
                    job = await self._pick_run()
                if job is not None:
                    task = asyncio.create_task(self._execute(execute, job))
                    self._executing.add(task)
                    task.add_done_callback(self._executing.discard)
        except asyncio.CancelledError:
            for task in self._executing:
                task.cancel()
            raise
        raise OSError("queue unavailable")

    async def waiting(self, version: str | None = None) -> int:
        return self._waiting

    async def aclose(self) -> None:
        """Do nothing."""

    async def _pick_run(self) -> str | None:
        """Return an unknown or random run id."""
        return str(uuid.uuid4()) if self._rng.random() < 0.3 else await self._fetch_value(_KNOWN)

    async def _execute(self, execute: Execute, task_id: str) -> None:
        # Failures are dropped and not retried.
        with suppress(Exception):
            await execute(task_id)

    async def _fetch_value(self, query: str, *values: Any) -> Any:
        async with await psycopg.AsyncConnection.connect(self._dsn, autocommit=True) as connection:
            cursor = await connection.execute(query.encode(), values)
            row = await cursor.fetchone() if cursor.description else None
        return None if row is None else row[0]


def replace_queue(dsn: str, replace: Callable[[Any, str, Any], None]) -> None:
    """Patch the `PostgresQueue` of this process. `replace` works like `setattr`."""
    faulty = FaultyQueue(dsn)

    def make_method(name: str) -> Callable[..., Any]:
        def call(queue: Any, *arguments: Any, **options: Any) -> Any:
            return getattr(faulty, name)(*arguments, **options)

        return call

    for name in ("enqueue", "serve", "waiting"):
        replace(PostgresQueue, name, make_method(name))
