"""Frozen and stopping workers."""

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
from support.workers.cluster import LEASE, SLOW_CHAOS, Cluster, final_states, read_notes, seconds_between, start_cluster

pytestmark = [pytest.mark.service("postgres"), pytest.mark.timeout(180)]


async def test_frozen_worker_is_considered_dead_after_its_lease(dsn: str) -> None:
    async with start_cluster(dsn) as processes:
        record = await processes.start("wait 3; pay")
        started = await processes.wait_for_event(record.task_id, "tool-start")
        frozen = await processes.owner(record.task_id)
        frozen.send(signal.SIGSTOP)
        resumed = await processes.wait_for_event(record.task_id, "status-update", attempt=2)
        assert seconds_between(started, resumed) < LEASE + 5
        frozen.send(signal.SIGCONT)
        assert (await processes.wait_for_end(record)).state == "completed"
        events = await processes.log.read(record.task_id)
        assert {event.attempt for event in events} == {1, 2}
        # This worker remains usable.
        (await processes.owner(record.task_id)).send(signal.SIGSTOP)
        assert (await processes.wait_for_end(await processes.start("look"))).state == "completed"


@SLOW_CHAOS
async def test_worker_frozen_for_less_than_its_lease_keeps_its_run(dsn: str) -> None:
    async with start_cluster(dsn) as processes:
        record = await processes.start("wait 3")
        await processes.wait_for_event(record.task_id, "tool-start")
        frozen = await processes.owner(record.task_id)
        frozen.send(signal.SIGSTOP)
        await asyncio.sleep(LEASE / 4)
        frozen.send(signal.SIGCONT)
        final = await processes.wait_for_end(record)
        assert (final.state, final.attempt) == ("completed", 1)


async def test_stopping_worker_releases_its_runs(dsn: str) -> None:
    async with start_cluster(dsn) as processes:
        record = await processes.start("wait 4; look")
        await processes.wait_for_event(record.task_id, "tool-start")
        owner = await processes.owner(record.task_id)
        owner.send(signal.SIGTERM)
        loop = asyncio.get_running_loop()
        stopped_at = loop.time()
        await processes.wait_for_event(record.task_id, "status-update", attempt=2)
        assert loop.time() - stopped_at < 6
        await owner.wait()
        assert (await processes.wait_for_end(record)).state == "completed"
        assert final_states(await processes.log.read(record.task_id)) == ["completed"]


PAYMENT_SCRIPT = "pay_slowly 0.5; look; wait 1; pay_slowly 0.5; look; wait 1; pay_slowly 0.5; wait 1; pay_slowly 0.5"
GRACE = 6


@SLOW_CHAOS
async def test_rolling_replacement_of_workers_interrupts_no_payment(dsn: str) -> None:
    async with start_cluster(dsn, 3, agent="durable_agent", grace=GRACE) as processes:
        records = await processes.start_all(PAYMENT_SCRIPT, 40)
        for worker in processes.chaos.workers:
            await replace(worker)
        final = await processes.wait_for_all(records)
        await processes.check(records)
        assert {record.state for record in final} == {"completed"}
        assert {len(processes.effects(record.task_id)) for record in final} == {4}
        assert await list_interrupted_calls(processes, records) == []


@SLOW_CHAOS
async def test_run_stays_with_its_version_during_a_rolling_replacement(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    faults.order_faults(monkeypatch, tmp_path, version="1", lost_after=2)
    async with (
        start_cluster(dsn, 3, agent="durable_agent", grace=GRACE) as processes,
        start_server(processes, "1") as first_server,
    ):
        old = await start_all(first_server, 40)
        await asyncio.gather(*(processes.wait_for_event(record.task_id, "tool-start") for record in old))
        first_pids = {worker.pid for worker in processes.chaos.workers}
        faults.order_faults(monkeypatch, tmp_path, version="2", lost_after=2)
        async with start_server(processes, "2") as second_server:
            *first, last = processes.chaos.workers
            for worker in first:
                await replace(worker)
            new = await start_all(second_server, 10)
            final = await processes.wait_for_all([*old, *new])
            await processes.check([*old, *new])
            assert {record.state for record in final} == {"completed"}
            assert await list_interrupted_calls(processes, final) == []
            pids = {line["task"]: line["pid"] for line in read_notes(processes.folder / "attempts")}
            assert {pids[record.task_id] in first_pids for record in old} == {True}
            assert {pids[record.task_id] in first_pids for record in new} == {False}
            await replace(last)
            [late_record] = await start_all(first_server, 1)
            output = ""
            while "was started by version '1', but this process is version '2'" not in output:
                await asyncio.sleep(0.1)
                output += capfd.readouterr().err
            assert (await first_server.get_record(late_record.task_id)).state == "submitted"


async def replace(worker: Worker) -> None:
    """Replace a worker."""
    worker.send(signal.SIGTERM)
    await worker.wait()
    await worker.start()


@asynccontextmanager
async def start_server(processes: Cluster, version: str) -> AsyncGenerator[Runtime]:
    async with Runtime(
        {"a": scripted_agents.agent()}, log=processes.log, queue=processes.queue, version=version
    ) as runtime:
        yield runtime


async def start_all(runtime: Runtime, count: int) -> list[RunRecord]:
    return list(await asyncio.gather(*(runtime.start("a", PAYMENT_SCRIPT) for _ in range(count))))


async def list_interrupted_calls(processes: Cluster, records: Iterable[RunRecord]) -> list[str]:
    """Return the calls that were running when their worker stopped."""
    events = [event for record in records for event in await processes.log.read(record.task_id)]
    return [event.describe() for event in events if event.kind == "tool-complete" and "interrupted" in event.describe()]
