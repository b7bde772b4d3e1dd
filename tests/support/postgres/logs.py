"""Helpers for tests of the Postgres event log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg

from rxloop import PostgresEventLog
from rxloop.storage.postgres.listener import _LISTEN
from rxloop.testing.event_log_contract.toolkit import end, note, start_events

MakeLog = Callable[..., PostgresEventLog]
"""Log factory with a shared schema; see the fixture `new_log`."""


async def query_rows(address: str, query: str, *values: Any) -> list[tuple[Any, ...]]:
    """Run a query and return its rows."""
    connection = await psycopg.AsyncConnection.connect(address, autocommit=True)
    async with connection:
        cursor = await connection.execute(query.encode(), values)
        return await cursor.fetchall() if cursor.description else []


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 (no notification exists)
            await asyncio.sleep(0)


def is_listening(log: PostgresEventLog, *others: PostgresEventLog) -> bool:
    """Return True if this many logs of one schema listen for notifications."""
    with psycopg.connect(log._address.dsn) as connection:
        query = "SELECT FROM pg_stat_activity WHERE state = 'idle' AND query = %s"
        return connection.execute(query, (log._address.sql(_LISTEN).decode(),)).rowcount == 1 + len(others)


class ConcurrentWriters:
    """Runs that append events until stopped."""

    def __init__(self, log: PostgresEventLog, count: int) -> None:
        self._log, self._stop = log, asyncio.Event()
        self.names = [f"run{number}" for number in range(count)]
        self.last = dict.fromkeys(self.names, 0)
        """Last stored sequence number by run."""
        self._grown = asyncio.Event()
        self._tasks = [asyncio.create_task(self._write(name)) for name in self.names]

    async def _write(self, name: str) -> int:
        seq = 0
        while not seq or not self._stop.is_set():
            events = [note(seq + 1)] if seq else start_events(name, context_id=name)
            await self._log.append(name, events, expected_seq=seq, writer=name)
            seq += len(events)
            self.last[name] = seq
            self._grown.set()
        await self._log.append(name, [end(seq + 1)], expected_seq=seq, writer=name)
        return seq + 1

    async def wait_for_progress(self) -> None:
        """Wait for ten more events per run."""
        enough = {name: seq + 10 for name, seq in self.last.items()}
        async with asyncio.timeout(60):
            while any(self.last[name] < seq for name, seq in enough.items()):
                self._grown.clear()
                await self._grown.wait()

    async def stop(self) -> list[int]:
        """Stop the runs and return the number of their last event."""
        self._stop.set()
        return await asyncio.gather(*self._tasks)
