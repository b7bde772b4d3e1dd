"""The faults that may come, one by one, against a real Postgres and workers in processes of their own.

`RXLOOP_CHAOS_KILLS=1 pytest tests/workers/test_faults.py` tries those too that take long.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from postgres import PostgresServer, database
from rxloop import Agent, Event, PostgresEventLog, RunRecord, Runtime
from rxloop.errors import ContextBusy, InvalidInput, NotAsked
from rxloop.protocol.events import InputReceivedEvent, InputRequiredEvent, StatusUpdateEvent
from rxloop.testing.chaos import Chaos
from rxloop.testing.chaos._workers import Worker
from rxloop.workers import PostgresQueue
from workers import doomed

LEASE = 2.0
BY_HAND = pytest.mark.skipif("RXLOOP_CHAOS_KILLS" not in os.environ, reason="takes long: set RXLOOP_CHAOS_KILLS")

pytestmark = [pytest.mark.service("postgres"), pytest.mark.timeout(180)]


@pytest.fixture
def dsn(postgres: str) -> Iterator[str]:
    with database(postgres) as own:
        yield own


@asynccontextmanager
async def cluster(dsn: str, workers: int = 2) -> AsyncGenerator[Cluster]:
    async with Chaos("workers.doomed:agent", dsn, workers=workers, lease=LEASE, grace=1) as chaos:
        yield Cluster(chaos)


class Cluster:
    """Workers, and a replica that starts runs."""

    def __init__(self, chaos: Chaos) -> None:
        self.chaos, self.web = chaos, chaos.runtime
        self.log: PostgresEventLog = chaos._log

    async def start(self, prompt: str, **options: Any) -> RunRecord:
        return await self.web.start("a", prompt, **options)

    async def until(self, task_id: str, kind: str, attempt: int = 1) -> Event:
        """The first event of that kind."""
        async for event in self.log.follow(task_id, until="end"):
            if event.kind == kind and event.attempt >= attempt:
                return event
        raise AssertionError(f"{task_id} came to its end without {kind}")

    async def owner(self, task_id: str) -> Worker:
        """Who carries the run out, or did last."""
        while True:
            file = Path(self.chaos._folder.name) / "begun"
            lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
            pids = [line["pid"] for line in lines if line["task"] == task_id]
            if pids:
                return next(worker for worker in self.chaos.workers if worker.pid == pids[-1])
            await asyncio.sleep(0.02)

    async def over(self, record: RunRecord) -> RunRecord:
        await self.web.follow(record.task_id)
        return await self.web.record(record.task_id)

    async def state(self, record: RunRecord, *states: str) -> RunRecord:
        """Wait until it is in one of these states."""
        while (now := await self.web.record(record.task_id)).state not in states:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        return now


def seconds_between(before: Event, after: Event) -> float:
    return (after.timestamp - before.timestamp) / 1000


def finals(events: Any) -> list[str]:
    return [event.state for event in events if isinstance(event, StatusUpdateEvent) and event.final]


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("llm-call", marks=BY_HAND),
        pytest.param("content-complete", marks=BY_HAND),
        "tool-start",
        pytest.param("tool-complete", marks=BY_HAND),
        "input-required",
    ],
)
async def test_a_worker_that_dies_at_an_event_is_survived(
    dsn: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "died"
    monkeypatch.setenv("RXLOOP_DIE_AT", f"{kind}:{marker}")
    async with cluster(dsn) as all_of_it:
        record = await all_of_it.start("look; pay; ask")
        await all_of_it.state(record, "input-required")
        assert marker.exists()
        asked = [e for e in await all_of_it.log.read(record.task_id) if isinstance(e, InputRequiredEvent)]
        question = asked[-1].input_id
        await all_of_it.web.answer(record.task_id, {question: 5})
        done = await all_of_it.over(record)
        assert (done.state, done.attempt >= 2) == ("completed", True)


async def test_a_tool_that_pays_and_kills_its_worker_is_not_begun_again(dsn: str) -> None:
    async with cluster(dsn) as all_of_it:
        record = await all_of_it.start("pay_and_die x")
        started = await all_of_it.until(record.task_id, "tool-start")
        assert (await all_of_it.over(record)).state == "completed"
        events = await all_of_it.log.read(record.task_id)
        [answer] = [event for event in events if event.kind == "tool-complete"]
        assert "interrupted" in answer.describe()
        effects = (Path(all_of_it.chaos._folder.name) / "effects").read_text().splitlines()
        assert len([line for line in effects if "pay_and_die" in line]) == 1
        again = next(event for event in events if event.attempt == 2)
        assert seconds_between(started, again) < 8


async def test_a_run_that_kills_its_workers_is_ended(dsn: str) -> None:
    async with cluster(dsn, workers=4) as all_of_it:
        record = await all_of_it.start("die")
        done = await all_of_it.over(record)
        events = await all_of_it.log.read(record.task_id)
    assert done.state == "failed"
    assert [event.reason for event in events if isinstance(event, StatusUpdateEvent) and event.final] == ["attempts"]


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
        record = await all_of_it.start("wait 8; look")
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


@pytest.mark.parametrize("crash", [pytest.param(False, marks=BY_HAND), True])
async def test_a_server_that_is_gone_for_two_seconds_disturbs_no_run(crash: bool) -> None:
    with PostgresServer() as server:
        async with cluster(server.dsn) as all_of_it:
            records = [await all_of_it.start("wait 1; look; wait 2; look; wait 3; pay") for _ in range(10)]
            await asyncio.sleep(1)
            await asyncio.to_thread(server.stop, crash=crash)
            await asyncio.sleep(2)
            await asyncio.to_thread(server.start)
            async with asyncio.timeout(60):
                done = [await all_of_it.over(record) for record in records]
    assert {(record.state, record.attempt) for record in done} == {("completed", 1)}


@BY_HAND
async def test_a_queue_that_is_emptied_loses_no_run(dsn: str) -> None:
    async with cluster(dsn) as all_of_it:
        records = [await all_of_it.start(f"wait {number % 3}") for number in range(40)]
        with psycopg.connect(dsn) as connection:
            connection.execute("TRUNCATE procrastinate_jobs CASCADE")
        done = [await all_of_it.over(record) for record in records]
        assert {record.state for record in done} == {"completed"}


async def test_a_bell_that_rings_again_and_somebody_who_resumes_by_hand_disturb_nobody(dsn: str) -> None:
    async with cluster(dsn) as all_of_it:
        record = await all_of_it.start("wait 3")
        await all_of_it.until(record.task_id, "tool-start")
        for _ in range(5):
            await all_of_it.chaos._queue.ring(record.task_id)
            await asyncio.sleep(0.05)
        mine: Agent[Any, str] = doomed.agent().with_log(all_of_it.log)
        with pytest.raises(ContextBusy):
            await mine.resume(record.task_id)
        done = await all_of_it.over(record)
        assert (done.state, done.attempt) == ("completed", 1)


async def test_a_run_is_cancelled_in_whatever_state_it_is(dsn: str) -> None:
    async with cluster(dsn) as all_of_it:
        waiting = await all_of_it.start("ask")
        running = await all_of_it.start("wait 30")
        left = await all_of_it.start("wait 30")
        behind = await all_of_it.start("look", context_id=running.context_id)
        await all_of_it.state(waiting, "input-required")
        await all_of_it.until(running.task_id, "tool-start")
        await all_of_it.until(left.task_id, "tool-start")
        just = await all_of_it.start("wait 30")
        await asyncio.gather(*(all_of_it.web.cancel(r.task_id) for r in (waiting, running, just, behind)))
        (await all_of_it.owner(left.task_id)).send(signal.SIGKILL)
        await all_of_it.web.cancel(left.task_id)
        for record in (waiting, running, left, just, behind):
            events = await all_of_it.log.read(record.task_id)
            assert (await all_of_it.web.record(record.task_id)).state == "canceled"
            assert finals(events).count("canceled") == 1
            assert len([event for event in events if event.kind == "llm-call"]) <= 1


async def test_an_answer_is_taken_once_though_it_comes_twice_and_all_workers_are_dead(dsn: str) -> None:
    async with cluster(dsn) as all_of_it:
        record = await all_of_it.start("ask; look")
        question: Any = await all_of_it.until(record.task_id, "input-required")
        await all_of_it.state(record, "input-required")
        await asyncio.gather(*(worker.kill() for worker in all_of_it.chaos.workers))
        with pytest.raises(InvalidInput):
            await all_of_it.web.answer(record.task_id, {question.input_id: "many"})
        with pytest.raises(NotAsked):
            await all_of_it.web.answer(record.task_id, {"nobody": 1})
        await all_of_it.web.answer(record.task_id, {question.input_id: 4})
        await all_of_it.web.answer(record.task_id, {question.input_id: 4})
        with pytest.raises(InvalidInput):
            await all_of_it.web.answer(record.task_id, {question.input_id: 5})
        await all_of_it.chaos.workers[0].start()
        assert (await all_of_it.over(record)).state == "completed"
        events = await all_of_it.log.read(record.task_id)
        assert [event.value for event in events if isinstance(event, InputReceivedEvent)] == [4]


async def test_a_reader_goes_on_at_another_replica_during_a_take_over(dsn: str) -> None:
    async with cluster(dsn) as all_of_it:
        record = await all_of_it.start("wait 1; look; wait 2; look; wait 1")
        seen: list[Event] = []
        other = PostgresEventLog(dsn, lease=LEASE)
        queue = PostgresQueue(dsn)
        async with Runtime({"a": doomed.agent()}, log=other, queue=queue) as second:
            for replica in (all_of_it.web, second, all_of_it.web):
                cursor = seen[-1].cursor if seen else None
                async for event in replica.follow(record.task_id, after=cursor):
                    if not event.durable:
                        continue
                    seen.append(event)
                    if event.kind == "tool-start" and replica is all_of_it.web and len(seen) < 10:
                        (await all_of_it.owner(record.task_id)).send(signal.SIGKILL)
                        break
                    if event.kind == "tool-complete" and replica is second:
                        break
        await queue.aclose()
        await other.aclose()
        events = await all_of_it.log.read(record.task_id)
        assert [(e.seq, e.attempt, e.kind) for e in seen] == [(e.seq, e.attempt, e.kind) for e in events]
        assert events[-1].attempt >= 2


@BY_HAND
async def test_a_server_that_is_gone_for_twenty_seconds_is_waited_for() -> None:
    with PostgresServer() as server:
        async with cluster(server.dsn) as all_of_it:
            records = [await all_of_it.start("wait 1; look; wait 2; look; wait 3; pay") for _ in range(20)]
            await asyncio.sleep(1)
            await asyncio.to_thread(server.stop)
            await asyncio.sleep(20)
            await asyncio.to_thread(server.start)
            done = [await all_of_it.over(record) for record in records]
    assert {record.state for record in done} == {"completed"}
