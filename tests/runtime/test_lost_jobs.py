"""Late, misdirected and missing jobs, and orphaned runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rxloop import Agent, MemoryEventLog, RunRecord, Runtime, tool
from rxloop.errors import QueueFull
from rxloop.runtime import jobs
from rxloop.testing import ScriptedModel, call, virtual_time
from support.processes.machines import two_machines
from support.queues import MemoryQueue

NEVER = 100_000.0
"""Scan interval for tests that rely on jobs alone."""


@pytest.fixture
def log() -> MemoryEventLog:
    return MemoryEventLog()


def agent(*turns: Any, **options: Any) -> Agent[Any, Any]:
    return Agent(ScriptedModel(*turns), thoughts=False, **options)


def answering_agent() -> Agent[Any, Any]:
    return agent(*["Hello."] * 500)


def in_virtual_time(program: Callable[[], Awaitable[None]]) -> None:
    with virtual_time() as time:
        time.run(program(), timeout=3_000)


def now() -> float:
    return asyncio.get_running_loop().time()


async def wait_for_end(runtime: Runtime, record: RunRecord) -> RunRecord:
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


class StaleLog(MemoryEventLog):
    """Log whose first matching list of runs is returned late, when it is outdated."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._delayed_options = options
        self.has_listed, self.go = asyncio.Event(), asyncio.Event()

    async def list_runs(self, **options: Any) -> Sequence[RunRecord]:
        records = await super().list_runs(**options)
        if not self.has_listed.is_set() and self._delayed_options.items() <= options.items():
            self.has_listed.set()
            await self.go.wait()
        return records


# -- jobs that arrive while their run is processed


def test_job_that_arrives_while_its_run_is_found_waiting_is_processed_again() -> None:
    async def program() -> None:
        log, queue = StaleLog(unfinished=True), MemoryQueue()
        clerk = answering_agent().with_log(log).with_name("a")
        first = await clerk.submit("Hi", context_id="bob")
        async with Runtime({"a": answering_agent()}, log=log, queue=queue, is_worker=True, adopt_every=NEVER) as worker:
            second = await worker.start("a", "Hi", context_id="bob")
            await log.has_listed.wait()  # seen as working
            await clerk.get_run(first.task_id).execute()
            await queue.enqueue(second.task_id)
            await queue.wait_for_executed(2)
            log.go.set()
            assert (await wait_for_end(worker, second)).state == "completed"

    in_virtual_time(program)


def test_job_that_arrives_while_the_next_run_is_enqueued_is_processed_again() -> None:
    async def program() -> None:
        log, queue = StaleLog(states=("submitted",)), MemoryQueue()
        paying_agent = agent(call("pay"), "Paid.", tools=[pay])
        async with Runtime({"a": paying_agent}, log=log, queue=queue, is_worker=True, adopt_every=NEVER) as worker:
            record = await worker.start("a", "Pay")
            await log.has_listed.wait()  # waiting for an answer, with its execution about to end
            [question] = [event for event in await log.read(record.task_id) if event.kind == "input-required"]
            await worker.answer(record.task_id, {question.input_id: True})  # pyright: ignore[reportAttributeAccessIssue]
            await queue.wait_for_executed(2)
            log.go.set()
            async for event in worker.follow(record.task_id):
                if event.kind == "tool-complete":
                    break
            assert (await wait_for_end(worker, record)).state == "completed"

    in_virtual_time(program)


@pytest.mark.parametrize("shuffled", [False, True])
def test_runs_of_a_conversation_do_not_enqueue_each_other_endlessly(log: MemoryEventLog, shuffled: bool) -> None:
    class LimitedQueue(MemoryQueue):
        """Queue that detects endless loops."""

        async def enqueue(self, task_id: str, **options: Any) -> None:
            assert len(self.enqueued) < 5_000
            await super().enqueue(task_id, **options)

    async def program() -> None:
        queue = LimitedQueue(duplication=1, shuffles=shuffled)
        agents = {"slow": agent(call("work"), "Done.", tools=[work]), "a": answering_agent()}
        workers = [Runtime(agents, log=log, queue=queue, is_worker=True, concurrency=4) for _ in range(2)]
        async with Runtime(agents, log=log, queue=queue) as server, workers[0], workers[1]:
            records = [await server.start(name, "Hi", context_id="bob") for name in ("slow", "a", "a", "a")]
            await asyncio.sleep(15)
            assert len(queue.enqueued) == len(records)
            assert {(await wait_for_end(server, record)).state for record in records} == {"completed"}
            await asyncio.sleep(60)
            job_count = len(queue.enqueued)
            await asyncio.sleep(600)
            assert len(queue.enqueued) == job_count

    in_virtual_time(program)


# -- failing queues


class MuteQueue(MemoryQueue):
    """Queue that fails while mute."""

    mute = True

    def __init__(self) -> None:
        super().__init__()
        self.failed: list[str] = []

    async def enqueue(self, task_id: str, **options: Any) -> None:
        if self.mute:
            self.failed.append(task_id)
            raise OSError("no connection")
        await super().enqueue(task_id, **options)


def test_failed_enqueue_is_logged_and_its_run_is_found_by_a_scan(
    log: MemoryEventLog, caplog: pytest.LogCaptureFixture
) -> None:
    async def program() -> None:
        queue = MuteQueue()
        turns = {
            "work": [call("work"), "Done."],
            "pay": [call("pay"), "Paid.", "Hello."],
            "hi": ["One.", "Two.", "Three."],
        }
        agents = {name: agent(*answers, tools=[work, pay]) for name, answers in turns.items()}
        async with (
            Runtime(agents, log=log, queue=queue) as server,
            Runtime(agents, log=log, queue=queue, is_worker=True, adopt_every=1),
        ):
            records = [
                await server.start("work", "Work", context_id="bob"),
                await server.start("hi", "Hi", context_id="bob"),
                await server.start("pay", "Pay"),
            ]
            queue.mute = False
            await asyncio.sleep(31)
            assert [record.state for record in await log.list_runs()] == ["working", "submitted", "input-required"]

            queue.mute = True
            paying_id = records[2].task_id
            [question] = [event for event in await log.read(paying_id) if event.kind == "input-required"]
            await server.answer(paying_id, {question.input_id: True})  # pyright: ignore[reportAttributeAccessIssue]
            await wait_for_end(server, records[2])
            forked = await server.fork(paying_id, 1, prompt="Hi")
            assert (await wait_for_end(server, forked)).state == "completed"
            await wait_for_end(server, records[0])
            await asyncio.sleep(1)
            queue.mute = False
            assert (await wait_for_end(server, records[1])).state == "completed"
            assert now() < 31 + 600 + 31
        messages = [
            record.getMessage()
            for record in caplog.records
            if "found by a worker: no connection" in record.getMessage()
        ]
        assert len(messages) == len(queue.failed)
        assert {*queue.failed} == {record.task_id for record in (*records, forked)}

    in_virtual_time(program)


def test_unavailable_queue_is_tried_once_per_scan(log: MemoryEventLog) -> None:
    async def program() -> None:
        queue = MuteQueue()
        async with Runtime({"a": answering_agent()}, log=log, queue=queue) as server:
            for _ in range(20):
                await server.start("a", "Hi")
            await asyncio.sleep(25)
            async with Runtime({"a": answering_agent()}, log=log, queue=queue, is_worker=True):
                assert len(queue.failed) == 20 + 1

    in_virtual_time(program)


def test_runs_of_an_emptied_queue_are_enqueued_again_within_half_a_minute(log: MemoryEventLog) -> None:
    async def program() -> None:
        queue = MemoryQueue()
        async with Runtime({"a": answering_agent()}, log=log, queue=queue) as server:
            async with Runtime({"b": answering_agent()}, log=log, queue=queue, is_worker=True):
                await asyncio.sleep(3)
            async with Runtime(
                {"a": answering_agent()}, log=log, queue=MemoryQueue(), is_worker=True, concurrency=4
            ) as worker:
                await asyncio.sleep(3)
                records = [await server.start("a", "Hi") for _ in range(50)]
                worker._executor._queue = queue  # the emptied queue
                queue.clear()
                await asyncio.sleep(31)
                enqueued = {task_id for task_id, *_ in queue.enqueued[len(records) :]}
                assert enqueued == {record.task_id for record in records}

    in_virtual_time(program)


class ScanLog(MemoryEventLog):
    """Log that records the limit and the time of each scan for submitted runs."""

    def __init__(self) -> None:
        super().__init__()
        self.scans: list[tuple[float, int | None]] = []

    async def list_orphaned(self, *, submitted_limit: int | None = None, **submitted: Any) -> Sequence[RunRecord]:
        self.scans.append((now(), submitted_limit))
        return await super().list_orphaned(submitted_limit=submitted_limit, **submitted)


@pytest.mark.parametrize(("job_count", "scan_count"), [(199, 7), (200, 2)])
def test_scans_for_submitted_runs_are_rare_and_limited(job_count: int, scan_count: int) -> None:
    class LongQueue(MemoryQueue):
        async def waiting(self, version: str | None = None) -> int:
            return job_count

    async def program() -> None:
        log = ScanLog()
        async with Runtime({"a": answering_agent()}, log=log, queue=LongQueue(), is_worker=True, adopt_every=1):
            await asyncio.sleep(61.5)
        assert len(log.scans) == 62  # for runs of dead workers
        assert [limit for _, limit in log.scans if limit != 0] == [200] * scan_count

    in_virtual_time(program)


# -- jobs for other workers


def test_job_reaches_the_worker_that_hosts_its_agent(log: MemoryEventLog) -> None:
    async def program() -> None:
        queue = MemoryQueue()
        agents = {"a": answering_agent(), "b": answering_agent()}
        other_workers = [
            Runtime({"a": answering_agent()}, log=log, queue=queue, is_worker=True, concurrency=1) for _ in range(3)
        ]
        async with (
            Runtime(agents, log=log, queue=queue) as server,
            other_workers[0],
            other_workers[1],
            other_workers[2],
        ):
            async with Runtime({"b": answering_agent()}, log=log, queue=queue, is_worker=True, concurrency=1):
                start = now()
                for _ in range(10):
                    assert (await wait_for_end(server, await server.start("b", "Hi"))).state == "completed"
                assert now() < start + 100

    in_virtual_time(program)


# -- orphaned runs


def list_warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_foreign_orphaned_run_is_logged_once_after_a_while(
    log: MemoryEventLog, caplog: pytest.LogCaptureFixture
) -> None:
    async def program() -> None:
        queue = MemoryQueue()
        agents = {"a": answering_agent(), "b": answering_agent()}
        async with Runtime(agents, log=log, queue=queue, version="1") as server:
            runs = [await server.start("a", "Hi"), await server.start("b", "Hi")]
            async with Runtime({"a": answering_agent()}, log=log, queue=queue, is_worker=True, version="2"):
                await asyncio.sleep(60)
                assert list_warnings(caplog) == []
                await asyncio.sleep(600)
        first, second = list_warnings(caplog)
        assert f"Orphaned run {runs[0].task_id} was started by version '1', but this process is version '2'" in first
        assert f"Run {runs[1].task_id} is orphaned and needs agent 'b'" in second

    in_virtual_time(program)


def test_foreign_run_that_is_orphaned_again_is_logged_again(
    log: MemoryEventLog, caplog: pytest.LogCaptureFixture
) -> None:
    async def program() -> None:
        queue = MemoryQueue()
        async with (
            Runtime({"a": answering_agent(), "b": answering_agent()}, log=log, queue=queue) as server,
            Runtime({"a": answering_agent()}, log=log, queue=queue, is_worker=True),
        ):
            for warning_count in (1, 2):
                record = await server.start("b", "Hi")
                await asyncio.sleep(300)
                assert len(list_warnings(caplog)) == warning_count
                async with Runtime({"b": answering_agent()}, log=log, queue=queue, is_worker=True):
                    assert (await wait_for_end(server, record)).state == "completed"
                await asyncio.sleep(60)

    in_virtual_time(program)


def test_run_that_waits_for_a_busy_worker_is_not_logged(log: MemoryEventLog, caplog: pytest.LogCaptureFixture) -> None:
    async def program() -> None:
        queue = MemoryQueue()
        slow = agent(*[call("work"), "Done."] * 3, tools=[work])
        async with (
            Runtime({"b": slow}, log=log, queue=queue, is_worker=True, concurrency=1) as busy,
            Runtime({"a": answering_agent()}, log=log, queue=queue, is_worker=True),
        ):
            for _ in range(2):
                await busy.start("b", "Work")
            await asyncio.sleep(500)
            assert {record.state for record in await log.list_runs()} == {"working", "submitted"}
        assert list_warnings(caplog) == []

    in_virtual_time(program)


def test_run_that_waits_for_an_earlier_run_is_not_logged(log: MemoryEventLog, caplog: pytest.LogCaptureFixture) -> None:
    async def program() -> None:
        queue = MemoryQueue()
        slow = agent(call("work"), "Done.", tools=[work])
        async with (
            Runtime({"a": slow, "b": answering_agent()}, log=log, queue=queue) as server,
            Runtime({"a": slow}, log=log, queue=queue, is_worker=True),
            Runtime({"b": answering_agent()}, log=log, queue=queue, is_worker=True),
        ):
            await server.start("a", "Work", context_id="bob")
            queued = await server.start("b", "Hi", context_id="bob")
            await asyncio.sleep(500)
            assert (await server.get_record(queued.task_id)).state == "submitted"
            assert list_warnings(caplog) == []
            assert (await wait_for_end(server, queued)).state == "completed"

    in_virtual_time(program)


def test_run_of_a_dead_worker_is_not_logged_before_its_takeover(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first_machine, second_machine = two_machines()

    async def program() -> None:
        queue = MemoryQueue()
        async with Runtime({"b": second_machine.agent()}, log=second_machine.log, queue=queue, is_worker=True):
            first = Runtime(
                {"a": first_machine.agent(call("work"), "Done.")},
                log=first_machine.log,
                queue=queue,
                is_worker=True,
                grace=0,
            )
            async with first:
                record = await first.start("a", "Work")
                await asyncio.sleep(5)
            await asyncio.sleep(30)
            async with Runtime(
                {"a": first_machine.agent(call("work"), "Done.")}, log=first_machine.log, queue=queue, is_worker=True
            ) as second:
                assert (await wait_for_end(second, record)).state == "completed"
        assert list_warnings(caplog) == []

    in_virtual_time(program)


# -- existing runs, and times


async def test_start_returns_an_existing_run_when_the_queue_is_full(log: MemoryEventLog) -> None:
    queue = MemoryQueue()
    async with Runtime({"a": answering_agent()}, log=log, queue=queue, max_waiting=1) as server:
        record = await server.start("a", "Hi", key="k", owner="ann")
        assert await server.start("a", "Hi", key="k", owner="ann") == record
        for key, owner in (("other", "ann"), ("k", "bob"), (None, "ann")):
            with pytest.raises(QueueFull):
                await server.start("a", "Hi", key=key, owner=owner)
    assert len(await log.list_runs()) == 1
    assert [task_id for task_id, *_ in queue.enqueued] == [record.task_id] * 2


async def test_time_of_a_scheduled_run_is_decided_by_the_queue(
    log: MemoryEventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = MemoryQueue()
    in_an_hour = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    monkeypatch.setattr(jobs.time, "time", lambda: in_an_hour.timestamp() + 3600)
    async with Runtime({"a": answering_agent()}, log=log, queue=queue) as server:
        await server.start("a", "Hi", at=in_an_hour)
    assert [at for _, _, at, *_ in queue.enqueued] == [in_an_hour]
