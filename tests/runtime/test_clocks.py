"""Machines whose clocks are an hour apart."""

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
from support.queues import Bare
from support.workers import faults, scripted_agents
from support.workers.cluster import BY_HAND, Cluster, cluster, notes

pytestmark = [pytest.mark.service("postgres"), pytest.mark.timeout(180)]

HOUR = 3600


@pytest.mark.parametrize("web", [HOUR, pytest.param(-HOUR, marks=BY_HAND)])
async def test_runs_of_machines_whose_clocks_are_an_hour_apart_go_on_in_order(
    dsn: str, web: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults.order(monkeypatch, tmp_path, clocks=[HOUR, -HOUR, 0])
    faults.set_clock(web, monkeypatch.setattr)
    async with cluster(dsn, 3, concurrency=4) as all_of_it:
        first = await all_of_it.start("pay; wait 2; pay", context_id="c")
        second = await all_of_it.start("pay", context_id="c")
        others = await all_of_it.start_all("look; ask; pay", 8)
        asking = [asyncio.create_task(agree(all_of_it, record.task_id)) for record in others]
        await all_of_it.until(first.task_id, "tool-complete")
        (await all_of_it.owner(first.task_id)).send(signal.SIGKILL)
        loop = asyncio.get_running_loop()
        at = loop.time()
        await all_of_it.until(first.task_id, "status-update", attempt=2)
        assert loop.time() - at < 8
        await asyncio.gather(*asking)
        done = await all_of_it.all_over([first, second, *others])
        assert {record.state for record in done} == {"completed"}
        await all_of_it.judge(others)
        both = (first.task_id, second.task_id)
        assert [task_id for task_id in payments(all_of_it) if task_id in both] == [both[0], *both]
        # What happens is told by clocks that disagree, and so the tests see that they do.
        times = [event.timestamp for record in done for event in await all_of_it.log.read(record.task_id)]
        assert max(times) - min(times) > HOUR * 1000


@BY_HAND
async def test_what_machines_of_other_clocks_have_written_is_listed_and_followed_in_order(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults.order(monkeypatch, tmp_path, clocks=[HOUR, -HOUR])
    log, queue = PostgresEventLog(dsn), PostgresQueue(dsn)
    started: list[str] = []
    async with cluster(dsn) as all_of_it, Runtime({"a": scripted_agents.agent()}, log=log, queue=queue) as other:
        for number in range(9):
            with monkeypatch.context() as patch:
                faults.set_clock(HOUR * (number % 3 - 1), patch.setattr)
                started.append((await all_of_it.start("pay; look", context_id="c")).task_id)
        for task_id in started:
            seen = [event async for event in all_of_it.web.follow(task_id)]
            events = [event for event in seen if event.durable]
            for event in events[:-1]:
                rest = [later async for later in other.follow(task_id, after=event.cursor) if later.durable]
                assert [later.seq for later in rest] == [later.seq for later in events[event.seq :]]
        assert payments(all_of_it) == started
        assert [record.task_id for record in await log.list_runs()] == started
        assert [record.task_id for record in await log.list_runs(newest_first=True)] == started[::-1]
        page = await log.list_runs(after=started[3], limit=3)
        assert [record.task_id for record in page] == started[4:7]
    await queue.aclose()
    await log.aclose()


@pytest.mark.parametrize("web", [HOUR, -HOUR])
@BY_HAND
async def test_a_run_for_later_begins_at_its_time_by_the_clock_of_the_server(
    dsn: str, web: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults.order(monkeypatch, tmp_path, clocks=[HOUR, -HOUR], patience=1)
    loop = asyncio.get_running_loop()
    async with cluster(dsn) as all_of_it:
        begins, at = datetime.now(UTC) + timedelta(seconds=4), loop.time() + 4
        faults.set_clock(web, monkeypatch.setattr)
        done = await all_of_it.over(await all_of_it.start("look", at=begins))
        assert (done.state, at - 0.1 < loop.time() < at + 8) == ("completed", True)


def test_workers_whose_clocks_are_an_hour_apart_start_a_periodic_run_once_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ahead: ContextVar[int] = ContextVar("ahead", default=0)
    with virtual_time() as virtual:
        clock = SimpleNamespace(time=lambda: EPOCH / 1000 + virtual.now + ahead.get())
        monkeypatch.setattr("rxloop.runtime.worker.time", clock)

        async def program() -> None:
            log, queue = MemoryEventLog(), Bare()
            each_hour = [Periodic("tick", "0 * * * *", "a", "look")]
            workers: list[asyncio.Task[None]] = []
            for hours in (-1, 0, 1):
                ahead.set(HOUR * hours)
                agents = {"a": scripted_agents.agent()}
                workers.append(asyncio.create_task(work(agents, queue, log=log, periodic=each_hour, adopt_every=600)))
            await asyncio.sleep(5 * HOUR - 1)
            # From 23:00, which it is by the first clock, to 05:00, which it has just been by the last one.
            assert [record.state for record in await log.list_runs()] == ["completed"] * 7
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

        virtual.run(program())


def test_a_run_that_was_begun_is_taken_over_though_its_time_is_to_come_by_the_clock_of_the_worker() -> None:
    async def program() -> None:
        log, queue = MemoryEventLog(), Bare()
        async with Runtime({"a": scripted_agents.agent()}, log=log, queue=queue) as web:
            first = Runtime({"a": scripted_agents.agent()}, log=log, queue=queue, works=True, grace=0)
            async with first:
                record = await web.start("a", "wait 3", at=datetime.now(UTC) + timedelta(seconds=HOUR))
                await anext(event async for event in web.follow(record.task_id) if event.kind == "tool-start")
            async with Runtime({"a": scripted_agents.agent()}, log=log, queue=Bare(), works=True), asyncio.timeout(60):
                await web.follow(record.task_id)
            assert (await web.get_record(record.task_id)).state == "completed"

    with virtual_time() as virtual:
        virtual.run(program())


async def agree(all_of_it: Cluster, task_id: str) -> None:
    """Answer the question of a run."""
    question: Any = await all_of_it.until(task_id, "input-required")
    await all_of_it.web.answer(task_id, {question.input_id: 4})


def payments(all_of_it: Cluster) -> list[str]:
    """The runs that have paid, in order: processes of one machine agree about the end of a file."""
    return [line["key"].split(":")[0] for line in notes(all_of_it.folder / "effects")]
