"""Workers that are frozen, and workers that are told to stop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rxloop import RunRecord, Runtime
from rxloop.testing.chaos.processes import Worker
from support.workers import faults, scripted_agents
from support.workers.cluster import BY_HAND, LEASE, Cluster, cluster, finals, notes, seconds_between

pytestmark = [pytest.mark.service("postgres"), pytest.mark.timeout(180)]


async def test_a_frozen_worker_is_taken_for_dead_after_its_lease_and_does_nothing_more(dsn: str) -> None:
    async with cluster(dsn) as all_of_it:
        record = await all_of_it.start("wait 3; pay")
        started = await all_of_it.until(record.task_id, "tool-start")
        frozen = await all_of_it.owner(record.task_id)
        frozen.send(signal.SIGSTOP)
        again = await all_of_it.until(record.task_id, "status-update", attempt=2)
        assert seconds_between(started, again) < LEASE + 5
        frozen.send(signal.SIGCONT)
        assert (await all_of_it.over(record)).state == "completed"
        events = await all_of_it.log.read(record.task_id)
        assert {event.attempt for event in events} == {1, 2}
        # It is still of use.
        (await all_of_it.owner(record.task_id)).send(signal.SIGSTOP)
        assert (await all_of_it.over(await all_of_it.start("look"))).state == "completed"


@BY_HAND
async def test_a_worker_that_is_frozen_for_less_than_its_lease_goes_on(dsn: str) -> None:
    async with cluster(dsn) as all_of_it:
        record = await all_of_it.start("wait 3")
        await all_of_it.until(record.task_id, "tool-start")
        frozen = await all_of_it.owner(record.task_id)
        frozen.send(signal.SIGSTOP)
        await asyncio.sleep(LEASE / 4)
        frozen.send(signal.SIGCONT)
        done = await all_of_it.over(record)
        assert (done.state, done.attempt) == ("completed", 1)


async def test_a_worker_that_is_told_to_stop_hands_its_runs_over(dsn: str) -> None:
    async with cluster(dsn) as all_of_it:
        record = await all_of_it.start("wait 4; look")
        await all_of_it.until(record.task_id, "tool-start")
        owner = await all_of_it.owner(record.task_id)
        owner.send(signal.SIGTERM)
        loop = asyncio.get_running_loop()
        at = loop.time()
        await all_of_it.until(record.task_id, "status-update", attempt=2)
        assert loop.time() - at < 6
        await owner.wait()
        assert (await all_of_it.over(record)).state == "completed"
        assert finals(await all_of_it.log.read(record.task_id)) == ["completed"]


PAYING = "pay_slowly 0.5; look; wait 1; pay_slowly 0.5; look; wait 1; pay_slowly 0.5; wait 1; pay_slowly 0.5"
GRACE = 6


@BY_HAND
async def test_workers_that_are_replaced_one_by_one_cancel_no_run_and_interrupt_no_payment(dsn: str) -> None:
    async with cluster(dsn, 3, agent="sturdy", grace=GRACE) as all_of_it:
        records = await all_of_it.start_all(PAYING, 40)
        for worker in all_of_it.chaos.workers:
            await replace(worker)
        done = await all_of_it.all_over(records)
        await all_of_it.judge(records)
        assert {record.state for record in done} == {"completed"}
        assert {len(all_of_it.effects(record.task_id)) for record in done} == {4}
        assert await interrupted(all_of_it, records) == []


@BY_HAND
async def test_a_run_stays_with_its_version_while_workers_are_replaced_one_by_one(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    faults.order(monkeypatch, tmp_path, version="1", patience=2)
    async with cluster(dsn, 3, agent="sturdy", grace=GRACE) as all_of_it, web(all_of_it, "1") as one:
        old = await start_all(one, 40)
        await asyncio.gather(*(all_of_it.until(record.task_id, "tool-start") for record in old))
        of_one = {worker.pid for worker in all_of_it.chaos.workers}
        faults.order(monkeypatch, tmp_path, version="2", patience=2)
        async with web(all_of_it, "2") as two:
            *first, last = all_of_it.chaos.workers
            for worker in first:
                await replace(worker)
            new = await start_all(two, 10)
            done = await all_of_it.all_over([*old, *new])
            await all_of_it.judge([*old, *new])
            assert {record.state for record in done} == {"completed"}
            assert await interrupted(all_of_it, done) == []
            pids = {line["task"]: line["pid"] for line in notes(all_of_it.folder / "begun")}
            assert {pids[record.task_id] in of_one for record in old} == {True}
            assert {pids[record.task_id] in of_one for record in new} == {False}
            await replace(last)
            [late] = await start_all(one, 1)
            said = ""
            while "which version '1' has started, and this is '2'" not in said:
                await asyncio.sleep(0.1)
                said += capfd.readouterr().err
            assert (await one.get_record(late.task_id)).state == "submitted"


async def replace(worker: Worker) -> None:
    """Tell a worker to stop, and start another one in its place."""
    worker.send(signal.SIGTERM)
    await worker.wait()
    await worker.start()


@asynccontextmanager
async def web(all_of_it: Cluster, version: str) -> AsyncGenerator[Runtime]:
    async with Runtime(
        {"a": scripted_agents.agent()}, log=all_of_it.log, queue=all_of_it.queue, version=version
    ) as runtime:
        yield runtime


async def start_all(runtime: Runtime, count: int) -> list[RunRecord]:
    return list(await asyncio.gather(*(runtime.start("a", PAYING) for _ in range(count))))


async def interrupted(all_of_it: Cluster, records: Iterable[RunRecord]) -> list[str]:
    """The calls that were under way when their worker went."""
    events = [event for record in records for event in await all_of_it.log.read(record.task_id)]
    return [event.describe() for event in events if event.kind == "tool-complete" and "interrupted" in event.describe()]
