"""Machines with clocks an hour apart."""

from __future__ import annotations

import asyncio
import signal
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rxloop import MemoryEventLog, PostgresEventLog, Runtime
from rxloop.runtime import Periodic, PostgresQueue, work
from rxloop.testing import virtual_time
from rxloop.testing.virtual_time import EPOCH
from support.queues import MemoryQueue
from support.workers import faults, scripted_agents
from support.workers.cluster import SLOW_CHAOS, Cluster, read_notes, start_cluster

pytestmark = [pytest.mark.service("postgres"), pytest.mark.timeout(180)]

HOUR = 3600


@pytest.mark.parametrize("server_offset", [HOUR, pytest.param(-HOUR, marks=SLOW_CHAOS)])
async def test_runs_continue_in_order_when_the_clocks_of_machines_disagree(
    dsn: str, server_offset: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults.order_faults(monkeypatch, tmp_path, clocks=[HOUR, -HOUR, 0])
    faults.set_clock(server_offset, monkeypatch.setattr)
    async with start_cluster(dsn, 3, concurrency=4) as processes:
        first = await processes.start("pay; wait 2; pay", context_id="c")
        second = await processes.start("pay", context_id="c")
        asking_runs = await processes.start_all("look; ask; pay", 8)
        answers = [asyncio.create_task(answer_question(processes, record.task_id)) for record in asking_runs]
        await processes.wait_for_event(first.task_id, "tool-complete")
        (await processes.owner(first.task_id)).send(signal.SIGKILL)
        loop = asyncio.get_running_loop()
        killed_at = loop.time()
        await processes.wait_for_event(first.task_id, "status-update", attempt=2)
        assert loop.time() - killed_at < 8
        await asyncio.gather(*answers)
        final = await processes.wait_for_all([first, second, *asking_runs])
        assert {record.state for record in final} == {"completed"}
        await processes.check(asking_runs)
        task_ids = (first.task_id, second.task_id)
        assert [task_id for task_id in payments(processes) if task_id in task_ids] == [task_ids[0], *task_ids]
        # Confirm that clocks actually differ.
        times = [event.timestamp for record in final for event in await processes.log.read(record.task_id)]
        assert max(times) - min(times) > HOUR * 1000


@SLOW_CHAOS
async def test_runs_are_listed_and_followed_in_order_when_clocks_disagree(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults.order_faults(monkeypatch, tmp_path, clocks=[HOUR, -HOUR])
    log, queue = PostgresEventLog(dsn), PostgresQueue(dsn)
    started: list[str] = []
    async with start_cluster(dsn) as processes, Runtime({"a": scripted_agents.agent()}, log=log, queue=queue) as other:
        for number in range(9):
            with monkeypatch.context() as patch:
                faults.set_clock(HOUR * (number % 3 - 1), patch.setattr)
                started.append((await processes.start("pay; look", context_id="c")).task_id)
        for task_id in started:
            received = [event async for event in processes.web.follow(task_id)]
            events = [event for event in received if event.durable]
            for event in events[:-1]:
                later_events = [later async for later in other.follow(task_id, after=event.cursor) if later.durable]
                assert [later.seq for later in later_events] == [later.seq for later in events[event.seq :]]
        assert payments(processes) == started
        assert [record.task_id for record in await log.list_runs()] == started
        assert [record.task_id for record in await log.list_runs(newest_first=True)] == started[::-1]
        page = await log.list_runs(after=started[3], limit=3)
        assert [record.task_id for record in page] == started[4:7]
    await queue.aclose()
    await log.aclose()


@pytest.mark.parametrize("server_offset", [HOUR, -HOUR])
@SLOW_CHAOS
async def test_scheduled_run_starts_at_its_time_by_the_clock_of_the_database(
    dsn: str, server_offset: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults.order_faults(monkeypatch, tmp_path, clocks=[HOUR, -HOUR], lost_after=1)
    loop = asyncio.get_running_loop()
    async with start_cluster(dsn) as processes:
        due, due_time = datetime.now(UTC) + timedelta(seconds=4), loop.time() + 4
        faults.set_clock(server_offset, monkeypatch.setattr)
        final = await processes.wait_for_end(await processes.start("look", at=due))
        assert final.state == "completed"
        assert due_time - 0.1 < loop.time() < due_time + 8


def test_periodic_run_starts_once_per_time_when_clocks_disagree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ahead: ContextVar[int] = ContextVar("ahead", default=0)
    with virtual_time() as virtual:
        clock = SimpleNamespace(time=lambda: EPOCH / 1000 + virtual.now + ahead.get())
        monkeypatch.setattr("rxloop.runtime.worker.time", clock)

        async def program() -> None:
            log, queue = MemoryEventLog(), MemoryQueue()
            schedule = [Periodic("tick", "0 * * * *", "a", "look")]
            workers: list[asyncio.Task[None]] = []
            for hours in (-1, 0, 1):
                ahead.set(HOUR * hours)
                agents = {"a": scripted_agents.agent()}
                workers.append(asyncio.create_task(work(agents, queue, log=log, periodic=schedule, adopt_every=600)))
            await asyncio.sleep(5 * HOUR - 1)
            # Fast and slow clocks cover 23:00 to 05:00.
            assert [record.state for record in await log.list_runs()] == ["completed"] * 7
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

        virtual.run(program())


def test_started_run_is_taken_over_by_a_worker_with_a_slow_clock() -> None:
    async def program() -> None:
        log, queue = MemoryEventLog(), MemoryQueue()
        async with Runtime({"a": scripted_agents.agent()}, log=log, queue=queue) as server:
            first = Runtime({"a": scripted_agents.agent()}, log=log, queue=queue, is_worker=True, grace=0)
            async with first:
                record = await server.start("a", "wait 3", at=datetime.now(UTC) + timedelta(seconds=HOUR))
                await anext(event async for event in server.follow(record.task_id) if event.kind == "tool-start")
            async with (
                Runtime({"a": scripted_agents.agent()}, log=log, queue=MemoryQueue(), is_worker=True),
                asyncio.timeout(60),
            ):
                await server.follow(record.task_id)
                assert (await server.get_record(record.task_id)).state == "completed"

    with virtual_time() as virtual:
        virtual.run(program())


async def answer_question(processes: Cluster, task_id: str) -> None:
    """Answer a pending question."""
    question: Any = await processes.wait_for_event(task_id, "input-required")
    await processes.web.answer(task_id, {question.input_id: 4})


def payments(processes: Cluster) -> list[str]:
    """Return paid run ids in chronological order."""
    return [line["key"].split(":")[0] for line in read_notes(processes.folder / "effects")]
