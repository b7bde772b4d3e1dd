"""Runs that outlive the request that began them: found by id, followed, answered, steered, cancelled, taken up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from machines import MachineLog, Shared
from run_checks import nothing_left
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


@pytest.fixture
def log() -> MemoryEventLog:
    return MemoryEventLog()


def agent(*turns: Any, **options: Any) -> Agent[Any, Any]:
    return Agent(ScriptedModel(*turns), thoughts=False, **options)


@tool
async def pay(ctx: RunContext[None], amount: int) -> str:
    """Pays, if that is right."""
    return "paid" if await ctx.ask(f"Pay {amount}?") else "not paid"


@tool
async def work() -> str:
    """Takes a minute."""
    await asyncio.sleep(60)
    return "done"


def kinds(events: Sequence[Event]) -> list[str]:
    return [event.kind for event in events if event.durable]


async def test_a_run_goes_on_though_nobody_reads_it(log: MemoryEventLog) -> None:
    async with Runtime({"a": agent("Hello.")}, log=log) as runtime:
        record = await runtime.start("a", "Hi")
        assert (await log.read(record.task_id))[0].kind == "task"  # durable when `start` returns
        await runtime.follow(record.task_id)
        assert (await runtime.record(record.task_id)).state == "completed"
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
    assert len(await log.runs()) == 2


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
    times = [(record.created, record.updated) for record in await log.runs(context_id="c")]
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
        assert (await runtime.record(record.task_id)).state == "completed"


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
        await runtime.say(record.task_id, "Only half of it")
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
        states = [(await runtime.record(each.task_id)).state for each in (slow, asks)]
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
        assert (await here.record(record.task_id)).state == "working"  # a deploy writes no end
        async with Runtime({"a": agent("Over.", tools=[work])}, log=there) as second:
            events = [event async for event in second.follow(record.task_id)]
        assert events[-1].state == "completed"  # pyright: ignore[reportAttributeAccessIssue]
        assert {event.attempt for event in events} == {1, 2}

    with virtual_time() as time:
        time.run(main())


async def test_no_more_than_so_many_runs_go_on_at_once(log: MemoryEventLog) -> None:
    at_once = most = 0

    @tool
    async def busy() -> str:
        """Busy."""
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0)
        at_once -= 1
        return "x"

    model = ScriptedModel(*[call("busy")] * 8, *["ok"] * 8)
    async with Runtime({"a": Agent(model, tools=[busy], thoughts=False)}, log=log, concurrency=2) as runtime:
        records = [await runtime.start("a", "Hi") for _ in range(8)]
        await asyncio.gather(*(runtime.follow(record.task_id) for record in records))
    assert most <= 2


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
            await runtime.say("nobody", "Hi")
    with pytest.raises(RxloopError, match="drains"):
        await runtime.start("a", "Hi")
    with pytest.raises(RxloopError, match="make another one"):
        await runtime.__aenter__()
    for agents in ({}, [agent("x")], {"a": "b"}):
        with pytest.raises(ConfigurationError, match="agents by"):
            Runtime(agents, log=log)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("option", "advice"),
    [
        ("deps", "makes them"),
        ("task_id", "key="),
        ("on_input", "answer"),
        ("steering", "say"),
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
    assert await log.runs() == []


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
        with pytest.raises(ConfigurationError, match="not a cursor"):
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


async def test_a_run_of_an_agent_that_is_not_here_is_told_of_once(
    log: MemoryEventLog, caplog: pytest.LogCaptureFixture
) -> None:
    run = agent(call("work"), tools=[work], log=log).run("Hi")
    async for event in run:
        if event.kind == "tool-start":
            break
    await run.release()
    async with Runtime({"a": agent("x")}, log=log):
        pass
    assert caplog.text.count("no agent 'agent'") == 1


def test_a_run_whose_deps_cannot_be_made_is_tried_again_and_told(
    log: MemoryEventLog, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[float] = []

    def deps_of(record: RunRecord) -> str:
        tries.append(time.now)
        if len(tries) < 4:
            raise OSError("the database is away")
        return "deps"

    async def main() -> None:
        async with Runtime({"a": agent("x", deps_type=str)}, log=log, deps=deps_of) as runtime:
            await runtime.follow((await runtime.start("a", "Hi")).task_id)

    with virtual_time() as time:
        time.run(main())
    assert tries == [0, 1, 3, 7]
    assert "the database is away" in caplog.text


def test_deps_that_never_come_do_not_hold_the_room_of_a_run_for_ever(
    log: MemoryEventLog, caplog: pytest.LogCaptureFixture
) -> None:
    async def deps_of(record: RunRecord) -> str:
        if record.owner == "slow":
            await asyncio.Event().wait()
        return "deps"

    async def main() -> None:
        async with Runtime({"a": agent("x", deps_type=str)}, log=log, deps=deps_of, concurrency=1, grace=0) as runtime:
            await runtime.start("a", "Hi", owner="slow")
            await runtime.follow((await runtime.start("a", "Hi", owner="quick")).task_id)

    with virtual_time() as time:
        time.run(main())
        assert time.now == 60
    assert "were not there after 60 s" in caplog.text


async def test_a_view_works_on_a_followed_run(log: MemoryEventLog) -> None:
    async with Runtime({"a": agent(frames("--Hel--lo.|"))}, log=log) as runtime:
        record = await runtime.start("a", "Hi")
        stream: AsyncIterator[str] = aiter(runtime.follow(record.task_id).pipe(op.text()))
        assert "".join([text async for text in stream]) == "Hello."


async def question_of(runtime: Runtime, task_id: str) -> str:
    """Wait until a run asks."""
    async for event in runtime.follow(task_id):
        if event.kind == "input-required":
            return event.input_id  # pyright: ignore[reportAttributeAccessIssue]
    raise AssertionError("it never asked")


def test_a_run_that_waits_for_an_earlier_one_takes_no_room_from_it(log: MemoryEventLog) -> None:
    agents = {
        "asks": agent(call("pay", amount=5), "Paid.", tools=[pay]),
        "slow": agent(call("work"), "Done.", tools=[work]),
        "quick": agent("Hello."),
    }

    async def main() -> None:
        async with asyncio.timeout(600), Runtime(agents, log=log, concurrency=1) as runtime:
            asks = await runtime.start("asks", "Pay", context_id="c")
            input_id = await question_of(runtime, asks.task_id)
            slow = await runtime.start("slow", "Work")
            await asyncio.sleep(1)
            quick = await runtime.start("quick", "Hi", context_id="c")
            await runtime.answer(asks.task_id, {input_id: True})  # behind `quick` in the queue for room
            for record in (slow, asks, quick):
                await runtime.follow(record.task_id)
                assert (await runtime.record(record.task_id)).state == "completed"

    with virtual_time() as time:
        time.run(main())


async def test_an_answer_that_comes_while_a_run_comes_to_rest_is_not_left_lying() -> None:
    arrived, go = asyncio.Event(), asyncio.Event()

    class Slow(MemoryEventLog):
        holds = False

        async def record(self, task_id: str) -> RunRecord:
            found = await super().record(task_id)
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
        assert (await runtime.record(record.task_id)).state == "completed"


def test_runs_are_looked_for_again_though_the_log_fails_once() -> None:
    class Away(MemoryEventLog):
        asked = 0

        async def orphans(self, *, submitted_before: float = 30) -> Sequence[RunRecord]:
            self.asked += 1
            if self.asked > 1 and time.now < 60:
                raise OSError("away")
            return await super().orphans(submitted_before=submitted_before)

    log = Away()

    async def main() -> None:
        async with Runtime({"a": agent("x")}, log=log) as runtime:
            record = await agent("y").with_log(log).named("a").submit("Hi")
            await asyncio.sleep(100)
            assert (await runtime.record(record.task_id)).state == "completed"

    with virtual_time() as time:
        time.run(main())


def test_a_run_that_waits_for_room_is_not_begun_by_a_runtime_that_drains(log: MemoryEventLog) -> None:
    async def main() -> None:
        model = agent(*[call("work"), "Done."] * 3, tools=[work])
        async with Runtime({"a": model}, log=log, concurrency=1, grace=90) as runtime:
            records = [await runtime.start("a", "Hi") for _ in range(3)]
            await asyncio.sleep(1)
        assert [(await log.record(each.task_id)).state for each in records] == ["completed", "submitted", "submitted"]
        assert time.now < 61

    with virtual_time() as time:
        time.run(main())


def test_a_call_that_nobody_can_make_again_may_end_before_its_run_is_given_up(log: MemoryEventLog) -> None:  # L140
    began: list[float] = []

    @tool
    async def pay_slowly(amount: int) -> str:
        """Pays."""
        began.append(time.now)
        await asyncio.sleep(9)
        return "paid"

    async def main() -> None:
        turns = [call("pay_slowly", amount=1), call("pay_slowly", amount=2), "Paid."]
        paying = agent(*turns, tools=[pay_slowly])
        async with Runtime({"a": paying}, log=log) as first:
            record = await first.start("a", "Hi")
            await asyncio.sleep(1)
            await first.drain(10)
            assert time.now == pytest.approx(9, abs=0.5)  # with the call, and before the deadline
        assert (await log.record(record.task_id)).state == "working"
        async with Runtime({"a": agent(*turns[1:], tools=[pay_slowly])}, log=log) as second:
            events = [event async for event in second.follow(record.task_id)]
        assert events[-1].state == "completed"  # pyright: ignore[reportAttributeAccessIssue]
        ends = [event for event in events if event.kind == "tool-complete"]
        assert [event.success for event in ends] == [True, True]
        assert len(began) == 2

    with virtual_time() as time:
        time.run(main())


def test_a_call_that_takes_longer_than_the_deadline_is_cut_off(log: MemoryEventLog) -> None:
    async def main() -> None:
        async with Runtime({"a": agent(call("work"), tools=[work])}, log=log) as runtime:
            await runtime.start("a", "Hi")
            await asyncio.sleep(1)
            await runtime.drain(10)
            assert time.now == pytest.approx(11, abs=0.5)
        await nothing_left()

    with virtual_time() as time:
        time.run(main())


def test_a_drain_that_is_cancelled_gives_the_runs_up_all_the_same(log: MemoryEventLog) -> None:
    async def serve(runtime: Runtime) -> str:
        async with runtime:
            record = await runtime.start("a", "Hi")
            await asyncio.sleep(1)
            return record.task_id

    async def main() -> None:
        runtime = Runtime({"a": agent(call("work"), tools=[work])}, log=log)
        serving = asyncio.create_task(serve(runtime))
        await asyncio.sleep(2)
        serving.cancel()
        await asyncio.wait([serving])
        assert serving.cancelled()
        await nothing_left()
        assert [record.state for record in await log.runs()] == ["working"]

    with virtual_time() as time:
        time.run(main())


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
    asks = agent(call("pay", amount=5), "Paid.", tools=[pay]).with_log(log).named("a")
    result = await asks.run("Pay")
    await asks.answer(result.task_id, {result.pending[0].input_id: True})  # and then this process is gone
    async with Runtime({"a": asks}, log=log) as runtime:
        await runtime.follow(result.task_id)
        assert (await runtime.record(result.task_id)).state == "completed"
    assert await log.orphans() == []
    await log.aclose()


async def test_a_start_that_was_cancelled_in_the_middle_is_made_good_by_the_next_one_with_its_key() -> None:
    submitted = asyncio.Event()

    class Slow(MemoryEventLog):
        async def record(self, task_id: str) -> RunRecord:
            submitted.set()
            await asyncio.sleep(0)
            return await super().record(task_id)

    log = Slow()
    async with Runtime({"a": agent("x")}, log=log) as runtime:
        starting = asyncio.create_task(runtime.start("a", "Hi", key="k"))
        await submitted.wait()
        starting.cancel()
        await asyncio.wait([starting])
        assert [record.state for record in await log.runs()] == ["submitted"]

        await runtime.follow((await runtime.start("a", "Hi", key="k")).task_id)
        assert [record.state for record in await log.runs()] == ["completed"]
