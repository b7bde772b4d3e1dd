"""A queue whose server has lost its last moments, as it may with a crash or a standby, or is away for good."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import psycopg
import pytest

from rxloop.runtime import postgres_queue as module
from support.postgres.logs import asked
from support.postgres.queues import Answers, opened, serving
from support.postgres.server import PostgresServer, database

pytestmark = pytest.mark.service("postgres")


@pytest.fixture
def dsn(postgres: str) -> Iterator[str]:
    with database(postgres) as own:
        yield own


def goes_back(dsn: str, table: str) -> None:
    """Lose the rows of a table and the numbers that were given to them, with what refers to them."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"DELETE FROM {table}".encode())
        connection.execute("SELECT setval(pg_get_serial_sequence(%s, 'id'), 1, false)", (table,))


async def test_the_end_of_an_answer_takes_no_bell_away_that_has_its_number_now(dsn: str) -> None:
    got: list[str] = []
    begun, goes_on, all_of_them = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def settle(task_id: str) -> None:
        got.append(task_id)
        if task_id == "lost":
            begun.set()
            await goes_on.wait()
        else:
            all_of_them.set()

    async with opened(dsn) as queue, serving(queue, settle):
        await queue.enqueue("lost")
        await begun.wait()
        goes_back(dsn, "procrastinate_jobs")
        await queue.enqueue("later")
        assert await asked(dsn, "SELECT id FROM procrastinate_jobs") == [(1,)]
        goes_on.set()
        async with asyncio.timeout(20):
            await all_of_them.wait()
    assert got == ["lost", "later"]


async def test_no_worker_has_the_number_of_one_that_the_server_has_lost(dsn: str) -> None:
    async def registered() -> int:
        async with asyncio.timeout(20):
            while not (rows := await asked(dsn, "SELECT id FROM procrastinate_workers")):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return rows[0][0]

    async with opened(dsn) as queue, opened(dsn) as other:
        await queue.waiting()  # from now on there are the tables
        async with serving(queue, Answers(1)):
            lost = await registered()
            goes_back(dsn, "procrastinate_workers")
            async with serving(other, Answers(1)):
                assert await registered() != lost


async def test_a_worker_that_is_cancelled_while_the_server_is_away_ends_as_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_ANSWERS_IN", 0.5)
    with PostgresServer() as server:
        async with opened(server.dsn) as queue:
            answers = Answers(1)
            async with asyncio.timeout(60):
                worker = asyncio.create_task(queue.serve(answers, concurrency=1))
                await queue.enqueue("a")
                await answers.all.wait()
                await asyncio.to_thread(server.stop, crash=True)
                worker.cancel()
                await asyncio.wait([worker])
    assert worker.cancelled()
