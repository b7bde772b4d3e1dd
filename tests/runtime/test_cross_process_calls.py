"""Cancel, answer and read from other processes while workers die."""

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
from support.workers.cluster import LEASE, SLOW_CHAOS, final_states, start_cluster

pytestmark = [pytest.mark.service("postgres"), pytest.mark.timeout(180)]


async def test_run_can_be_canceled_in_any_state(dsn: str) -> None:
    async with start_cluster(dsn) as processes:
        paused = await processes.start("ask")
        running = await processes.start("wait 30")
        orphaned = await processes.start("wait 30")
        queued = await processes.start("look", context_id=running.context_id)
        await processes.wait_for_state(paused, "input-required")
        await processes.wait_for_event(running.task_id, "tool-start")
        await processes.wait_for_event(orphaned.task_id, "tool-start")
        starting = await processes.start("wait 30")
        await asyncio.gather(*(processes.web.cancel(r.task_id) for r in (paused, running, starting, queued)))
        (await processes.owner(orphaned.task_id)).send(signal.SIGKILL)
        await processes.web.cancel(orphaned.task_id)
        for record in (paused, running, orphaned, starting, queued):
            events = await processes.log.read(record.task_id)
            assert (await processes.web.get_record(record.task_id)).state == "canceled"
            assert final_states(events).count("canceled") == 1
            assert len([event for event in events if event.kind == "llm-call"]) <= 1


async def test_repeated_answer_is_applied_once_after_all_workers_died(dsn: str) -> None:
    async with start_cluster(dsn) as processes:
        record = await processes.start("ask; look")
        question: Any = await processes.wait_for_event(record.task_id, "input-required")
        await processes.wait_for_state(record, "input-required")
        await asyncio.gather(*(worker.kill() for worker in processes.chaos.workers))
        with pytest.raises(InvalidInput):
            await processes.web.answer(record.task_id, {question.input_id: "many"})
        with pytest.raises(NotAsked):
            await processes.web.answer(record.task_id, {"nobody": 1})
        await processes.web.answer(record.task_id, {question.input_id: 4})
        await processes.web.answer(record.task_id, {question.input_id: 4})
        with pytest.raises(InvalidInput):
            await processes.web.answer(record.task_id, {question.input_id: 5})
        await processes.chaos.workers[0].start()
        assert (await processes.wait_for_end(record)).state == "completed"
        events = await processes.log.read(record.task_id)
        assert [event.value for event in events if isinstance(event, InputReceivedEvent)] == [4]


@SLOW_CHAOS
async def test_follower_continues_on_another_replica_during_a_takeover(dsn: str) -> None:
    async with start_cluster(dsn) as processes:
        record = await processes.start("wait 1; look; wait 2; look; wait 1")
        received: list[Event] = []
        second_log = PostgresEventLog(dsn, lease=LEASE)
        queue = PostgresQueue(dsn)
        async with Runtime({"a": scripted_agents.agent()}, log=second_log, queue=queue) as second:
            for replica in (processes.web, second, processes.web):
                cursor = received[-1].cursor if received else None
                async for event in replica.follow(record.task_id, after=cursor):
                    if not event.durable:
                        continue
                    received.append(event)
                    if event.kind == "tool-start" and replica is processes.web and len(received) < 10:
                        (await processes.owner(record.task_id)).send(signal.SIGKILL)
                        break
                    if event.kind == "tool-complete" and replica is second:
                        break
        await queue.aclose()
        await second_log.aclose()
        events = await processes.log.read(record.task_id)
        assert [(e.seq, e.attempt, e.kind) for e in received] == [(e.seq, e.attempt, e.kind) for e in events]
        assert events[-1].attempt >= 2
