"""Tenant limits in PostgreSQL queues."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from procrastinate import PsycopgConnector
from procrastinate.exceptions import ConnectorException
from procrastinate.jobs import Status

from rxloop.runtime import postgres_queue as module
from support.postgres.queues import JobRecorder, open_queue, serve_queue
from support.postgres.server import database

pytestmark = pytest.mark.service("postgres")


@pytest.fixture
def dsn(postgres: str) -> Iterator[str]:
    with database(postgres) as url:
        yield url


class ConcurrencyCounter:
    """Job handler that counts concurrent runs by tenant prefix.

    Args:
        job_count: Number of jobs.
        limit: Concurrent runs of a tenant for which its first runs wait.
    """

    def __init__(self, job_count: int, limit: int) -> None:
        self.peaks: Counter[str] = Counter()
        self.all = asyncio.Event()
        self._running: Counter[str] = Counter()
        self._remaining = job_count
        self._limit = limit
        self._reached: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def __call__(self, task_id: str) -> None:
        tenant = task_id[0]
        self._running[tenant] += 1
        self.peaks[tenant] = max(self.peaks[tenant], self._running[tenant])
        if self._running[tenant] >= self._limit:
            self._reached[tenant].set()
        await self._reached[tenant].wait()
        # A run above the limit would start now.
        await asyncio.sleep(0.02)
        self._running[tenant] -= 1
        self._remaining -= 1
        if self._remaining == 0:
            self.all.set()


async def test_delayed_job_does_not_occupy_a_tenant_slot(dsn: str) -> None:
    counter = ConcurrencyCounter(12, limit=2)
    async with open_queue(dsn, tenant_limit=2) as queue:
        await queue.enqueue("a-later", tenant="a", at=datetime.now(UTC) + timedelta(seconds=1))
        for number in range(6):
            await queue.enqueue(f"a{number}", tenant="a")
        for number in range(5):
            await queue.enqueue(f"b{number}", tenant="b")
        async with serve_queue(queue, counter, concurrency=10):
            await counter.all.wait()
    assert counter.peaks == {"a": 2, "b": 2}


async def test_tenant_with_many_runs_does_not_delay_another_tenant(dsn: str) -> None:
    started: Counter[str] = Counter()
    few_done = asyncio.Event()

    async def execute(task_id: str) -> None:
        started[task_id[:3]] += 1
        if started["few"] == 8:
            few_done.set()
        await asyncio.sleep(0.1)

    async with open_queue(dsn, tenant_limit=4) as queue:
        for number in range(100):
            await queue.enqueue(f"many{number}", tenant="many")
        for number in range(8):
            await queue.enqueue(f"few{number}", tenant="few")
        async with serve_queue(queue, execute, concurrency=16):
            await few_done.wait()
    # Each tenant has four slots, regardless of queue order.
    assert started["man"] < 50


async def test_tenant_limit_applies_across_workers_and_versions(dsn: str) -> None:
    counter = ConcurrencyCounter(40, limit=3)
    async with AsyncExitStack() as stack:
        queues = [await stack.enter_async_context(open_queue(dsn, tenant_limit=3)) for _ in range(3)]
        for number in range(40):
            await queues[0].enqueue(f"a{number}", tenant="a", version=[None, "7", "8"][number % 3])
        for queue, version in zip(queues, ("7", "7", "8"), strict=True):
            await stack.enter_async_context(serve_queue(queue, counter, concurrency=10, version=version))
        await counter.all.wait()
    assert counter.peaks == {"a": 3}


async def test_job_of_another_version_does_not_occupy_a_tenant_slot(dsn: str) -> None:
    async with open_queue(dsn, tenant_limit=1) as queue:
        await queue.enqueue("gone", tenant="a", version="7", priority=5)
        await queue.enqueue("mine", tenant="a", version="8")
        answers = JobRecorder(1)
        async with serve_queue(queue, answers, version="8"):
            await answers.all.wait()
        assert answers.jobs == ["mine"]


async def test_free_tenant_slot_is_reused_immediately(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_POLL_INTERVAL", 3600.0)
    answers, release = JobRecorder(10), asyncio.Event()

    async def execute(task_id: str) -> None:
        if task_id == "long":
            await release.wait()
        else:
            # Give this worker time to find no free slot.
            await asyncio.sleep(0.05)
            await answers(task_id)

    async with open_queue(dsn, tenant_limit=2) as queue:
        await queue.enqueue("long", tenant="a")
        for number in range(10):
            await queue.enqueue(f"short{number}", tenant="a")
        async with serve_queue(queue, execute, concurrency=5), asyncio.timeout(60):
            # All jobs share the one remaining slot.
            await answers.all.wait()
            release.set()


async def test_dead_worker_of_another_version_releases_its_tenant_slots(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_STALLED_AFTER", 0.4)
    monkeypatch.setattr(module, "_HEARTBEAT", 0.1)
    async with open_queue(dsn, tenant_limit=1) as queue:
        await queue.enqueue("gone", tenant="a", version="7")
        app = await queue._get_app()
        worker_id = await app.job_manager.register_worker()
        assert await app.job_manager.fetch_job(["rxloop:7"], worker_id) is not None
        await queue.enqueue("mine", tenant="a", version="8")
        answers = JobRecorder(1)
        async with serve_queue(queue, answers, version="8"):
            await answers.all.wait()
        assert await queue.waiting("7") == 1


async def test_job_that_is_already_gone_can_be_finished(dsn: str) -> None:
    async with open_queue(dsn, tenant_limit=1) as queue:
        await queue.enqueue("a", tenant="a")
        manager = (await queue._get_app()).job_manager
        job = await manager.fetch_job(["rxloop"], await manager.register_worker())
        assert job is not None
        for _ in range(2):
            await manager.finish_job(job, Status.ABORTED, delete_job=True)
        assert await queue.waiting() == 0


async def test_tenant_slot_is_released_when_the_end_of_a_job_cannot_be_recorded(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_STALLED_AFTER", 0.4)
    monkeypatch.setattr(module, "_HEARTBEAT", 0.1)
    execute_query = PsycopgConnector.execute_query_async
    failures = iter([True])

    async def fail_once(self: PsycopgConnector, query: Any, **arguments: Any) -> None:
        if "finish_job" in query and next(failures, False):
            raise ConnectorException("the server does not answer in time")
        await execute_query(self, query, **arguments)

    monkeypatch.setattr(PsycopgConnector, "execute_query_async", fail_once)
    async with open_queue(dsn, tenant_limit=1) as queue:
        for task_id in ("first", "second"):
            await queue.enqueue(task_id, tenant="a")
        answers = JobRecorder(2)
        async with serve_queue(queue, answers), asyncio.timeout(10):
            await answers.all.wait()
