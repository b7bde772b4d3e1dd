"""Runs that outlive the request that began them: found by id, followed, answered, steered, cancelled, taken up."""

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
from support.processes.machines import MachineLog, Shared
from support.run_checks import nothing_left
from support.slow_agent import agent, pay, work


def kinds(events: Sequence[Event]) -> list[str]:
    return [event.kind for event in events if event.durable]


async def test_a_run_goes_on_though_nobody_reads_it(log: MemoryEventLog) -> None:
    async with Runtime({"a": agent("Hello.")}, log=log) as runtime:
        record = await runtime.start("a", "Hi")
        assert (await log.read(record.task_id))[0].kind == "task"  # durable when `start` returns
        await runtime.follow(record.task_id)
        assert (await runtime.get_record(record.task_id)).state == "completed"
    await nothing_left()


async def test_a_follower_gets_everything_from_the_first_event_to_the_last(log: MemoryEventLog) -> None:
    async with Runtime({"a": agent(frames("--Hel--lo.|"))}, log=log) as runtime:
        record = await runtime.start("a", "Hi")
        live = [event async for event in runtime.follow(record.task_id)]
        late = [event async for event in runtime.follow(record.task_id)]
    assert kinds(live) == kinds(late) == [event.kind for event in await log.read(record.task_id)]
    assert [event.kind for event in live].count("content-delta") == 2


async def test_the_same_key_is_the_same_run(log: MemoryEventLog) -> None:
    async with Runtime({"a": agent("one", "two")}, log=log) as runtime:
        first, second = await asyncio.gather(*(runtime.start("a", "Hi", key="k") for _ in range(2)))
        other = await runtime.start("a", "Hi", key="another")
        assert first.task_id == second.task_id != other.task_id
        await runtime.follow(first.task_id)
        again = await runtime.start("a", "Hi", key="k")
        assert (again.task_id, again.state) == (first.task_id, "completed")
        await runtime.follow(other.task_id)
    assert len(await log.list_runs()) == 2


async def test_the_same_key_of_two_owners_is_two_runs(log: MemoryEventLog) -> None:
    async with Runtime({"a": agent("one", "two", "three")}, log=log) as runtime:
        owners = [None, "ann", "bob", "ann"]
        records = [await runtime.start("a", "Hi", key="k", owner=owner) for owner in owners]
        for record in records:
            await runtime.follow(record.task_id)
    assert [record.owner for record in records] == owners
    assert len({record.task_id for record in records}) == 3
    assert records[1].task_id == records[3].task_id


async def test_runs_of_one_conversation_come_one_after_the_other(log: MemoryEventLog) -> None:
    async with Runtime({"a": agent("one", "two", "three")}, log=log) as runtime:
        records = [await runtime.start("a", text, context_id="c") for text in ("1", "2", "3")]
        await asyncio.gather(*(runtime.follow(record.task_id) for record in records))
        last = (await log.read(records[-1].task_id))[-1]
    assert last.content == "three"  # pyright: ignore[reportAttributeAccessIssue]
    times = [(record.created, record.updated) for record in await log.list_runs(context_id="c")]
    assert times == sorted(times)


async def test_a_follower_goes_on_over_a_pause_and_the_answer(log: MemoryEventLog) -> None:
    async with Runtime({"a": agent(call("pay", amount=5), "Paid.", tools=[pay])}, log=log) as runtime:
        record = await runtime.start("a", "Pay")
        asked = asyncio.Event()
        seen: list[Event] = []

        async def read() -> None:
            async for event in runtime.follow(record.task_id):
                seen.append(event)
                if event.kind == "input-required":
                    asked.set()

        reading = asyncio.create_task(read())
        await asked.wait()
        [question] = [event for event in seen if event.kind == "input-required"]
        with pytest.raises(InvalidInput):
            await runtime.answer(record.task_id, {"another": True})
        await runtime.answer(record.task_id, {question.input_id: True})  # pyright: ignore[reportAttributeAccessIssue]
        await reading
    assert [event.seq for event in seen if event.durable] == list(range(1, seen[-1].seq + 1))
    assert {event.attempt for event in seen} == {1, 2}
    assert seen[-1].state == "completed"  # pyright: ignore[reportAttributeAccessIssue]


async def test_a_question_can_be_answered_as_soon_as_a_reader_has_it(log: MemoryEventLog) -> None:
    async with Runtime({"a": agent(call("pay", amount=5), "Paid.", tools=[pay])}, log=log) as runtime:
        record = await runtime.start("a", "Pay")
        async for event in runtime.follow(record.task_id):
            if event.kind == "input-required":
                # Readers have it before the log does.
                await runtime.answer(record.task_id, {event.input_id: True})
        assert (await runtime.get_record(record.task_id)).state == "completed"


async def test_what_is_said_into_a_run_reaches_its_model(log: MemoryEventLog) -> None:
    model = ScriptedModel(call("wait"), "As you say.")
    entered, go = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> str:
        """Waits."""
        entered.set()
        await go.wait()
        return "waited"

    async with Runtime({"a": Agent(model, tools=[wait], thoughts=False)}, log=log) as runtime:
        record = await runtime.start("a", "Go")
        await entered.wait()
        await runtime.send(record.task_id, "Only half of it")
        go.set()
        await runtime.follow(record.task_id)
    assert [message.text for message in model.requests[-1].messages if message.role == "user"] == [
        "Go",
        "Only half of it",
    ]


async def test_a_run_can_be_cancelled_by_its_id_while_it_goes_on_and_while_it_waits(log: MemoryEventLog) -> None:
    agents = {"slow": agent(call("work"), tools=[work]), "asks": agent(call("pay", amount=5), tools=[pay])}
    async with Runtime(agents, log=log) as runtime:
        slow = await runtime.start("slow", "Work")
        async for event in runtime.follow(slow.task_id):
            if event.kind == "tool-start":
                break
        await runtime.cancel(slow.task_id, "the user left")
        asks = await runtime.start("asks", "Pay")
        async for event in runtime.follow(asks.task_id):
            if event.kind == "status-update" and event.final:
                break
        await runtime.cancel(asks.task_id)
        states = [(await runtime.get_record(each.task_id)).state for each in (slow, asks)]
        assert states == ["canceled", "canceled"]
        assert kinds([event async for event in runtime.follow(asks.task_id)])[-1] == "status-update"
    await nothing_left()


async def test_all_runs_are_on_one_stream(log: MemoryEventLog) -> None:
    async with Runtime({"a": agent("one", "two", "three")}, log=log) as runtime:
        seen: list[Event] = []
        runtime.events.subscribe(seen.append)
        records = [await runtime.start("a", "Hi") for _ in range(3)]
        await asyncio.gather(*(runtime.follow(record.task_id) for record in records))
    finals = [event.task_id for event in seen if event.kind == "status-update" and event.final]  # pyright: ignore[reportAttributeAccessIssue]
    assert sorted(finals) == sorted(record.task_id for record in records)


async def test_deps_come_from_the_record(log: MemoryEventLog) -> None:
    found: list[Any] = []

    @tool
    async def whoami(ctx: RunContext[str]) -> str:
        """Who."""
        found.append(ctx.deps)
        return ctx.deps

    async def deps_of(record: RunRecord) -> str:
        return f"{record.owner}/{record.metadata['plan']}"

    model = ScriptedModel(call("whoami"), "Ann.")
    one = Agent(model, tools=[whoami], deps_type=str, thoughts=False)
    async with Runtime({"a": one}, log=log, deps=deps_of) as runtime:
        record = await runtime.start("a", "Who?", owner="ann", metadata={"plan": "free"})
        await runtime.follow(record.task_id)
    assert found == ["ann/free"]


def test_what_a_machine_leaves_another_one_takes_up() -> None:
    shared = Shared()
    here, there = MachineLog(shared), MachineLog(shared)

    async def main() -> None:
        first = Runtime({"a": agent(call("work"), tools=[work])}, log=here, grace=5)
        async with first:
            record = await first.start("a", "Work")
            async for event in first.follow(record.task_id):
                if event.kind == "tool-start":
                    break
        assert (await here.get_record(record.task_id)).state == "working"  # a deploy writes no end
        async with Runtime({"a": agent("Over.", tools=[work])}, log=there) as second:
            events = [event async for event in second.follow(record.task_id)]
        assert events[-1].state == "completed"  # pyright: ignore[reportAttributeAccessIssue]
        assert {event.attempt for event in events} == {1, 2}

    with virtual_time() as time:
        time.run(main())


async def test_wrong_use_is_refused(log: MemoryEventLog) -> None:
    runtime = Runtime({"a": agent("x")}, log=log)
    with pytest.raises(RxloopError, match="not entered"):
        await runtime.start("a", "Hi")
    async with runtime:
        with pytest.raises(ConfigurationError, match="no agent 'b': the runtime has a"):
            await runtime.start("b", "Hi")
        with pytest.raises(UnknownRun):
            await runtime.follow("nobody")
        with pytest.raises(UnknownRun):
            await runtime.send("nobody", "Hi")
    with pytest.raises(RxloopError, match="drains"):
        await runtime.start("a", "Hi")
    with pytest.raises(RxloopError, match="make another one"):
        await runtime.__aenter__()
    for agents in ([agent("x")], {"a": "b"}):
        with pytest.raises(ConfigurationError, match="agents by"):
            Runtime(agents, log=log)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("option", "advice"),
    [
        ("deps", "makes them"),
        ("task_id", "key="),
        ("on_input", "answer"),
        ("steering", "send"),
        ("nonsense", "it takes"),
    ],
)
async def test_an_option_that_a_runtime_cannot_keep_is_refused_with_advice(
    log: MemoryEventLog, option: str, advice: str
) -> None:
    async with Runtime({"a": agent("x")}, log=log) as runtime:
        options: Any = {option: "x"}
        with pytest.raises(TypeError, match=rf"no option '{option}': .*{advice}"):
            await runtime.start("a", "Hi", **options)
    assert await log.list_runs() == []


async def test_a_browser_reconnects_to_a_run_by_the_id_of_its_last_frame(log: MemoryEventLog) -> None:
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
        rest = [frame async for frame in runtime.follow(record.task_id, after=cursor, strict=False).sse(heartbeat=None)]
        last = rest[-1].split(b"id: ")[1].split(b"\n")[0].decode()
        assert not await runtime.follow(record.task_id).has_more(last)
        assert [event async for event in runtime.follow(record.task_id, after=last)] == []
    whole = [frame async for frame in follow(log, record.task_id, until="end").sse(heartbeat=None)]
    assert [_id(frame) for frame in [*frames, *rest] if _is_durable(frame)] == [_id(frame) for frame in whole]


def _id(frame: bytes) -> str:
    return frame.split(b"id: ")[1].split(b"\n")[0].decode()


def _is_durable(frame: bytes) -> bool:
    return _id(frame).endswith(".0")


async def test_what_is_no_cursor_is_refused_or_passed_over(log: MemoryEventLog) -> None:
    async with Runtime({"a": agent("x")}, log=log) as runtime:
        record = await runtime.start("a", "Hi")
        await runtime.follow(record.task_id)
        with pytest.raises(ConfigurationError, match="a cursor must have the form"):
            runtime.follow(record.task_id, after="nonsense")
        events = [event async for event in runtime.follow(record.task_id, after="nonsense", strict=False)]
    assert [event.kind for event in events][:2] == ["gap", "task"]


async def test_a_follower_that_is_slow_holds_back_nobody_else(log: MemoryEventLog) -> None:
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
        rest = [event async for event in slow]
    assert [event.seq for event in rest if event.durable] == list(range(2, rest[-1].seq + 1))


async def test_a_view_works_on_a_followed_run(log: MemoryEventLog) -> None:
    async with Runtime({"a": agent(frames("--Hel--lo.|"))}, log=log) as runtime:
        record = await runtime.start("a", "Hi")
        stream: AsyncIterator[str] = aiter(runtime.follow(record.task_id).pipe(op.text()))
        assert "".join([text async for text in stream]) == "Hello."


async def test_an_answer_that_comes_while_a_run_comes_to_rest_is_not_left_lying() -> None:
    arrived, go = asyncio.Event(), asyncio.Event()

    class Slow(MemoryEventLog):
        holds = False

        async def get_record(self, task_id: str) -> RunRecord:
            found = await super().get_record(task_id)
            if self.holds and found.state == "input-required":
                arrived.set()
                await go.wait()
            return found

    log = Slow()
    async with Runtime({"a": agent(call("pay", amount=5), "Paid.", tools=[pay])}, log=log) as runtime:
        record = await runtime.start("a", "Pay")
        log.holds = True
        await arrived.wait()  # it has been seen to wait for an answer, and is about to be left
        log.holds = False
        [question] = [event for event in await log.read(record.task_id) if event.kind == "input-required"]
        await runtime.answer(record.task_id, {question.input_id: True})  # pyright: ignore[reportAttributeAccessIssue]
        go.set()
        await runtime.follow(record.task_id)
        assert (await runtime.get_record(record.task_id)).state == "completed"


def test_a_run_that_was_cancelled_gets_no_deps_any_more(log: MemoryEventLog) -> None:
    tries = 0

    def deps_of(record: RunRecord) -> str:
        nonlocal tries
        tries += 1
        raise OSError("the database is away")

    async def main() -> None:
        async with Runtime({"a": agent("x", deps_type=str)}, log=log, deps=deps_of) as runtime:
            record = await runtime.start("a", "Hi")
            await asyncio.sleep(0.5)
            await runtime.cancel(record.task_id)
            await asyncio.sleep(100)
            assert tries == 1

    with virtual_time() as time:
        time.run(main())


@pytest.mark.parametrize("in_file", [False, True])
async def test_a_run_that_got_its_answer_where_no_runtime_is_goes_on(tmp_path: Path, in_file: bool) -> None:
    log = SqliteEventLog(tmp_path / "log.db") if in_file else MemoryEventLog()
    asks = agent(call("pay", amount=5), "Paid.", tools=[pay]).with_log(log).with_name("a")
    result = await asks.run("Pay")
    await asks.get_run(result.task_id).answer({result.pending[0].input_id: True})  # and then this process is gone
    async with Runtime({"a": asks}, log=log) as runtime:
        await runtime.follow(result.task_id)
        assert (await runtime.get_record(result.task_id)).state == "completed"
    assert await log.list_orphaned() == []
    await log.aclose()


async def test_a_start_that_was_cancelled_in_the_middle_is_made_good_by_the_next_one_with_its_key() -> None:
    submitted = asyncio.Event()

    class Slow(MemoryEventLog):
        async def get_record(self, task_id: str) -> RunRecord:
            submitted.set()
            await asyncio.sleep(0)
            return await super().get_record(task_id)

    log = Slow()
    async with Runtime({"a": agent("x")}, log=log) as runtime:
        starting = asyncio.create_task(runtime.start("a", "Hi", key="k"))
        await submitted.wait()
        starting.cancel()
        await asyncio.wait([starting])
        assert [record.state for record in await log.list_runs()] == ["submitted"]

        await runtime.follow((await runtime.start("a", "Hi", key="k")).task_id)
        assert [record.state for record in await log.list_runs()] == ["completed"]


async def test_a_runtime_may_have_no_agents() -> None:
    async with Runtime({}, log=MemoryEventLog()) as runtime:
        assert dict(runtime.agents) == {}
        with pytest.raises(ConfigurationError, match="no agent 'a'"):
            await runtime.start("a", "Hi")
