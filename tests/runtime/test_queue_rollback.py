"""Queues after failover or outage."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import psycopg
import pytest

from rxloop.runtime import postgres_queue as module
from support.postgres.logs import query_rows
from support.postgres.queues import JobRecorder, open_queue, serve_queue
from support.postgres.server import PostgresServer, database

pytestmark = pytest.mark.service("postgres")


@pytest.fixture
def dsn(postgres: str) -> Iterator[str]:
    with database(postgres) as url:
        yield url


def roll_back(dsn: str, table: str) -> None:
    """Delete all rows and reset their sequence."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"DELETE FROM {table}".encode())
        connection.execute("SELECT setval(pg_get_serial_sequence(%s, 'id'), 1, false)", (table,))


async def test_end_of_a_lost_job_does_not_remove_a_job_with_the_same_id(dsn: str) -> None:
    executed: list[str] = []
    started, released, later_executed = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def execute(task_id: str) -> None:
        executed.append(task_id)
        if task_id == "lost":
            started.set()
            await released.wait()
        else:
            later_executed.set()

    async with open_queue(dsn) as queue, serve_queue(queue, execute):
        await queue.enqueue("lost")
        await started.wait()
        roll_back(dsn, "procrastinate_jobs")
        await queue.enqueue("later")
        assert await query_rows(dsn, "SELECT id FROM procrastinate_jobs") == [(1,)]
        released.set()
        async with asyncio.timeout(20):
            await later_executed.wait()
    assert executed == ["lost", "later"]


async def test_new_worker_does_not_get_the_id_of_a_lost_worker(dsn: str) -> None:
    async def read_worker_id() -> int:
        async with asyncio.timeout(20):
            while not (rows := await query_rows(dsn, "SELECT id FROM procrastinate_workers")):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return rows[0][0]

    async with open_queue(dsn) as queue, open_queue(dsn) as other:
        await queue.waiting()  # creates the tables
        async with serve_queue(queue, JobRecorder(1)):
            lost_id = await read_worker_id()
            roll_back(dsn, "procrastinate_workers")
            async with serve_queue(other, JobRecorder(1)):
                assert await read_worker_id() != lost_id


async def test_worker_canceled_while_the_server_is_down_ends_as_canceled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_CONNECT_TIMEOUT", 0.5)
    with PostgresServer() as server:
        async with open_queue(server.dsn) as queue:
            answers = JobRecorder(1)
            async with asyncio.timeout(60):
                worker = asyncio.create_task(queue.serve(answers, concurrency=1))
                await queue.enqueue("a")
                await answers.all.wait()
                await asyncio.to_thread(server.stop, crash=True)
                worker.cancel()
                await asyncio.wait([worker])
    assert worker.cancelled()
