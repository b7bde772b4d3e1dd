"""The queue in Postgres: it rings at least once, in order of priority, and within the limits of tenants."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from postgres import PostgresServer, database
from rxloop.errors import ConfigurationError
from rxloop.workers import PostgresQueue
from rxloop.workers import postgres as module

pytestmark = pytest.mark.service("postgres")


@pytest.fixture
def dsn(postgres: str) -> Iterator[str]:
    with database(postgres) as own:
        yield own


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
    version: str | None = None,
) -> AsyncGenerator[asyncio.Task[None]]:
    task = asyncio.create_task(queue.serve(settle, concurrency=concurrency, version=version))
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


async def test_a_bell_rings_once_however_often_it_is_rung_before_it_is_answered(dsn: str) -> None:
    async with opened(dsn) as queue:
        for _ in range(5):
            await queue.ring("a")
        await queue.ring("b")
        assert await queue.waiting() == 2
        answers = Answers(2)
        async with serving(queue, answers):
            await answers.all.wait()
            assert answers.got == ["a", "b"]
            # It is answered, and so it may ring again, which is told at once.
            answers.all.clear()
            await queue.ring("a")
            async with asyncio.timeout(0.9):
                await answers.all.wait()
        assert await queue.waiting() == 0


async def test_the_higher_priority_comes_first_and_a_delayed_bell_at_its_time(dsn: str) -> None:
    async with opened(dsn) as queue:
        await queue.ring("low", priority=-1)
        await queue.ring("later", at=datetime.now(UTC) + timedelta(seconds=1))
        await queue.ring("usual")
        await queue.ring("high", priority=3)
        assert await queue.waiting() == 3
        answers = Answers(4)
        async with serving(queue, answers):
            await answers.all.wait()
        assert answers.got == ["high", "usual", "low", "later"]


async def test_a_bell_whose_answer_fails_or_is_cancelled_rings_once_more(dsn: str) -> None:
    tried: Counter[str] = Counter()
    done, stuck = asyncio.Event(), asyncio.Event()

    async def settle(task_id: str) -> None:
        tried[task_id] += 1
        if task_id == "stuck":
            stuck.set()
            await asyncio.Event().wait()
        if tried[task_id] < 3:
            raise RuntimeError("not yet")
        done.set()

    async with opened(dsn) as queue:
        await queue.ring("fails")
        await queue.ring("stuck")
        async with serving(queue, settle, concurrency=2):
            await done.wait()
            await stuck.wait()
        assert await queue.waiting() == 1
        answers = Answers(1)
        async with serving(queue, answers):
            await answers.all.wait()
        assert answers.got == ["stuck"]


async def test_a_tenant_has_so_many_places_and_a_delayed_bell_keeps_nobody_from_them(dsn: str) -> None:
    going: Counter[str] = Counter()
    most: Counter[str] = Counter()
    count, all_done = 0, asyncio.Event()

    async def settle(task_id: str) -> None:
        nonlocal count
        tenant = task_id[0]
        going[tenant] += 1
        most[tenant] = max(most[tenant], going[tenant])
        await asyncio.sleep(0.02)
        going[tenant] -= 1
        count += 1
        if count == 12:
            all_done.set()

    async with opened(dsn, tenant_limit=2) as queue:
        await queue.ring("a-later", tenant="a", at=datetime.now(UTC) + timedelta(seconds=1))
        for number in range(6):
            await queue.ring(f"a{number}", tenant="a")
        for number in range(5):
            await queue.ring(f"b{number}", tenant="b")
        async with serving(queue, settle, concurrency=10):
            await all_done.wait()
    assert set(most.values()) <= {1, 2}


async def test_a_tenant_with_many_runs_does_not_keep_another_one_waiting(dsn: str) -> None:
    begun: Counter[str] = Counter()
    few = asyncio.Event()

    async def settle(task_id: str) -> None:
        begun[task_id[:3]] += 1
        if begun["few"] == 8:
            few.set()
        await asyncio.sleep(0.1)

    async with opened(dsn, tenant_limit=4) as queue:
        for number in range(100):
            await queue.ring(f"many{number}", tenant="many")
        for number in range(8):
            await queue.ring(f"few{number}", tenant="few")
        async with serving(queue, settle, concurrency=16):
            await few.wait()
    # Both have four places, whatever waits in front of them.
    assert begun["man"] < 50


async def test_a_worker_answers_the_bells_of_its_version_and_those_of_none(dsn: str) -> None:
    async with opened(dsn) as queue:
        await queue.ring("one", version="1")
        await queue.ring("two", version="2")
        await queue.ring("any")
        answers = Answers(2)
        async with serving(queue, answers, version="2"):
            await answers.all.wait()
        assert sorted(answers.got) == ["any", "two"]
        assert await queue.waiting() == 1


async def test_what_a_dead_worker_had_rings_once_more_before_all_others(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_STALLED", 0.4)
    monkeypatch.setattr(module, "_HEARTBEAT", 0.1)
    async with opened(dsn) as queue:
        await queue.ring("left")
        app = await queue._opened()
        dead = await app.job_manager.register_worker()
        assert await app.job_manager.fetch_job(None, dead) is not None
        for number in range(3):
            await queue.ring(f"other{number}")
        answers = Answers(4)

        async def slowly(task_id: str) -> None:
            await answers(task_id)
            await asyncio.sleep(0.6)

        async with serving(queue, slowly):
            await answers.all.wait()
        assert answers.got.index("left") < 3


async def test_processes_that_come_at_the_same_moment_make_the_tables_once(dsn: str) -> None:
    queues = [PostgresQueue(dsn) for _ in range(5)]
    await asyncio.gather(*(queue.ring(f"r{number}") for number, queue in enumerate(queues)))
    assert await queues[0].waiting() == 5
    for queue in queues:
        await queue.aclose()


async def test_a_worker_has_two_connections(dsn: str) -> None:
    async with opened(dsn) as queue:
        answers = Answers(1)
        async with serving(queue, answers, concurrency=10):
            await queue.ring("a")
            await answers.all.wait()
            with psycopg.connect(dsn) as connection:
                found = connection.execute(
                    "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'rxloop-queue'"
                    " AND datname = current_database()"
                ).fetchone()
        assert found == (2,)


async def test_a_server_that_comes_back_is_served_by_another_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    with PostgresServer() as server:
        async with opened(server.dsn) as queue:
            answers = Answers(2)

            async def serve_on() -> None:
                while True:
                    with suppress(Exception):
                        await queue.serve(answers, concurrency=2)
                    await asyncio.sleep(0.2)

            serving_on = asyncio.create_task(serve_on())
            await queue.ring("before")
            while not answers.got:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            await asyncio.to_thread(server.stop, crash=True)
            await asyncio.to_thread(server.start)
            while True:
                try:
                    await queue.ring("after")
                    break
                except Exception:
                    await asyncio.sleep(0.2)
            await answers.all.wait()
            serving_on.cancel()
            with suppress(asyncio.CancelledError):
                await serving_on
    assert set(answers.got) == {"before", "after"}


def test_a_limit_of_no_run_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least 1"):
        PostgresQueue("postgresql://localhost/app", tenant_limit=0)
