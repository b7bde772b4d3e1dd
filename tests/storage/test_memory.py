import asyncio
import gc
import sys

import pytest

from rxloop import Agent
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.events import StatusUpdateEvent, TaskEvent
from rxloop.protocol.messages import Message
from rxloop.storage import MemoryEventLog, memory_run
from rxloop.testing import ScriptedModel, virtual_time

TASK = TaskEvent(seq=1, messages=[Message.user("Hi")], model="m", agent_name="helper")
FINAL = StatusUpdateEvent(seq=2, state="completed", final=True)


def test_memory_log_is_an_event_log() -> None:
    log: EventLog = MemoryEventLog()

    assert isinstance(log, MemoryEventLog)


async def test_follower_is_forgotten_after_it_is_closed() -> None:
    log = MemoryEventLog()
    await log.append("run", [TASK], expected_seq=0)
    events = log.follow("run")
    assert await anext(events) is TASK
    waiting = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    assert len(log._runs["run"].waiters) == 1

    waiting.cancel()
    await asyncio.wait([waiting])

    assert not log._runs["run"].waiters


def test_event_loop_closed_during_a_wait_does_no_harm() -> None:
    log = MemoryEventLog()
    events = log.follow("run", after_seq=1)

    async def wait() -> None:
        await log.append("run", [TASK], expected_seq=0)
        # Drives the coroutine without a task, because a pending task would be destroyed with the loop.
        waiter: asyncio.Future[None] = anext(events).__await__().send(None)
        waiter.add_done_callback(lambda _: None)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(wait())
    loop.close()
    assert log._runs["run"].waiters

    asyncio.run(log.append("run", [FINAL], expected_seq=1))

    assert not log._runs["run"].waiters


def test_submitted_run_is_orphaned_after_half_a_minute() -> None:
    async def main() -> None:
        log = MemoryEventLog()
        await log.append("run", [TASK], expected_seq=0)
        await asyncio.sleep(29)
        assert await log.list_orphaned() == []
        await asyncio.sleep(1)
        assert [record.task_id for record in await log.list_orphaned()] == ["run"]

    with virtual_time() as time:
        time.run(main())


async def test_events_stay_readable_after_closing() -> None:
    log = MemoryEventLog()
    await log.append("run", [TASK], expected_seq=0)

    await log.aclose()

    assert list(await log.read("run")) == [TASK]


async def count_calls(run_count: int) -> int:
    log = MemoryEventLog()
    for number in range(run_count + 1):
        await log.append(f"run-{number}", [TASK.model_copy(update={"context_id": f"c{number}"})], expected_seq=0)
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    # Calls by the garbage collector must not be counted.
    gc.disable()
    sys.setprofile(count)
    try:
        records = await log.list_runs(context_id="c0")
    finally:
        sys.setprofile(None)
        gc.enable()
    assert [record.task_id for record in records] == ["run-0"]
    return calls


async def test_cost_of_a_conversation_does_not_depend_on_other_runs() -> None:
    assert await count_calls(200) == await count_calls(1)


async def test_records_of_earlier_turns_are_not_created_again(monkeypatch: pytest.MonkeyPatch) -> None:
    created = 0
    make_record = memory_run.MemoryRun._make_record

    def count(run: memory_run.MemoryRun) -> RunRecord:
        nonlocal created
        created += 1
        return make_record(run)

    monkeypatch.setattr(memory_run.MemoryRun, "_make_record", count)
    log = MemoryEventLog()
    agent = Agent(ScriptedModel(*map(str, range(60))), log=log)
    counts: list[int] = []
    for turn in range(60):
        created = 0
        await agent.run(f"Question {turn}", context_id="c")
        counts.append(created)
    assert counts[-1] == counts[5] < 10


async def test_record_describes_the_run_after_each_append() -> None:
    log = MemoryEventLog()
    await log.append("run", [TASK], expected_seq=0)
    assert ((record := await log.get_record("run")).state, record.seq) == ("submitted", 1)
    await log.append("run", [FINAL], expected_seq=1)
    assert ((record := await log.get_record("run")).state, record.seq) == ("completed", 2)
