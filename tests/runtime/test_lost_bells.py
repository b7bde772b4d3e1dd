"""Bells that ring at the wrong moment, for the wrong worker, or not at all; and runs that nobody drives."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rxloop import Agent, MemoryEventLog, RunRecord, Runtime, tool
from rxloop.errors import QueueFull
from rxloop.runtime import jobs as _bells
from rxloop.testing import ScriptedModel, call, virtual_time
from support.processes.machines import two_machines
from support.queues import Bare

NEVER = 100_000.0
"""Seconds between two looks for dead workers' runs where bells alone are to do it."""


@pytest.fixture
def log() -> MemoryEventLog:
    return MemoryEventLog()


def agent(*turns: Any, **options: Any) -> Agent[Any, Any]:
    return Agent(ScriptedModel(*turns), thoughts=False, **options)


def answering() -> Agent[Any, Any]:
    return agent(*["Hello."] * 500)


def in_virtual_time(program: Callable[[], Awaitable[None]]) -> None:
    with virtual_time() as time:
        time.run(program(), timeout=3_000)


def now() -> float:
    return asyncio.get_running_loop().time()


async def over(runtime: Runtime, record: RunRecord) -> RunRecord:
    await runtime.follow(record.task_id)
    return await runtime.get_record(record.task_id)


@tool
async def work() -> str:
    """Takes ten minutes."""
    await asyncio.sleep(600)
    return "done"


@tool(approve=True)
async def pay() -> str:
    """Pays."""
    return "paid"


class Stale(MemoryEventLog):
    """Gives one list of runs only when it is not true any more."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._held = options
        self.asked, self.go = asyncio.Event(), asyncio.Event()

    async def list_runs(self, **options: Any) -> Sequence[RunRecord]:
        found = await super().list_runs(**options)
        if not self.asked.is_set() and self._held.items() <= options.items():
            self.asked.set()
            await self.go.wait()
        return found


# -- bells that ring while a run is looked at


def test_a_bell_that_rings_while_its_run_is_found_to_wait_leads_to_another_look() -> None:
    async def program() -> None:
        log, queue = Stale(unfinished=True), Bare()
        clerk = answering().with_log(log).with_name("a")
        first = await clerk.submit("Hi", context_id="bob")
        async with Runtime({"a": answering()}, log=log, queue=queue, works=True, adopt_every=NEVER) as worker:
            second = await worker.start("a", "Hi", context_id="bob")
            await log.asked.wait()  # the first run was seen not to be at rest
            await clerk.get_run(first.task_id).execute()
            await queue.enqueue(second.task_id)
            await queue.until_answered(2)
            log.go.set()
            assert (await over(worker, second)).state == "completed"

    in_virtual_time(program)


def test_a_bell_that_rings_while_the_next_run_is_rung_for_leads_to_another_look() -> None:
    async def program() -> None:
        log, queue = Stale(states=("submitted",)), Bare()
        paying = agent(call("pay"), "Paid.", tools=[pay])
        async with Runtime({"a": paying}, log=log, queue=queue, works=True, adopt_every=NEVER) as worker:
            record = await worker.start("a", "Pay")
            await log.asked.wait()  # it waits for its answer, and the task that has driven it is about to end
            [question] = [event for event in await log.read(record.task_id) if event.kind == "input-required"]
            await worker.answer(record.task_id, {question.input_id: True})  # pyright: ignore[reportAttributeAccessIssue]
            await queue.until_answered(2)
            log.go.set()
            async for event in worker.follow(record.task_id):
                if event.kind == "tool-complete":
                    break
            assert (await over(worker, record)).state == "completed"

    in_virtual_time(program)


@pytest.mark.parametrize("shuffled", [False, True])
def test_the_runs_of_a_conversation_do_not_ring_for_each_other_for_ever(log: MemoryEventLog, shuffled: bool) -> None:
    class Limited(Bare):
        """Takes no more bells than a program that never ends would ring."""

        async def enqueue(self, task_id: str, **options: Any) -> None:
            assert len(self.rung) < 5_000
            await super().enqueue(task_id, **options)

    async def program() -> None:
        queue = Limited(doubled=1, shuffled=shuffled)
        agents = {"slow": agent(call("work"), "Done.", tools=[work]), "a": answering()}
        workers = [Runtime(agents, log=log, queue=queue, works=True, concurrency=4) for _ in range(2)]
        async with Runtime(agents, log=log, queue=queue) as web, workers[0], workers[1]:
            started = [await web.start(name, "Hi", context_id="bob") for name in ("slow", "a", "a", "a")]
            await asyncio.sleep(15)
            assert len(queue.rung) == len(started)
            assert {(await over(web, record)).state for record in started} == {"completed"}
            await asyncio.sleep(60)
            rung = len(queue.rung)
            await asyncio.sleep(600)
            assert len(queue.rung) == rung

    in_virtual_time(program)


# -- bells that do not ring


class Mute(Bare):
    """Its bells fail as long as it is mute."""

    mute = True

    def __init__(self) -> None:
        super().__init__()
        self.failed: list[str] = []

    async def enqueue(self, task_id: str, **options: Any) -> None:
        if self.mute:
            self.failed.append(task_id)
            raise OSError("no bell")
        await super().enqueue(task_id, **options)


def test_every_bell_that_fails_is_told_of_and_its_run_found_without(
    log: MemoryEventLog, caplog: pytest.LogCaptureFixture
) -> None:
    async def program() -> None:
        queue = Mute()
        turns = {
            "work": [call("work"), "Done."],
            "pay": [call("pay"), "Paid.", "Hello."],
            "hi": ["One.", "Two.", "Three."],
        }
        agents = {name: agent(*each, tools=[work, pay]) for name, each in turns.items()}
        async with (
            Runtime(agents, log=log, queue=queue) as web,
            Runtime(agents, log=log, queue=queue, works=True, adopt_every=1),
        ):
            started = [
                await web.start("work", "Work", context_id="bob"),
                await web.start("hi", "Hi", context_id="bob"),
                await web.start("pay", "Pay"),
            ]
            queue.mute = False
            await asyncio.sleep(31)
            assert [record.state for record in await log.list_runs()] == ["working", "submitted", "input-required"]

            queue.mute = True
            pays = started[2].task_id
            [question] = [event for event in await log.read(pays) if event.kind == "input-required"]
            await web.answer(pays, {question.input_id: True})  # pyright: ignore[reportAttributeAccessIssue]
            await over(web, started[2])
            forked = await web.fork(pays, 1, prompt="Hi")
            assert (await over(web, forked)).state == "completed"
            await over(web, started[0])
            await asyncio.sleep(1)
            queue.mute = False
            assert (await over(web, started[1])).state == "completed"
            assert now() < 31 + 600 + 31
        told = [record.getMessage() for record in caplog.records if "does not ring: no bell" in record.getMessage()]
        assert len(told) == len(queue.failed)
        assert {*queue.failed} == {record.task_id for record in (*started, forked)}

    in_virtual_time(program)


def test_a_queue_that_is_away_is_asked_once_in_a_look(log: MemoryEventLog) -> None:
    async def program() -> None:
        queue = Mute()
        async with Runtime({"a": answering()}, log=log, queue=queue) as web:
            for _ in range(20):
                await web.start("a", "Hi")
            await asyncio.sleep(25)
            async with Runtime({"a": answering()}, log=log, queue=queue, works=True):
                assert len(queue.failed) == 20 + 1

    in_virtual_time(program)


def test_the_runs_of_a_queue_that_was_emptied_go_on_within_half_a_minute(log: MemoryEventLog) -> None:
    async def program() -> None:
        queue = Bare()
        async with Runtime({"a": answering()}, log=log, queue=queue) as web:
            async with Runtime({"b": answering()}, log=log, queue=queue, works=True):
                await asyncio.sleep(3)
            async with Runtime({"a": answering()}, log=log, queue=Bare(), works=True, concurrency=4) as worker:
                await asyncio.sleep(3)
                started = [await web.start("a", "Hi") for _ in range(50)]
                worker._driving._queue = queue  # the other queue was emptied
                queue.empty()
                await asyncio.sleep(31)
                rung = {task_id for task_id, *_ in queue.rung[len(started) :]}
                assert rung == {record.task_id for record in started}

    in_virtual_time(program)


class Asked(MemoryEventLog):
    """Writes down how many submitted runs it is asked for, and when."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[float, int | None]] = []

    async def list_orphaned(self, *, submitted_limit: int | None = None, **submitted: Any) -> Sequence[RunRecord]:
        self.asked.append((now(), submitted_limit))
        return await super().list_orphaned(submitted_limit=submitted_limit, **submitted)


@pytest.mark.parametrize(("bells", "looks"), [(199, 7), (200, 2)])
def test_submitted_runs_are_looked_for_seldom_and_few_at_a_time(bells: int, looks: int) -> None:
    class Long(Bare):
        async def waiting(self, version: str | None = None) -> int:
            return bells

    async def program() -> None:
        log = Asked()
        async with Runtime({"a": answering()}, log=log, queue=Long(), works=True, adopt_every=1):
            await asyncio.sleep(61.5)
        assert len(log.asked) == 62  # for dead workers' runs
        assert [limit for _, limit in log.asked if limit != 0] == [200] * looks

    in_virtual_time(program)


# -- bells for others


def test_a_bell_for_the_agent_of_another_worker_gets_there(log: MemoryEventLog) -> None:
    async def program() -> None:
        queue = Bare()
        both = {"a": answering(), "b": answering()}
        others = [Runtime({"a": answering()}, log=log, queue=queue, works=True, concurrency=1) for _ in range(3)]
        async with Runtime(both, log=log, queue=queue) as web, others[0], others[1], others[2]:
            async with Runtime({"b": answering()}, log=log, queue=queue, works=True, concurrency=1):
                begun = now()
                for _ in range(10):
                    assert (await over(web, await web.start("b", "Hi"))).state == "completed"
                assert now() < begun + 100

    in_virtual_time(program)


# -- runs that nobody drives


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_run_that_nobody_can_drive_is_told_of_once_and_after_a_while(
    log: MemoryEventLog, caplog: pytest.LogCaptureFixture
) -> None:
    async def program() -> None:
        queue = Bare()
        both = {"a": answering(), "b": answering()}
        async with Runtime(both, log=log, queue=queue, version="1") as web:
            runs = [await web.start("a", "Hi"), await web.start("b", "Hi")]
            async with Runtime({"a": answering()}, log=log, queue=queue, works=True, version="2"):
                await asyncio.sleep(60)
                assert warnings_of(caplog) == []
                await asyncio.sleep(600)
        first, second = warnings_of(caplog)
        assert f"nobody drives the run {runs[0].task_id}, which version '1' has started, and this is '2'" in first
        assert f"nobody drives the run {runs[1].task_id}, and this runtime has no agent 'b'" in second

    in_virtual_time(program)


def test_runs_that_nobody_can_drive_once_more_are_told_of_once_more(
    log: MemoryEventLog, caplog: pytest.LogCaptureFixture
) -> None:
    async def program() -> None:
        queue = Bare()
        async with (
            Runtime({"a": answering(), "b": answering()}, log=log, queue=queue) as web,
            Runtime({"a": answering()}, log=log, queue=queue, works=True),
        ):
            for told in (1, 2):
                record = await web.start("b", "Hi")
                await asyncio.sleep(300)
                assert len(warnings_of(caplog)) == told
                async with Runtime({"b": answering()}, log=log, queue=queue, works=True):
                    assert (await over(web, record)).state == "completed"
                await asyncio.sleep(60)

    in_virtual_time(program)


def test_a_run_whose_workers_are_busy_is_not_told_of(log: MemoryEventLog, caplog: pytest.LogCaptureFixture) -> None:
    async def program() -> None:
        queue = Bare()
        slow = agent(*[call("work"), "Done."] * 3, tools=[work])
        async with (
            Runtime({"b": slow}, log=log, queue=queue, works=True, concurrency=1) as busy,
            Runtime({"a": answering()}, log=log, queue=queue, works=True),
        ):
            for _ in range(2):
                await busy.start("b", "Work")
            await asyncio.sleep(500)
            assert {record.state for record in await log.list_runs()} == {"working", "submitted"}
        assert warnings_of(caplog) == []

    in_virtual_time(program)


def test_a_run_that_waits_for_an_earlier_one_is_not_told_of(
    log: MemoryEventLog, caplog: pytest.LogCaptureFixture
) -> None:
    async def program() -> None:
        queue = Bare()
        slow = agent(call("work"), "Done.", tools=[work])
        async with (
            Runtime({"a": slow, "b": answering()}, log=log, queue=queue) as web,
            Runtime({"a": slow}, log=log, queue=queue, works=True),
            Runtime({"b": answering()}, log=log, queue=queue, works=True),
        ):
            await web.start("a", "Work", context_id="bob")
            behind = await web.start("b", "Hi", context_id="bob")
            await asyncio.sleep(500)
            assert (await web.get_record(behind.task_id)).state == "submitted"
            assert warnings_of(caplog) == []
            assert (await over(web, behind)).state == "completed"

    in_virtual_time(program)


def test_a_run_of_another_workers_that_dies_is_not_told_of_before_it_is_taken_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    one, two = two_machines()

    async def program() -> None:
        queue = Bare()
        async with Runtime({"b": two.agent()}, log=two.log, queue=queue, works=True):
            first = Runtime({"a": one.agent(call("work"), "Done.")}, log=one.log, queue=queue, works=True, grace=0)
            async with first:
                record = await first.start("a", "Work")
                await asyncio.sleep(5)
            await asyncio.sleep(30)
            async with Runtime({"a": one.agent(call("work"), "Done.")}, log=one.log, queue=queue, works=True) as second:
                assert (await over(second, record)).state == "completed"
        assert warnings_of(caplog) == []

    in_virtual_time(program)


# -- runs that exist, and times


async def test_a_run_that_exists_is_given_back_however_many_wait(log: MemoryEventLog) -> None:
    queue = Bare()
    async with Runtime({"a": answering()}, log=log, queue=queue, max_waiting=1) as web:
        record = await web.start("a", "Hi", key="k", owner="ann")
        assert await web.start("a", "Hi", key="k", owner="ann") == record
        for key, owner in (("other", "ann"), ("k", "bob"), (None, "ann")):
            with pytest.raises(QueueFull):
                await web.start("a", "Hi", key=key, owner=owner)
    assert len(await log.list_runs()) == 1
    assert [task_id for task_id, *_ in queue.rung] == [record.task_id] * 2


async def test_the_queue_tells_whether_it_is_time_and_not_the_clock_of_who_rings(
    log: MemoryEventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Bare()
    in_an_hour = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    monkeypatch.setattr(_bells.time, "time", lambda: in_an_hour.timestamp() + 3600)
    async with Runtime({"a": answering()}, log=log, queue=queue) as web:
        await web.start("a", "Hi", at=in_an_hour)
    assert [at for _, _, at, *_ in queue.rung] == [in_an_hour]
