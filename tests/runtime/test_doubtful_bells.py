"""Bells that are lost, that ring again, and that lie."""

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
from rxloop.runtime import jobs as _bells
from support.workers import faults, faulty_queue, scripted_agents
from support.workers.cluster import BY_HAND, cluster, notes
from support.workers.faulty_queue import Liar

pytestmark = [pytest.mark.service("postgres"), pytest.mark.timeout(180)]


@pytest.mark.parametrize("patience", [2.0, pytest.param(20.0, marks=BY_HAND)])
async def test_a_queue_that_is_emptied_loses_no_run_and_two_looks_find_all_of_them(
    dsn: str, patience: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults.order(monkeypatch, tmp_path, watch=True, patience=patience)
    async with cluster(dsn, concurrency=5) as all_of_it:
        going = await all_of_it.start_all("wait 3", 10)
        await asyncio.gather(*(all_of_it.until(record.task_id, "tool-start") for record in going))
        began = monotonic()
        waiting = await all_of_it.start_all("look", 40)
        # The runs become due one after the other, over as long a time as it took to start them.
        spread = monotonic() - began
        with psycopg.connect(dsn) as connection:
            connection.execute("TRUNCATE procrastinate_jobs CASCADE")
        before = len(list(notes(tmp_path / "looks")))
        done = await all_of_it.all_over([*going, *waiting])
    assert {(record.state, record.attempt) for record in done} == {("completed", 1)}
    lost, looks = {record.task_id for record in waiting}, set[tuple[int, int]]()
    for note in list(notes(tmp_path / "looks"))[before:]:
        if lost:
            lost.discard(note["task"])
            looks.add((note["worker"], note["look"]))
    # One of each worker may find those that have waited for long enough by then, and the next one finds the others.
    most = 2 + int(spread // patience)
    assert (lost, max(Counter(worker for worker, _ in looks).values()) <= most) == (set(), True)


@BY_HAND
async def test_a_bell_that_rings_again_and_somebody_who_resumes_by_hand_disturb_nobody(dsn: str) -> None:
    async with cluster(dsn) as all_of_it:
        record = await all_of_it.start("wait 3")
        await all_of_it.until(record.task_id, "tool-start")
        for _ in range(5):
            await all_of_it.queue.enqueue(record.task_id)
            await asyncio.sleep(0.05)
        mine: Agent[Any, str] = scripted_agents.agent().with_log(all_of_it.log)
        with pytest.raises(ContextBusy):
            await mine.resume(record.task_id)
        done = await all_of_it.over(record)
        assert (done.state, done.attempt) == ("completed", 1)


@pytest.fixture
def lied_to(dsn: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database with a queue that lies."""
    with psycopg.connect(dsn) as connection:
        connection.execute(faulty_queue.TABLE.encode())
    faulty_queue.take_the_place(dsn, monkeypatch.setattr)
    return dsn


@pytest.mark.parametrize(("runs", "seconds"), [(20, 5), pytest.param(200, 60, marks=BY_HAND)])
async def test_a_queue_that_lies_loses_no_run_while_workers_are_killed(
    lied_to: str, runs: int, seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults.order(monkeypatch, tmp_path, lie=lied_to, patience=2)
    async with cluster(lied_to, 3, agent="sturdy") as all_of_it:
        async with Runtime({"b": scripted_agents.agent()}, log=all_of_it.log, queue=Liar(lied_to)) as other:
            stranger = await other.start("b", "pay")
        report = await all_of_it.chaos.play(
            "pay; wait 0.3; pay", "look; ask; pay", "look", runs=runs, seconds=seconds, answer=lambda question: 4
        )
        report.check()
        assert report.faults["kill"] > 0
        assert (await all_of_it.web.get_record(stranger.task_id)).state == "submitted"


async def test_what_is_refused_by_a_wrong_count_of_what_waits_is_not_in_the_log(
    lied_to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However slow this machine is, nobody counts anew in between.
    monkeypatch.setattr(_bells, "_COUNTED_FOR", 3600.0)
    log = PostgresEventLog(lied_to)
    taken: list[str] = []
    for count, room in ((-7, 12), (0, 5), (1_000_000, 0)):
        queue = Liar(lied_to, count)
        async with Runtime({"a": scripted_agents.agent()}, log=log, queue=queue, max_waiting=5) as web:
            for number in range(15):
                with nullcontext() if number < room else pytest.raises(QueueFull):
                    taken.append((await web.start("a", "pay")).task_id)
    assert [record.task_id for record in await log.list_runs()] == taken
    await log.aclose()
