"""Runs managed by a runtime."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from rxloop import (
    Agent,
    CustomEvent,
    Event,
    MemoryEventLog,
    RunContext,
    RunRecord,
    Runtime,
    SqliteEventLog,
    follow,
    op,
    tool,
)
from rxloop.errors import ConfigurationError, InvalidInput, RxloopError, UnknownRun
from rxloop.testing import ScriptedModel, call, frames, virtual_time
from support.processes.machines import MachineLog, SharedState
from support.run_checks import assert_no_tasks
from support.slow_agent import agent, pay, work


def kinds(events: Sequence[Event]) -> list[str]:
    return [event.kind for event in events if event.durable]


async def test_run_completes_without_a_reader(log: MemoryEventLog) -> None:
    async with Runtime({"a": agent("Hello.")}, log=log) as runtime:
        record = await runtime.start("a", "Hi")
        assert (await log.read(record.task_id))[0].kind == "task"  # durable when `start` returns
        await runtime.follow(record.task_id)
        assert (await runtime.get_record(record.task_id)).state == "completed"
    await assert_no_tasks()


async def test_follower_gets_all_events_of_a_run(log: MemoryEventLog) -> None:
    async with Runtime({"a": agent(frames("--Hel--lo.|"))}, log=log) as runtime:
        record = await runtime.start("a", "Hi")
        live = [event async for event in runtime.follow(record.task_id)]
        replayed = [event async for event in runtime.follow(record.task_id)]
    assert kinds(live) == kinds(replayed) == [event.kind for event in await log.read(record.task_id)]
    assert [event.kind for event in live].count("content-delta") == 2


async def test_start_with_the_same_key_returns_the_same_run(log: MemoryEventLog) -> None:
    async with Runtime({"a": agent("one", "two")}, log=log) as runtime:
        first, second = await asyncio.gather(*(runtime.start("a", "Hi", key="k") for _ in range(2)))
        different = await runtime.start("a", "Hi", key="another")
        assert first.task_id == second.task_id != different.task_id
        await runtime.follow(first.task_id)
        repeated = await runtime.start("a", "Hi", key="k")
        assert repeated.task_id == first.task_id
        assert repeated.state == "completed"
        await runtime.follow(different.task_id)
    assert len(await log.list_runs()) == 2


async def test_same_key_of_different_owners_starts_different_runs(log: MemoryEventLog) -> None:
    async with Runtime({"a": agent("one", "two", "three")}, log=log) as runtime:
        owners = [None, "ann", "bob", "ann"]
        records = [await runtime.start("a", "Hi", key="k", owner=owner) for owner in owners]
        for record in records:
            await runtime.follow(record.task_id)
    assert [record.owner for record in records] == owners
    assert len({record.task_id for record in records}) == 3
    assert records[1].task_id == records[3].task_id


async def test_runs_of_one_conversation_are_sequential(log: MemoryEventLog) -> None:
    async with Runtime({"a": agent("one", "two", "three")}, log=log) as runtime:
        records = [await runtime.start("a", text, context_id="c") for text in ("1", "2", "3")]
        await asyncio.gather(*(runtime.follow(record.task_id) for record in records))
        last = (await log.read(records[-1].task_id))[-1]
    assert last.content == "three"  # pyright: ignore[reportAttributeAccessIssue]
    times = [(record.created, record.updated) for record in await log.list_runs(context_id="c")]
    assert times == sorted(times)


async def test_follower_continues_across_a_pause_and_its_answer(log: MemoryEventLog) -> None:
    async with Runtime({"a": agent(call("pay", amount=5), "Paid.", tools=[pay])}, log=log) as runtime:
        record = await runtime.start("a", "Pay")
        has_question = asyncio.Event()
        received: list[Event] = []

        async def read() -> None:
            async for event in runtime.follow(record.task_id):
                received.append(event)
                if event.kind == "input-required":
                    has_question.set()

        reader = asyncio.create_task(read())
        await has_question.wait()
        [question] = [event for event in received if event.kind == "input-required"]
        with pytest.raises(InvalidInput):
            await runtime.answer(record.task_id, {"another": True})
        await runtime.answer(record.task_id, {question.input_id: True})  # pyright: ignore[reportAttributeAccessIssue]
        await reader
    assert [event.seq for event in received if event.durable] == list(range(1, received[-1].seq + 1))
    assert {event.attempt for event in received} == {1, 2}
    assert received[-1].state == "completed"  # pyright: ignore[reportAttributeAccessIssue]


async def test_question_can_be_answered_as_soon_as_a_reader_receives_it(log: MemoryEventLog) -> None:
    async with Runtime({"a": agent(call("pay", amount=5), "Paid.", tools=[pay])}, log=log) as runtime:
        record = await runtime.start("a", "Pay")
        async for event in runtime.follow(record.task_id):
            if event.kind == "input-required":
                # Readers receive events before they are stored.
                await runtime.answer(record.task_id, {event.input_id: True})
        assert (await runtime.get_record(record.task_id)).state == "completed"


async def test_message_to_a_working_run_reaches_the_model(log: MemoryEventLog) -> None:
    model = ScriptedModel(call("wait"), "As you say.")
    started, go = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> str:
        """Waits."""
        started.set()
        await go.wait()
        return "waited"

    async with Runtime({"a": Agent(model, tools=[wait], thoughts=False)}, log=log) as runtime:
        record = await runtime.start("a", "Go")
        await started.wait()
        await runtime.send(record.task_id, "Only half of it")
        go.set()
        await runtime.follow(record.task_id)
    assert [message.text for message in model.requests[-1].messages if message.role == "user"] == [
        "Go",
        "Only half of it",
    ]


async def test_working_and_waiting_runs_can_be_canceled_by_id(log: MemoryEventLog) -> None:
    agents = {"slow": agent(call("work"), tools=[work]), "asks": agent(call("pay", amount=5), tools=[pay])}
    async with Runtime(agents, log=log) as runtime:
        slow = await runtime.start("slow", "Work")
        async for event in runtime.follow(slow.task_id):
            if event.kind == "tool-start":
                break
        await runtime.cancel(slow.task_id, "the user left")
        asking_agent = await runtime.start("asks", "Pay")
        async for event in runtime.follow(asking_agent.task_id):
            if event.kind == "status-update" and event.final:
                break
        await runtime.cancel(asking_agent.task_id)
        states = [(await runtime.get_record(record.task_id)).state for record in (slow, asking_agent)]
        assert states == ["canceled", "canceled"]
        assert kinds([event async for event in runtime.follow(asking_agent.task_id)])[-1] == "status-update"
    await assert_no_tasks()


async def test_events_of_all_runs_are_in_one_stream(log: MemoryEventLog) -> None:
    async with Runtime({"a": agent("one", "two", "three")}, log=log) as runtime:
        received: list[Event] = []
        runtime.events.subscribe(received.append)
        records = [await runtime.start("a", "Hi") for _ in range(3)]
        await asyncio.gather(*(runtime.follow(record.task_id) for record in records))
    finals = [event.task_id for event in received if event.kind == "status-update" and event.final]  # pyright: ignore[reportAttributeAccessIssue]
    assert sorted(finals) == sorted(record.task_id for record in records)


async def test_events_end_when_the_runtime_exits(log: MemoryEventLog) -> None:
    async def read(runtime: Runtime) -> list[str]:
        return [event.kind async for event in runtime.events]

    async with asyncio.TaskGroup() as group, Runtime({"a": agent("one")}, log=log) as runtime:
        early = group.create_task(read(runtime))
        await asyncio.sleep(0)
        await runtime.follow((await runtime.start("a", "Hi")).task_id)
    assert early.result()[-1] == "status-update"
    assert await asyncio.wait_for(read(runtime), 10) == []


async def test_deps_are_derived_from_the_run_record(log: MemoryEventLog) -> None:
    deps_seen: list[Any] = []

    @tool
    async def whoami(ctx: RunContext[str]) -> str:
        """Return the owner."""
        deps_seen.append(ctx.deps)
        return ctx.deps

    async def load_deps(record: RunRecord) -> str:
        return f"{record.owner}/{record.metadata['plan']}"

    model = ScriptedModel(call("whoami"), "Ann.")
    agent_with_deps = Agent(model, tools=[whoami], deps_type=str, thoughts=False)
    async with Runtime({"a": agent_with_deps}, log=log, deps=load_deps) as runtime:
        record = await runtime.start("a", "Who?", owner="ann", metadata={"plan": "free"})
        await runtime.follow(record.task_id)
    assert deps_seen == ["ann/free"]


def test_released_run_is_adopted_by_another_machine() -> None:
    shared = SharedState()
    first_log, second_log = MachineLog(shared), MachineLog(shared)

    async def main() -> None:
        first = Runtime({"a": agent(call("work"), tools=[work])}, log=first_log, grace=5)
        async with first:
            record = await first.start("a", "Work")
            async for event in first.follow(record.task_id):
                if event.kind == "tool-start":
                    break
        assert (await first_log.get_record(record.task_id)).state == "working"  # a deployment writes no final event
        async with Runtime({"a": agent("Over.", tools=[work])}, log=second_log) as second:
            events = [event async for event in second.follow(record.task_id)]
        assert events[-1].state == "completed"  # pyright: ignore[reportAttributeAccessIssue]
        assert {event.attempt for event in events} == {1, 2}

    with virtual_time() as time:
        time.run(main())


async def test_runtime_rejects_invalid_use(log: MemoryEventLog) -> None:
    runtime = Runtime({"a": agent("x")}, log=log)
    with pytest.raises(RxloopError, match="must be entered"):
        await runtime.start("a", "Hi")
    async with runtime:
        with pytest.raises(ConfigurationError, match=r"unknown agent 'b', expected one of \['a'\]"):
            await runtime.start("b", "Hi")
        with pytest.raises(UnknownRun):
            await runtime.follow("nobody")
        with pytest.raises(UnknownRun):
            await runtime.send("nobody", "Hi")
    with pytest.raises(RxloopError, match="is draining"):
        await runtime.start("a", "Hi")
    with pytest.raises(RxloopError, match="can only be entered once"):
        await runtime.__aenter__()
    for agents in ([agent("x")], {"a": "b"}):
        with pytest.raises(ConfigurationError, match="agents must"):
            Runtime(agents, log=log)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("option", "advice"),
    [
        ("deps", "deps=function"),
        ("task_id", "key="),
        ("on_input", "answer"),
        ("steering", "send"),
        ("nonsense", "expected"),
    ],
)
async def test_start_rejects_unsupported_option_with_a_remedy(log: MemoryEventLog, option: str, advice: str) -> None:
    async with Runtime({"a": agent("x")}, log=log) as runtime:
        options: Any = {option: "x"}
        with pytest.raises(TypeError, match=rf"does not accept '{option}'; .*{advice}"):
            await runtime.start("a", "Hi", **options)
    assert await log.list_runs() == []


async def test_sse_client_reconnects_with_the_id_of_its_last_frame(log: MemoryEventLog) -> None:
    async with Runtime({"a": agent(call("pay", amount=5), "Paid.", tools=[pay])}, log=log) as runtime:
        record = await runtime.start("a", "Pay")
        frames: list[bytes] = []
        question = ""
        async for frame in runtime.follow(record.task_id).sse(heartbeat=None):
            frames.append(frame)
            event = orjson.loads(frame.split(b"data: ")[1])
            if event["kind"] == "input-required":
                question = event["input"]["inputId"]
                break
        cursor = frames[-1].split(b"id: ")[1].split(b"\n")[0].decode()
        assert await runtime.follow(record.task_id).has_more(cursor)
        await runtime.answer(record.task_id, {question: True})
        remaining = [
            frame async for frame in runtime.follow(record.task_id, after=cursor, strict=False).sse(heartbeat=None)
        ]
        last = remaining[-1].split(b"id: ")[1].split(b"\n")[0].decode()
        assert not await runtime.follow(record.task_id).has_more(last)
        assert [event async for event in runtime.follow(record.task_id, after=last)] == []
    all_frames = [frame async for frame in follow(log, record.task_id, until="end").sse(heartbeat=None)]
    assert [_id(frame) for frame in [*frames, *remaining] if _is_durable(frame)] == [_id(frame) for frame in all_frames]


def _id(frame: bytes) -> str:
    return frame.split(b"id: ")[1].split(b"\n")[0].decode()


def _is_durable(frame: bytes) -> bool:
    return _id(frame).endswith(".0")


async def test_follow_rejects_or_ignores_an_invalid_cursor(log: MemoryEventLog) -> None:
    async with Runtime({"a": agent("x")}, log=log) as runtime:
        record = await runtime.start("a", "Hi")
        await runtime.follow(record.task_id)
        with pytest.raises(ConfigurationError, match="a cursor must have the form"):
            runtime.follow(record.task_id, after="nonsense")
        events = [event async for event in runtime.follow(record.task_id, after="nonsense", strict=False)]
    assert [event.kind for event in events][:2] == ["gap", "task"]


async def test_slow_follower_does_not_delay_other_followers(log: MemoryEventLog) -> None:
    turns = [call("busy"), "done"]

    @tool
    async def busy(ctx: RunContext[None]) -> str:
        """Says a lot."""
        for number in range(3_000):
            ctx.emit(CustomEvent(name="n", data=number))
        return "x"

    async with Runtime({"a": agent(*turns, tools=[busy])}, log=log) as runtime:
        record = await runtime.start("a", "Hi")
        slow = aiter(runtime.follow(record.task_id))
        await anext(slow)
        assert len([event async for event in runtime.follow(record.task_id)]) > 3_000
        remaining = [event async for event in slow]
    assert [event.seq for event in remaining if event.durable] == list(range(2, remaining[-1].seq + 1))


async def test_view_can_be_applied_to_a_followed_run(log: MemoryEventLog) -> None:
    async with Runtime({"a": agent(frames("--Hel--lo.|"))}, log=log) as runtime:
        record = await runtime.start("a", "Hi")
        stream: AsyncIterator[str] = aiter(runtime.follow(record.task_id).pipe(op.text()))
        assert "".join([text async for text in stream]) == "Hello."


async def test_answer_during_a_pause_is_applied() -> None:
    arrived, go = asyncio.Event(), asyncio.Event()

    class SlowRecordLog(MemoryEventLog):
        delays = False

        async def get_record(self, task_id: str) -> RunRecord:
            record = await super().get_record(task_id)
            if self.delays and record.state == "input-required":
                arrived.set()
                await go.wait()
            return record

    log = SlowRecordLog()
    async with Runtime({"a": agent(call("pay", amount=5), "Paid.", tools=[pay])}, log=log) as runtime:
        record = await runtime.start("a", "Pay")
        log.delays = True
        await arrived.wait()  # seen as waiting, with its execution about to end
        log.delays = False
        [question] = [event for event in await log.read(record.task_id) if event.kind == "input-required"]
        await runtime.answer(record.task_id, {question.input_id: True})  # pyright: ignore[reportAttributeAccessIssue]
        go.set()
        await runtime.follow(record.task_id)
        assert (await runtime.get_record(record.task_id)).state == "completed"


def test_deps_are_not_loaded_again_for_a_canceled_run(log: MemoryEventLog) -> None:
    tries = 0

    def load_deps(record: RunRecord) -> str:
        nonlocal tries
        tries += 1
        raise OSError("the database is away")

    async def main() -> None:
        async with Runtime({"a": agent("x", deps_type=str)}, log=log, deps=load_deps) as runtime:
            record = await runtime.start("a", "Hi")
            await asyncio.sleep(0.5)
            await runtime.cancel(record.task_id)
            await asyncio.sleep(100)
            assert tries == 1

    with virtual_time() as time:
        time.run(main())


@pytest.mark.parametrize("in_file", [False, True])
async def test_run_answered_outside_a_runtime_is_adopted(tmp_path: Path, in_file: bool) -> None:
    log = SqliteEventLog(tmp_path / "log.db") if in_file else MemoryEventLog()
    asking_agent = agent(call("pay", amount=5), "Paid.", tools=[pay]).with_log(log).with_name("a")
    result = await asking_agent.run("Pay")
    await asking_agent.get_run(result.task_id).answer({result.pending[0].input_id: True})  # then this process ends
    async with Runtime({"a": asking_agent}, log=log) as runtime:
        await runtime.follow(result.task_id)
        assert (await runtime.get_record(result.task_id)).state == "completed"
    assert await log.list_orphaned() == []
    await log.aclose()


async def test_canceled_start_is_completed_by_the_next_start_with_its_key() -> None:
    submitted = asyncio.Event()

    class SlowRecordLog(MemoryEventLog):
        async def get_record(self, task_id: str) -> RunRecord:
            submitted.set()
            await asyncio.sleep(0)
            return await super().get_record(task_id)

    log = SlowRecordLog()
    async with Runtime({"a": agent("x")}, log=log) as runtime:
        start_task = asyncio.create_task(runtime.start("a", "Hi", key="k"))
        await submitted.wait()
        start_task.cancel()
        await asyncio.wait([start_task])
        assert [record.state for record in await log.list_runs()] == ["submitted"]

        await runtime.follow((await runtime.start("a", "Hi", key="k")).task_id)
        assert [record.state for record in await log.list_runs()] == ["completed"]


async def test_runtime_accepts_no_agents() -> None:
    async with Runtime({}, log=MemoryEventLog()) as runtime:
        assert dict(runtime.agents) == {}
        with pytest.raises(ConfigurationError, match="unknown agent 'a'"):
            await runtime.start("a", "Hi")
