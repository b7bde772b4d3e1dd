"""Cancelling, answering and reading from other processes, while workers die."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from rxloop import Event, PostgresEventLog, Runtime
from rxloop.errors import InvalidInput, NotAsked
from rxloop.protocol.events import InputReceivedEvent
from rxloop.runtime import PostgresQueue
from support.workers import scripted_agents
from support.workers.cluster import BY_HAND, LEASE, cluster, finals

pytestmark = [pytest.mark.service("postgres"), pytest.mark.timeout(180)]


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
            assert (await all_of_it.web.get_record(record.task_id)).state == "canceled"
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


@BY_HAND
async def test_a_reader_goes_on_at_another_replica_during_a_take_over(dsn: str) -> None:
    async with cluster(dsn) as all_of_it:
        record = await all_of_it.start("wait 1; look; wait 2; look; wait 1")
        seen: list[Event] = []
        other = PostgresEventLog(dsn, lease=LEASE)
        queue = PostgresQueue(dsn)
        async with Runtime({"a": scripted_agents.agent()}, log=other, queue=queue) as second:
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
