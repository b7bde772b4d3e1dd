"""Tenants of a queue in Postgres: each has so many places, and keeps nobody else waiting."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from procrastinate import PsycopgConnector
from procrastinate.exceptions import ConnectorException
from procrastinate.jobs import Status

from rxloop.runtime import postgres_queue as module
from support.postgres.queues import Answers, opened, serving
from support.postgres.server import database

pytestmark = pytest.mark.service("postgres")


@pytest.fixture
def dsn(postgres: str) -> Iterator[str]:
    with database(postgres) as own:
        yield own


class Going:
    """Answers that take a moment; it counts how many of a tenant, the first letter of its runs, go on at once."""

    def __init__(self, wanted: int) -> None:
        self.most: Counter[str] = Counter()
        self.all = asyncio.Event()
        self._now: Counter[str] = Counter()
        self._left = wanted

    async def __call__(self, task_id: str) -> None:
        tenant = task_id[0]
        self._now[tenant] += 1
        self.most[tenant] = max(self.most[tenant], self._now[tenant])
        await asyncio.sleep(0.02)
        self._now[tenant] -= 1
        self._left -= 1
        if self._left == 0:
            self.all.set()


async def test_a_tenant_has_so_many_places_and_a_delayed_bell_keeps_nobody_from_them(dsn: str) -> None:
    going = Going(12)
    async with opened(dsn, tenant_limit=2) as queue:
        await queue.enqueue("a-later", tenant="a", at=datetime.now(UTC) + timedelta(seconds=1))
        for number in range(6):
            await queue.enqueue(f"a{number}", tenant="a")
        for number in range(5):
            await queue.enqueue(f"b{number}", tenant="b")
        async with serving(queue, going, concurrency=10):
            await going.all.wait()
    assert going.most == {"a": 2, "b": 2}


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
            await queue.enqueue(f"many{number}", tenant="many")
        for number in range(8):
            await queue.enqueue(f"few{number}", tenant="few")
        async with serving(queue, settle, concurrency=16):
            await few.wait()
    # Both have four places, whatever waits in front of them.
    assert begun["man"] < 50


async def test_the_places_of_a_tenant_are_those_of_all_workers_and_versions(dsn: str) -> None:
    going = Going(40)
    async with AsyncExitStack() as stack:
        queues = [await stack.enter_async_context(opened(dsn, tenant_limit=3)) for _ in range(3)]
        for number in range(40):
            await queues[0].enqueue(f"a{number}", tenant="a", version=[None, "7", "8"][number % 3])
        for queue, version in zip(queues, ("7", "7", "8"), strict=True):
            await stack.enter_async_context(serving(queue, going, concurrency=10, version=version))
        await going.all.wait()
    assert going.most == {"a": 3}


async def test_a_bell_that_no_worker_answers_has_no_place(dsn: str) -> None:
    async with opened(dsn, tenant_limit=1) as queue:
        await queue.enqueue("gone", tenant="a", version="7", priority=5)
        await queue.enqueue("mine", tenant="a", version="8")
        answers = Answers(1)
        async with serving(queue, answers, version="8"):
            await answers.all.wait()
        assert answers.got == ["mine"]


async def test_a_place_that_is_free_again_is_given_away_at_once(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_POLL", 3600.0)
    answers, long = Answers(10), asyncio.Event()

    async def settle(task_id: str) -> None:
        if task_id == "long":
            await long.wait()
        else:
            # Until the worker has found that there is no other place.
            await asyncio.sleep(0.05)
            await answers(task_id)

    async with opened(dsn, tenant_limit=2) as queue:
        await queue.enqueue("long", tenant="a")
        for number in range(10):
            await queue.enqueue(f"short{number}", tenant="a")
        async with serving(queue, settle, concurrency=5), asyncio.timeout(60):
            # All of them by way of the one place that is left.
            await answers.all.wait()
            long.set()


async def test_a_dead_worker_of_another_version_does_not_keep_its_places(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_STALLED", 0.4)
    monkeypatch.setattr(module, "_HEARTBEAT", 0.1)
    async with opened(dsn, tenant_limit=1) as queue:
        await queue.enqueue("gone", tenant="a", version="7")
        app = await queue._opened()
        dead = await app.job_manager.register_worker()
        assert await app.job_manager.fetch_job(["rxloop:7"], dead) is not None
        await queue.enqueue("mine", tenant="a", version="8")
        answers = Answers(1)
        async with serving(queue, answers, version="8"):
            await answers.all.wait()
        assert await queue.waiting("7") == 1


async def test_a_worker_that_was_taken_for_dead_ends_with_a_bell_that_is_gone(dsn: str) -> None:
    async with opened(dsn, tenant_limit=1) as queue:
        await queue.enqueue("a", tenant="a")
        manager = (await queue._opened()).job_manager
        job = await manager.fetch_job(["rxloop"], await manager.register_worker())
        assert job is not None
        for _ in range(2):
            await manager.finish_job(job, Status.ABORTED, delete_job=True)
        assert await queue.waiting() == 0


async def test_a_bell_whose_end_cannot_be_told_keeps_no_place(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STALLED", 0.4)
    monkeypatch.setattr(module, "_HEARTBEAT", 0.1)
    told = PsycopgConnector.execute_query_async
    failing = iter([True])

    async def fails_once(self: PsycopgConnector, query: Any, **arguments: Any) -> None:
        if "finish_job" in query and next(failing, False):
            raise ConnectorException("the server does not answer in time")
        await told(self, query, **arguments)

    monkeypatch.setattr(PsycopgConnector, "execute_query_async", fails_once)
    async with opened(dsn, tenant_limit=1) as queue:
        for task_id in ("first", "second"):
            await queue.enqueue(task_id, tenant="a")
        answers = Answers(2)
        async with serving(queue, answers), asyncio.timeout(10):
            await answers.all.wait()
