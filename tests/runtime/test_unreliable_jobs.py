"""Lost, duplicated and invalid jobs."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from time import monotonic
from typing import Any

import psycopg
import pytest

from rxloop import Agent, PostgresEventLog, Runtime
from rxloop.errors import ContextBusy, QueueFull
from rxloop.runtime import jobs
from support.workers import faults, faulty_queue, scripted_agents
from support.workers.cluster import SLOW_CHAOS, read_notes, start_cluster
from support.workers.faulty_queue import FaultyQueue

pytestmark = [pytest.mark.service("postgres"), pytest.mark.timeout(180)]


@pytest.mark.parametrize("lost_after", [2.0, pytest.param(20.0, marks=SLOW_CHAOS)])
async def test_runs_of_an_emptied_queue_are_found_by_two_scans(
    dsn: str, lost_after: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults.order_faults(monkeypatch, tmp_path, watch=True, lost_after=lost_after)
    async with start_cluster(dsn, concurrency=5) as processes:
        running = await processes.start_all("wait 3", 10)
        await asyncio.gather(*(processes.wait_for_event(record.task_id, "tool-start") for record in running))
        start = monotonic()
        queued = await processes.start_all("look", 40)
        # Due times are spread like start times.
        start_duration = monotonic() - start
        with psycopg.connect(dsn) as connection:
            connection.execute("TRUNCATE procrastinate_jobs CASCADE")
        before = len(list(read_notes(tmp_path / "scans")))
        final = await processes.wait_for_all([*running, *queued])
    assert {(record.state, record.attempt) for record in final} == {("completed", 1)}
    missing, scans = {record.task_id for record in queued}, set[tuple[int, int]]()
    for note in list(read_notes(tmp_path / "scans"))[before:]:
        # A job is also enqueued again if its worker seems dead, or if it was found before but has not started.
        if note["task"] in missing:
            missing.remove(note["task"])
            scans.add((note["worker"], note["scan"]))
    # Each worker needs at most two scans plus extra scans for slow starts.
    max_scans = 2 + int(start_duration // lost_after)
    assert missing == set()
    assert max(Counter(worker for worker, _ in scans).values()) <= max_scans


@SLOW_CHAOS
async def test_duplicated_jobs_and_a_manual_resume_do_not_disturb_a_run(dsn: str) -> None:
    async with start_cluster(dsn) as processes:
        record = await processes.start("wait 3")
        await processes.wait_for_event(record.task_id, "tool-start")
        for _ in range(5):
            await processes.queue.enqueue(record.task_id)
            await asyncio.sleep(0.05)
        own_agent: Agent[Any, str] = scripted_agents.agent().with_log(processes.log)
        with pytest.raises(ContextBusy):
            await own_agent.resume(record.task_id)
        final = await processes.wait_for_end(record)
        assert (final.state, final.attempt) == ("completed", 1)


@pytest.fixture
def faulty_dsn(dsn: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Database with a faulty queue."""
    with psycopg.connect(dsn) as connection:
        connection.execute(faulty_queue.TABLE.encode())
    faulty_queue.replace_queue(dsn, monkeypatch.setattr)
    return dsn


@pytest.mark.parametrize(("runs", "seconds"), [(20, 5), pytest.param(200, 60, marks=SLOW_CHAOS)])
async def test_faulty_queue_loses_no_run_while_workers_are_killed(
    faulty_dsn: str, runs: int, seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults.order_faults(monkeypatch, tmp_path, lie=faulty_dsn, lost_after=2)
    async with start_cluster(faulty_dsn, 3, agent="durable_agent") as processes:
        async with Runtime({"b": scripted_agents.agent()}, log=processes.log, queue=FaultyQueue(faulty_dsn)) as other:
            foreign_run = await other.start("b", "pay")
        report = await processes.chaos.run_scenario(
            "pay; wait 0.3; pay", "look; ask; pay", "look", runs=runs, seconds=seconds, answer=lambda question: 4
        )
        report.check()
        assert report.faults["kill"] > 0
        assert (await processes.web.get_record(foreign_run.task_id)).state == "submitted"


async def test_run_refused_by_a_wrong_queue_depth_is_not_recorded(
    faulty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Disable recounting.
    monkeypatch.setattr(jobs, "_COUNT_MAX_AGE", 3600.0)
    log = PostgresEventLog(faulty_dsn)
    accepted: list[str] = []
    for count, capacity in ((-7, 12), (0, 5), (1_000_000, 0)):
        queue = FaultyQueue(faulty_dsn, count)
        async with Runtime({"a": scripted_agents.agent()}, log=log, queue=queue, max_waiting=5) as server:
            for number in range(15):
                with nullcontext() if number < capacity else pytest.raises(QueueFull):
                    accepted.append((await server.start("a", "pay")).task_id)
    assert [record.task_id for record in await log.list_runs()] == accepted
    await log.aclose()
