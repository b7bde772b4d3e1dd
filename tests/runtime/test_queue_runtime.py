"""A runtime with a queue: replicas that start runs, and workers that carry them out."""

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
from rxloop.runtime import executor as _driving
from rxloop.server import api
from rxloop.testing import ScriptedModel, call, virtual_time
from support.processes.machines import two_machines
from support.queues import Bare


@pytest.fixture
def log() -> MemoryEventLog:
    return MemoryEventLog()


def agent(*turns: Any, **options: Any) -> Agent[Any, Any]:
    return Agent(ScriptedModel(*turns), thoughts=False, **options)


def answering() -> Agent[Any, Any]:
    return agent(*["Hello."] * 50)


@tool
async def work() -> str:
    """Takes a minute."""
    await asyncio.sleep(60)
    return "done"


async def over(runtime: Runtime, record: RunRecord) -> RunRecord:
    await runtime.follow(record.task_id)
    return await runtime.get_record(record.task_id)


async def test_a_replica_with_a_queue_starts_runs_and_drives_none(log: MemoryEventLog) -> None:
    queue = Bare()
    async with Runtime({"a": answering()}, log=log, queue=queue, adopt_every=0) as web:
        record = await web.start("a", "Hi", owner="ann")
        for _ in range(20):
            await asyncio.sleep(0)
        assert (await web.get_record(record.task_id)).state == "submitted"
        assert not web.drives(record.task_id)
    assert queue.rung == [(record.task_id, 0, None, "ann", "a", None)]


async def test_a_worker_carries_out_what_another_replica_has_started(log: MemoryEventLog) -> None:
    queue = Bare()
    async with (
        Runtime({"a": answering()}, log=log, queue=queue) as web,
        Runtime({"a": answering()}, log=log, queue=queue, works=True),
    ):
        text = web.follow((await web.start("a", "Hi")).task_id).pipe(op.text())
        assert "".join([part async for part in text]) == "Hello."


def test_a_queue_that_loses_bells_loses_no_run(log: MemoryEventLog) -> None:
    with virtual_time() as time:

        async def program() -> None:
            queue = Bare(lost=0.7, doubled=0.3, shuffled=True)
            worker = Runtime({"a": answering()}, log=log, queue=queue, works=True, concurrency=4)
            async with Runtime({"a": answering()}, log=log, queue=queue) as web, worker:
                started = [await web.start("a", "Hi") for _ in range(30)]
                ended = await asyncio.gather(*(over(web, record) for record in started))
                assert {record.state for record in ended} == {"completed"}
                assert {record.attempt for record in ended} == {1}

        time.run(program())


async def test_a_bell_that_rings_thrice_and_out_of_order_begins_each_run_once(log: MemoryEventLog) -> None:
    queue = Bare(doubled=1, shuffled=True)
    async with (
        Runtime({"a": answering()}, log=log, queue=queue) as web,
        Runtime({"a": answering()}, log=log, queue=queue, works=True, concurrency=3),
        Runtime({"a": answering()}, log=log, queue=queue, works=True, concurrency=3),
    ):
        started = [await web.start("a", "Hi", context_id=f"c{number % 4}") for number in range(16)]
        ended = await asyncio.gather(*(over(web, record) for record in started))
        assert {(record.state, record.attempt) for record in ended} == {("completed", 1)}
        for context in range(4):
            runs = await log.list_runs(context_id=f"c{context}")
            first = [(await log.read(run.task_id))[1].timestamp for run in runs]
            assert first == sorted(first)


def test_a_run_that_waits_for_an_earlier_one_takes_no_place(log: MemoryEventLog) -> None:
    with virtual_time() as time:

        async def program() -> None:
            queue = Bare()
            slow = agent(call("work"), "Done.", "Later.", tools=[work])
            worker = Runtime({"slow": slow, "quick": answering()}, log=log, queue=queue, works=True, concurrency=2)
            async with Runtime({"slow": slow, "quick": answering()}, log=log, queue=queue) as web, worker:
                first = await web.start("slow", "Work", context_id="bob")
                behind = [await web.start("quick", "Hi", context_id="bob") for _ in range(3)]
                other = await web.start("quick", "Hi")
                begun = asyncio.get_running_loop().time()
                assert (await over(web, other)).state == "completed"
                assert asyncio.get_running_loop().time() < begun + 30
                for record in (first, *behind):
                    assert (await over(web, record)).state == "completed"

        time.run(program())


def test_a_worker_that_goes_away_rings_for_what_it_leaves() -> None:
    one, two = two_machines()
    with virtual_time() as time:

        async def program() -> None:
            queue = Bare()
            worker = Runtime({"a": one.agent(call("work"), "Done.")}, log=one.log, queue=queue, works=True, grace=4)
            async with Runtime({"a": two.agent()}, log=two.log, queue=queue) as web:
                async with worker:
                    record = await web.start("a", "Work")
                    await asyncio.sleep(1)
                    assert worker.drives(record.task_id)
                assert (await web.get_record(record.task_id)).state == "working"
                rest = two.agent(call("work"), "Done.")
                async with Runtime({"a": rest}, log=two.log, queue=queue, works=True):
                    ended = await over(web, record)
                assert (ended.state, ended.attempt) == ("completed", 2)

        time.run(program())


async def test_a_bell_for_a_run_that_goes_on_elsewhere_is_answered_at_once() -> None:
    one, two = two_machines()
    queue = Bare()
    async with Runtime({"a": one.agent(call("work"), "Done.")}, log=one.log, queue=queue, works=True, grace=0) as first:
        record = await first.start("a", "Work")
        async for event in first.follow(record.task_id):
            if event.kind == "tool-start":
                break
        async with Runtime({"a": two.agent()}, log=two.log, queue=queue, works=True) as second:
            for _ in range(100):
                await second._driving._answer(record.task_id)
            assert not second.drives(record.task_id)


async def test_more_than_may_wait_is_refused(log: MemoryEventLog) -> None:
    async with Runtime({"a": answering()}, log=log, queue=Bare(), max_waiting=3) as web:
        for _ in range(3):
            await web.start("a", "Hi")
        with pytest.raises(QueueFull, match="3 runs wait for a worker"):
            await web.start("a", "Hi")
    assert len(await log.list_runs()) == 3


async def test_the_priority_and_the_time_of_a_run_are_rung_with_and_kept(log: MemoryEventLog) -> None:
    queue = Bare()
    later = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    async with Runtime({"a": answering()}, log=log, queue=queue, version="7") as web:
        record = await web.start("a", "Hi", priority=5, at=later, metadata={"mine": 1})
        assert (await web.get_record(record.task_id)).metadata["mine"] == 1
        assert queue.rung == [(record.task_id, 5, later, None, "a", "7")]
        with pytest.raises(ConfigurationError, match="no time zone"):
            await web.start("a", "Hi", at=datetime(2030, 1, 1))  # noqa: DTZ001
        with pytest.raises(ConfigurationError, match="not yours"):
            await web.start("a", "Hi", metadata={"rxloop:queue": {}})


@pytest.mark.parametrize("priority", [1_000_001, -(2**31), 0.0, 1.5, True, "5", None])
async def test_a_priority_that_a_queue_cannot_have_is_refused(log: MemoryEventLog, priority: Any) -> None:
    async with Runtime({"a": answering()}, log=log, queue=Bare()) as web:
        with pytest.raises(ConfigurationError, match="whole number from -1,000,000 to 1,000,000"):
            await web.start("a", "Hi", priority=priority)
    assert not await log.list_runs()


async def test_what_waits_for_another_version_does_not_count_when_too_much_waits(log: MemoryEventLog) -> None:
    class Counting(Bare):
        async def waiting(self, version: str | None = None) -> int:
            return {"7": 3, "8": 0}[version or ""]

    queue = Counting()
    async with Runtime({"a": answering()}, log=log, queue=queue, version="8", max_waiting=3) as web:
        await web.start("a", "Hi")
    async with Runtime({"a": answering()}, log=log, queue=queue, version="7", max_waiting=3) as web:
        with pytest.raises(QueueFull):
            await web.start("a", "Hi")


async def test_priority_needs_a_queue(log: MemoryEventLog) -> None:
    async with Runtime({"a": answering()}, log=log) as runtime:
        with pytest.raises(ConfigurationError, match="wait in a queue"):
            await runtime.start("a", "Hi", priority=1)
    with pytest.raises(ConfigurationError, match="needs a queue"):
        Runtime({"a": answering()}, log=log, works=False)


async def test_a_run_stays_with_workers_of_its_version(log: MemoryEventLog) -> None:
    queue = Bare()
    async with Runtime({"a": answering()}, log=log, queue=queue, version="1") as web:
        record = await web.start("a", "Hi")
        async with Runtime({"a": answering()}, log=log, queue=queue, works=True, version="2"):
            for _ in range(50):
                await asyncio.sleep(0)
        assert (await web.get_record(record.task_id)).state == "submitted"
        await queue.enqueue(record.task_id)
        async with Runtime({"a": answering()}, log=log, queue=queue, works=True, version="1"):
            assert (await over(web, record)).state == "completed"


async def test_a_worker_asks_its_queue_for_the_bells_of_its_agents_and_its_version(log: MemoryEventLog) -> None:
    class Asked(Bare):
        options: dict[str, Any]

        async def serve(self, settle: Callable[[str], Awaitable[None]], **options: Any) -> None:
            self.options = options
            await super().serve(settle, **options)

    queue = Asked()
    async with Runtime({"a": answering(), "b": answering()}, log=log, queue=queue, works=True, version="2"):
        await asyncio.sleep(0)
    assert [*queue.options.pop("agents")] == ["a", "b"]
    assert queue.options == {"concurrency": 32, "version": "2"}


async def test_an_answer_rings_for_a_worker(log: MemoryEventLog) -> None:
    @tool(approve=True)
    async def pay() -> str:
        """Pays."""
        return "paid"

    queue = Bare()
    worker = Runtime({"a": agent(call("pay"), "Done.", tools=[pay])}, log=log, queue=queue, works=True)
    async with Runtime({"a": answering()}, log=log, queue=queue) as web, worker:
        record = await web.start("a", "Pay")
        async for event in web.follow(record.task_id):
            if event.kind == "input-required":
                await web.answer(record.task_id, {event.input_id: True})
        assert (await web.get_record(record.task_id)).state == "completed"


async def test_a_client_is_told_to_come_back_when_too_much_waits(log: MemoryEventLog) -> None:
    async with Runtime({"a": answering()}, log=log, queue=Bare(), max_waiting=1) as web:
        app = api(web)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://web") as client:
            first = await client.post("/runs", json={"input": "Hi"})
            second = await client.post("/runs", json={"input": "Hi"})
    assert (first.status_code, second.status_code, second.json()["error"]["code"]) == (202, 429, "busy")
    assert second.headers["retry-after"] == "5"


class Deaf(Bare):
    """Takes the first cancellation for something else."""

    async def serve(self, settle: Callable[[str], Awaitable[None]], **options: Any) -> None:
        with suppress(asyncio.CancelledError):
            await super().serve(settle, **options)
        await super().serve(settle, **options)


def test_a_queue_that_does_not_listen_at_first_is_stopped(log: MemoryEventLog) -> None:
    with virtual_time() as time:

        async def program() -> None:
            async with Runtime({"a": answering()}, log=log, queue=Deaf(), works=True):
                await asyncio.sleep(1)

        time.run(program())
        assert time.now < 20


def test_runs_that_cannot_go_on_in_a_worker_keep_no_others_waiting(log: MemoryEventLog) -> None:
    broken = True

    def deps(record: RunRecord) -> None:
        if record.owner == "bad" and broken:
            raise ValueError("there is no such tenant")

    async def program() -> None:
        nonlocal broken
        queue = Bare()
        async with (
            Runtime({"a": answering()}, log=log, queue=queue) as web,
            Runtime({"a": answering()}, log=log, queue=queue, deps=deps, works=True, concurrency=2),
        ):
            bad = [await web.start("a", "Hi", owner="bad") for _ in range(4)]
            good = await web.start("a", "Hi", owner="good")
            async with asyncio.timeout(1):
                assert (await over(web, good)).state == "completed"
            # They ring again meanwhile, as all that waits does.
            await asyncio.sleep(100)
            async with asyncio.timeout(1):
                assert (await over(web, await web.start("a", "Hi", owner="good"))).state == "completed"
            broken = False
            async with asyncio.timeout(61):
                assert {(await over(web, record)).state for record in bad} == {"completed"}

    with virtual_time() as time:
        time.run(program(), timeout=1_000)


def test_a_worker_in_which_no_run_can_go_on_takes_only_so_many(log: MemoryEventLog) -> None:
    def deps(record: RunRecord) -> None:
        raise ValueError("there are none")

    async def program() -> None:
        queue = Bare()
        async with (
            Runtime({"a": answering()}, log=log, queue=queue) as web,
            Runtime({"a": answering()}, log=log, queue=queue, deps=deps, works=True, concurrency=2),
        ):
            for _ in range(50):
                await web.start("a", "Hi")
            await asyncio.sleep(100)
            assert len(set(queue.answered)) == 2 * 10 + 2

    with virtual_time() as time:
        time.run(program(), timeout=1_000)


@pytest.fixture
def few_at_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look rings for 20 runs, and takes in 100 where most of so few are not to be rung for."""
    monkeypatch.setattr(_driving, "_BELLS", 20)
    monkeypatch.setattr(_driving, "_WIDE", 100)


@pytest.mark.usefixtures("few_at_a_look")
@pytest.mark.parametrize(("name", "days"), [("a", 30), ("b", 0)])
def test_a_run_without_a_bell_is_found_behind_however_many_that_are_for_later_or_for_others(
    log: MemoryEventLog, name: str, days: int
) -> None:
    async def program() -> None:
        queue = Bare()
        async with Runtime({"a": answering(), "b": answering()}, log=log, queue=queue) as web:
            for _ in range(350):
                await web.start(name, "Hi", at=datetime.now(UTC) + timedelta(days=days))
            lost = await web.start("a", "Hi")
            queue.empty()
            # Its first look comes too soon, and the fourth one after that gets there.
            async with Runtime({"a": answering()}, log=log, queue=queue, works=True), asyncio.timeout(20 + 4 * 10 + 5):
                assert (await over(web, lost)).state == "completed"

    with virtual_time() as time:
        time.run(program(), timeout=1_000)


@pytest.mark.usefixtures("few_at_a_look")
def test_a_worker_goes_round_all_that_waits_before_it_rings_for_a_run_again(log: MemoryEventLog) -> None:
    class Unheard(Bare):
        async def serve(self, settle: Callable[[str], Awaitable[None]], **options: Any) -> None:
            await asyncio.Event().wait()

        async def waiting(self, version: str | None = None) -> int:
            return 0

    async def program() -> None:
        queue = Unheard()
        async with Runtime({"a": answering(), "b": answering()}, log=log, queue=queue) as web:
            # So many for others that a look takes in more than it rings for.
            started = [(await web.start(name, "Hi")).task_id for name in ["a", "b", "b", "b"] * 30]
            await asyncio.sleep(20)
            async with Runtime({"a": answering()}, log=log, queue=queue, works=True, adopt_every=1):
                await asyncio.sleep(25)
        rung = [task_id for task_id, *_ in queue.rung[len(started) :]]
        ours = started[::4]
        assert rung == [*ours, *ours[:20]]

    with virtual_time() as time:
        time.run(program())
