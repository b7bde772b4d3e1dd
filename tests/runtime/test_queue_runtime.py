"""Runtimes with queues."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from rxloop import Agent, MemoryEventLog, RunRecord, Runtime, op, tool
from rxloop.errors import ConfigurationError, QueueFull
from rxloop.runtime import executor
from rxloop.server import api
from rxloop.testing import ScriptedModel, call, virtual_time
from support.processes.machines import two_machines
from support.queues import MemoryQueue


@pytest.fixture
def log() -> MemoryEventLog:
    return MemoryEventLog()


def agent(*turns: Any, **options: Any) -> Agent[Any, Any]:
    return Agent(ScriptedModel(*turns), thoughts=False, **options)


def answering_agent() -> Agent[Any, Any]:
    return agent(*["Hello."] * 50)


@tool
async def work() -> str:
    """Takes a minute."""
    await asyncio.sleep(60)
    return "done"


async def wait_for_end(runtime: Runtime, record: RunRecord) -> RunRecord:
    await runtime.follow(record.task_id)
    return await runtime.get_record(record.task_id)


async def test_replica_with_a_queue_starts_runs_without_executing_them(log: MemoryEventLog) -> None:
    queue = MemoryQueue()
    async with Runtime({"a": answering_agent()}, log=log, queue=queue, adopt_every=0) as server:
        record = await server.start("a", "Hi", owner="ann")
        for _ in range(20):
            await asyncio.sleep(0)
        assert (await server.get_record(record.task_id)).state == "submitted"
        assert not server.is_executing(record.task_id)
    assert queue.enqueued == [(record.task_id, 0, None, "ann", "a", None)]


async def test_worker_executes_runs_of_another_replica(log: MemoryEventLog) -> None:
    queue = MemoryQueue()
    async with (
        Runtime({"a": answering_agent()}, log=log, queue=queue) as server,
        Runtime({"a": answering_agent()}, log=log, queue=queue, is_worker=True),
    ):
        text = server.follow((await server.start("a", "Hi")).task_id).pipe(op.text())
        assert "".join([part async for part in text]) == "Hello."


def test_runs_survive_a_queue_that_loses_jobs(log: MemoryEventLog) -> None:
    with virtual_time() as time:

        async def program() -> None:
            queue = MemoryQueue(loss=0.7, duplication=0.3, shuffles=True)
            worker = Runtime({"a": answering_agent()}, log=log, queue=queue, is_worker=True, concurrency=4)
            async with Runtime({"a": answering_agent()}, log=log, queue=queue) as server, worker:
                records = [await server.start("a", "Hi") for _ in range(30)]
                ended = await asyncio.gather(*(wait_for_end(server, record) for record in records))
                assert {record.state for record in ended} == {"completed"}
                assert {record.attempt for record in ended} == {1}

        time.run(program())


async def test_duplicated_and_shuffled_jobs_start_each_run_once(log: MemoryEventLog) -> None:
    queue = MemoryQueue(duplication=1, shuffles=True)
    async with (
        Runtime({"a": answering_agent()}, log=log, queue=queue) as server,
        Runtime({"a": answering_agent()}, log=log, queue=queue, is_worker=True, concurrency=3),
        Runtime({"a": answering_agent()}, log=log, queue=queue, is_worker=True, concurrency=3),
    ):
        records = [await server.start("a", "Hi", context_id=f"c{number % 4}") for number in range(16)]
        ended = await asyncio.gather(*(wait_for_end(server, record) for record in records))
        assert {(record.state, record.attempt) for record in ended} == {("completed", 1)}
        for context in range(4):
            runs = await log.list_runs(context_id=f"c{context}")
            first = [(await log.read(run.task_id))[1].timestamp for run in runs]
            assert first == sorted(first)


def test_run_that_waits_for_an_earlier_run_occupies_no_slot(log: MemoryEventLog) -> None:
    with virtual_time() as time:

        async def program() -> None:
            queue = MemoryQueue()
            slow = agent(call("work"), "Done.", "Later.", tools=[work])
            worker = Runtime(
                {"slow": slow, "quick": answering_agent()}, log=log, queue=queue, is_worker=True, concurrency=2
            )
            async with Runtime({"slow": slow, "quick": answering_agent()}, log=log, queue=queue) as server, worker:
                first = await server.start("slow", "Work", context_id="bob")
                queued = [await server.start("quick", "Hi", context_id="bob") for _ in range(3)]
                unrelated = await server.start("quick", "Hi")
                start = asyncio.get_running_loop().time()
                assert (await wait_for_end(server, unrelated)).state == "completed"
                assert asyncio.get_running_loop().time() < start + 30
                for record in (first, *queued):
                    assert (await wait_for_end(server, record)).state == "completed"

        time.run(program())


def test_draining_worker_enqueues_its_unfinished_runs() -> None:
    first_machine, second_machine = two_machines()
    with virtual_time() as time:

        async def program() -> None:
            queue = MemoryQueue()
            worker = Runtime(
                {"a": first_machine.agent(call("work"), "Done.")},
                log=first_machine.log,
                queue=queue,
                is_worker=True,
                grace=4,
            )
            async with Runtime({"a": second_machine.agent()}, log=second_machine.log, queue=queue) as server:
                async with worker:
                    record = await server.start("a", "Work")
                    await asyncio.sleep(1)
                    assert worker.is_executing(record.task_id)
                assert (await server.get_record(record.task_id)).state == "working"
                remaining_agent = second_machine.agent(call("work"), "Done.")
                async with Runtime({"a": remaining_agent}, log=second_machine.log, queue=queue, is_worker=True):
                    ended = await wait_for_end(server, record)
                assert (ended.state, ended.attempt) == ("completed", 2)

        time.run(program())


async def test_job_for_a_run_of_another_worker_is_completed_immediately() -> None:
    first_machine, second_machine = two_machines()
    queue = MemoryQueue()
    async with Runtime(
        {"a": first_machine.agent(call("work"), "Done.")}, log=first_machine.log, queue=queue, is_worker=True, grace=0
    ) as first:
        record = await first.start("a", "Work")
        async for event in first.follow(record.task_id):
            if event.kind == "tool-start":
                break
        async with Runtime(
            {"a": second_machine.agent()}, log=second_machine.log, queue=queue, is_worker=True
        ) as second:
            for _ in range(100):
                await second._executor._handle_job(record.task_id)
            assert not second.is_executing(record.task_id)


async def test_start_raises_when_the_queue_is_full(log: MemoryEventLog) -> None:
    async with Runtime({"a": answering_agent()}, log=log, queue=MemoryQueue(), max_waiting=3) as server:
        for _ in range(3):
            await server.start("a", "Hi")
        with pytest.raises(QueueFull, match="3 runs are waiting"):
            await server.start("a", "Hi")
    assert len(await log.list_runs()) == 3


async def test_priority_and_time_of_a_run_are_enqueued_and_recorded(log: MemoryEventLog) -> None:
    queue = MemoryQueue()
    later = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    async with Runtime({"a": answering_agent()}, log=log, queue=queue, version="7") as server:
        record = await server.start("a", "Hi", priority=5, at=later, metadata={"mine": 1})
        assert (await server.get_record(record.task_id)).metadata["mine"] == 1
        assert queue.enqueued == [(record.task_id, 5, later, None, "a", "7")]
        with pytest.raises(ConfigurationError, match="must have a time zone"):
            await server.start("a", "Hi", at=datetime(2030, 1, 1))  # noqa: DTZ001
        with pytest.raises(ConfigurationError, match="is reserved"):
            await server.start("a", "Hi", metadata={"rxloop:queue": {}})


@pytest.mark.parametrize("priority", [1_000_001, -(2**31), 0.0, 1.5, True, "5", None])
async def test_start_rejects_invalid_priority(log: MemoryEventLog, priority: Any) -> None:
    async with Runtime({"a": answering_agent()}, log=log, queue=MemoryQueue()) as server:
        with pytest.raises(ConfigurationError, match="an integer from -1,000,000 to 1,000,000"):
            await server.start("a", "Hi", priority=priority)
    assert not await log.list_runs()


async def test_full_queue_is_decided_by_the_jobs_of_the_same_version(log: MemoryEventLog) -> None:
    class VersionedQueue(MemoryQueue):
        async def waiting(self, version: str | None = None) -> int:
            return {"7": 3, "8": 0}[version or ""]

    queue = VersionedQueue()
    async with Runtime({"a": answering_agent()}, log=log, queue=queue, version="8", max_waiting=3) as server:
        await server.start("a", "Hi")
    async with Runtime({"a": answering_agent()}, log=log, queue=queue, version="7", max_waiting=3) as server:
        with pytest.raises(QueueFull):
            await server.start("a", "Hi")


async def test_priority_requires_a_queue(log: MemoryEventLog) -> None:
    async with Runtime({"a": answering_agent()}, log=log) as runtime:
        with pytest.raises(ConfigurationError, match=r"require Runtime\(\.\.\., queue="):
            await runtime.start("a", "Hi", priority=1)
    with pytest.raises(ConfigurationError, match="requires a queue"):
        Runtime({"a": answering_agent()}, log=log, is_worker=False)


async def test_run_is_executed_only_by_workers_of_its_version(log: MemoryEventLog) -> None:
    queue = MemoryQueue()
    async with Runtime({"a": answering_agent()}, log=log, queue=queue, version="1") as server:
        record = await server.start("a", "Hi")
        async with Runtime({"a": answering_agent()}, log=log, queue=queue, is_worker=True, version="2"):
            for _ in range(50):
                await asyncio.sleep(0)
        assert (await server.get_record(record.task_id)).state == "submitted"
        await queue.enqueue(record.task_id)
        async with Runtime({"a": answering_agent()}, log=log, queue=queue, is_worker=True, version="1"):
            assert (await wait_for_end(server, record)).state == "completed"


async def test_worker_requests_jobs_of_its_agents_and_version(log: MemoryEventLog) -> None:
    class RecordingQueue(MemoryQueue):
        options: dict[str, Any]

        async def serve(self, execute: Callable[[str], Awaitable[None]], **options: Any) -> None:
            self.options = options
            await super().serve(execute, **options)

    queue = RecordingQueue()
    async with Runtime(
        {"a": answering_agent(), "b": answering_agent()}, log=log, queue=queue, is_worker=True, version="2"
    ):
        await asyncio.sleep(0)
    assert [*queue.options.pop("agents")] == ["a", "b"]
    assert queue.options == {"concurrency": 32, "version": "2"}


async def test_answer_enqueues_the_run(log: MemoryEventLog) -> None:
    @tool(approve=True)
    async def pay() -> str:
        """Pays."""
        return "paid"

    queue = MemoryQueue()
    worker = Runtime({"a": agent(call("pay"), "Done.", tools=[pay])}, log=log, queue=queue, is_worker=True)
    async with Runtime({"a": answering_agent()}, log=log, queue=queue) as server, worker:
        record = await server.start("a", "Pay")
        async for event in server.follow(record.task_id):
            if event.kind == "input-required":
                await server.answer(record.task_id, {event.input_id: True})
        assert (await server.get_record(record.task_id)).state == "completed"


async def test_http_client_gets_429_with_retry_after_when_the_queue_is_full(log: MemoryEventLog) -> None:
    async with Runtime({"a": answering_agent()}, log=log, queue=MemoryQueue(), max_waiting=1) as server:
        app = api(server)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://web") as client:
            first = await client.post("/runs", json={"input": "Hi"})
            second = await client.post("/runs", json={"input": "Hi"})
    assert (first.status_code, second.status_code) == (202, 429)
    assert second.json()["error"]["code"] == "busy"
    assert second.headers["retry-after"] == "5"


class StubbornQueue(MemoryQueue):
    """Queue that ignores one cancellation."""

    async def serve(self, execute: Callable[[str], Awaitable[None]], **options: Any) -> None:
        with suppress(asyncio.CancelledError):
            await super().serve(execute, **options)
        await super().serve(execute, **options)


def test_queue_that_ignores_the_first_cancellation_is_stopped(log: MemoryEventLog) -> None:
    with virtual_time() as time:

        async def program() -> None:
            async with Runtime({"a": answering_agent()}, log=log, queue=StubbornQueue(), is_worker=True):
                await asyncio.sleep(1)

        time.run(program())
        assert time.now < 20


def test_failing_runs_do_not_delay_other_runs_of_a_worker(log: MemoryEventLog) -> None:
    broken = True

    def deps(record: RunRecord) -> None:
        if record.owner == "bad" and broken:
            raise ValueError("there is no such tenant")

    async def program() -> None:
        nonlocal broken
        queue = MemoryQueue()
        async with (
            Runtime({"a": answering_agent()}, log=log, queue=queue) as server,
            Runtime({"a": answering_agent()}, log=log, queue=queue, deps=deps, is_worker=True, concurrency=2),
        ):
            bad = [await server.start("a", "Hi", owner="bad") for _ in range(4)]
            good = await server.start("a", "Hi", owner="good")
            async with asyncio.timeout(1):
                assert (await wait_for_end(server, good)).state == "completed"
            # The failing runs are enqueued again meanwhile, like all waiting runs.
            await asyncio.sleep(100)
            async with asyncio.timeout(1):
                assert (await wait_for_end(server, await server.start("a", "Hi", owner="good"))).state == "completed"
            broken = False
            async with asyncio.timeout(61):
                assert {(await wait_for_end(server, record)).state for record in bad} == {"completed"}

    with virtual_time() as time:
        time.run(program(), timeout=1_000)


def test_worker_whose_runs_all_fail_accepts_a_limited_number(log: MemoryEventLog) -> None:
    def deps(record: RunRecord) -> None:
        raise ValueError("there are none")

    async def program() -> None:
        queue = MemoryQueue()
        async with (
            Runtime({"a": answering_agent()}, log=log, queue=queue) as server,
            Runtime({"a": answering_agent()}, log=log, queue=queue, deps=deps, is_worker=True, concurrency=2),
        ):
            for _ in range(50):
                await server.start("a", "Hi")
            await asyncio.sleep(100)
            assert len(set(queue.executed)) == 2 * 10 + 2

    with virtual_time() as time:
        time.run(program(), timeout=1_000)


@pytest.fixture
def small_scans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit a scan to 20 jobs, or to 100 runs if few of them need a job."""
    monkeypatch.setattr(executor, "_ENOUGH_JOBS", 20)
    monkeypatch.setattr(executor, "_MAX_SEARCHED_RUNS", 100)


@pytest.mark.usefixtures("small_scans")
@pytest.mark.parametrize(("name", "days"), [("a", 30), ("b", 0)])
def test_run_without_a_job_is_found_behind_scheduled_and_foreign_runs(
    log: MemoryEventLog, name: str, days: int
) -> None:
    async def program() -> None:
        queue = MemoryQueue()
        async with Runtime({"a": answering_agent(), "b": answering_agent()}, log=log, queue=queue) as server:
            for _ in range(350):
                await server.start(name, "Hi", at=datetime.now(UTC) + timedelta(days=days))
            lost_run = await server.start("a", "Hi")
            queue.clear()
            # Scan 1 is too early, and scan 5 reaches this run.
            async with (
                Runtime({"a": answering_agent()}, log=log, queue=queue, is_worker=True),
                asyncio.timeout(20 + 4 * 10 + 5),
            ):
                assert (await wait_for_end(server, lost_run)).state == "completed"

    with virtual_time() as time:
        time.run(program(), timeout=1_000)


@pytest.mark.usefixtures("small_scans")
def test_worker_scans_all_waiting_runs_before_it_enqueues_a_run_again(log: MemoryEventLog) -> None:
    class IgnoredQueue(MemoryQueue):
        async def serve(self, execute: Callable[[str], Awaitable[None]], **options: Any) -> None:
            await asyncio.Event().wait()

        async def waiting(self, version: str | None = None) -> int:
            return 0

    async def program() -> None:
        queue = IgnoredQueue()
        async with Runtime({"a": answering_agent(), "b": answering_agent()}, log=log, queue=queue) as server:
            # Foreign runs outnumber own runs, so scans cover more runs than they enqueue.
            records = [(await server.start(name, "Hi")).task_id for name in ["a", "b", "b", "b"] * 30]
            await asyncio.sleep(20)
            async with Runtime({"a": answering_agent()}, log=log, queue=queue, is_worker=True, adopt_every=1):
                await asyncio.sleep(25)
        enqueued = [task_id for task_id, *_ in queue.enqueued[len(records) :]]
        own_ids = records[::4]
        assert enqueued == [*own_ids, *own_ids[:20]]

    with virtual_time() as time:
        time.run(program())
