"""Tests for run differences and costs."""

import asyncio
from typing import Any

import pytest

from rxloop import (
    Agent,
    ContentCompleteEvent,
    LLMCallEvent,
    MemoryEventLog,
    MessageAddedEvent,
    Price,
    RunContext,
    StatusUpdateEvent,
    TaskEvent,
    ToolCompleteEvent,
    Usage,
    diff,
    tool,
)
from rxloop.errors import UnknownRun
from rxloop.testing import ScriptedModel, call, turn, virtual_time
from support.runs import outcome


@tool(idempotent=True)
async def work(seconds: float) -> str:
    """Takes its time."""
    await asyncio.sleep(seconds)
    return "worked"


@tool
async def sure(ctx: RunContext[Any]) -> bool:
    """Asks."""
    return await ctx.ask("Sure?")


USED = Usage(input_tokens=1000, output_tokens=100)


def agent(log: MemoryEventLog, *turns: Any, tools: Any = (work, sure), **fields: Any) -> Agent:
    return Agent(ScriptedModel(*turns, **fields), tools=tools, log=log)


def think(number: int, *calls: Any) -> Any:
    thought = call("think_aloud", f"t{number}", thought="Both.", thought_type="planning", thought_id="plan")
    return turn(calls=[thought, *calls], usage=USED)


async def find_seq(log: MemoryEventLog, task_id: str, kind: str, number: int = 0) -> int:
    return [event.seq for event in await log.read(task_id) if event.kind == kind][number]


def test_diff_ignores_ids_times_and_order() -> None:
    log = MemoryEventLog()
    with virtual_time() as time:
        a = time.run(agent(log, think(1, call("work", "x", seconds=1), call("work", "y", seconds=1)), "ok").run("Go"))
        time.advance(3600)

        # The same calls end in a different order, with different ids and tokens.
        @tool(name="work")
        async def other(ctx: RunContext[Any], seconds: float) -> str:
            """Takes its time."""
            await asyncio.sleep(3 - ctx.index)
            return "worked"

        turns = think(2, call("work", "p", seconds=1), call("work", "q", seconds=1))
        b = time.run(agent(log, turns, turn("ok", usage=USED), tools=[other, sure]).run("Go"))
        same = time.run(diff(log, a.task_id, b.task_id))

    assert same.first is None
    assert (same.a.events, same.b.events) == ((), ())
    assert str(same).splitlines() == [
        f"{a.task_id} and {b.task_id} are the same, event for event",
        f"{a.task_id}: 2 model calls, 3 tool calls, 1000 tokens in, 100 out, 1.0 s",
        f"{b.task_id}: 2 model calls, 3 tool calls, 2000 tokens in, 200 out, 2.0 s",
    ]


@pytest.mark.parametrize("change", ["question", "call", "result", "answer", "model"])
async def test_diff_starts_at_the_first_different_event(change: str) -> None:
    log = MemoryEventLog()

    @tool(name="work")
    async def other(seconds: float) -> str:
        """Takes its time."""
        return "slept" if change == "result" else "worked"

    a = await agent(log, call("work", seconds=0), "ok").run("Go")
    turns = [call("work", seconds=0 if change != "call" else 0.01), "ok" if change != "answer" else "well"]
    b = await agent(log, *turns, tools=[other, sure], name="scripted" if change != "model" else "other").run(
        "Go" if change != "question" else "Run"
    )
    difference = await diff(log, a.task_id, b.task_id)

    assert difference.first is not None
    kinds = {
        "question": TaskEvent,
        "model": LLMCallEvent,
        "call": ContentCompleteEvent,
        "result": ToolCompleteEvent,
        "answer": ContentCompleteEvent,
    }
    assert [type(event) for event in difference.first] == [kinds[change]] * 2
    assert [event.task_id for event in difference.first if event is not None] == [a.task_id, b.task_id]
    assert difference.shared == {"question": 0, "model": 1, "call": 2, "result": 4, "answer": 6}[change]
    assert difference.a.events[-1] == (await log.read(a.task_id))[-1]


async def test_fork_and_parent_share_the_copied_events() -> None:
    log = MemoryEventLog()
    await agent(log, "Hello.").run("Hi", context_id="c")
    parent = await agent(log, call("work", "w", seconds=0), "Fine.").run("Go", context_id="c")
    checkpoint = await find_seq(log, parent.task_id, "checkpoint")
    end = len(await log.read(parent.task_id))

    prompted = await agent(log, "As you like.").fork(parent.task_id, checkpoint, prompt="Stop.")
    difference = await diff(log, parent.task_id, prompted.task_id)
    assert difference.first is not None
    assert [type(event) for event in difference.first] == [LLMCallEvent, MessageAddedEvent]
    assert difference.shared == 5

    changed = await agent(log, "No money.").fork(parent.task_id, checkpoint, results={"w": "declined"})
    difference = await diff(log, parent.task_id, changed.task_id)
    assert difference.first is not None
    assert [event.content for event in difference.first] == ["worked", "declined"]  # type: ignore[union-attr]

    behind = await agent(log, "Again.").fork(parent.task_id, end, prompt="And again?")
    difference = await diff(log, parent.task_id, behind.task_id)
    assert difference.first is not None
    assert [type(event) for event in difference.first] == [StatusUpdateEvent, MessageAddedEvent]

    of_fork = await agent(log, "Fine.").fork(changed.task_id, checkpoint, results={"w": "worked"})
    assert (await diff(log, parent.task_id, of_fork.task_id)).first is None


@pytest.mark.parametrize("at", range(1, 12))
async def test_fork_with_the_same_events_has_no_difference(at: int) -> None:
    log = MemoryEventLog()
    turns = [[call("work", "v", seconds=0), call("work", "w", seconds=0.01)], "Fine."]
    parent = await agent(log, *turns).run("Go")
    assert len(await log.read(parent.task_id)) == 13
    known = sum(isinstance(event, ContentCompleteEvent) for event in (await log.read(parent.task_id))[:at])
    fork = await agent(log, *turns[known:]).fork(parent.task_id, at)

    assert (await diff(log, parent.task_id, fork.task_id)).first is None


async def test_diff_ignores_pauses() -> None:
    log = MemoryEventLog()
    at_once = await agent(log, call("sure"), "ok").run("Go", on_input=lambda question: True)
    paused = await agent(log, call("sure")).run("Go")
    difference = await diff(log, at_once.task_id, paused.task_id)
    assert (difference.a.state, difference.b.state) == ("completed", "input-required")
    resumed = await agent(log, "ok").resume(paused.task_id, inputs={"1.0.1": True})
    difference = await diff(log, at_once.task_id, resumed.task_id)

    assert difference.first is None


async def test_diff_has_no_event_for_a_run_that_ended_earlier() -> None:
    log = MemoryEventLog()
    run = await agent(log, call("work", seconds=0), "ok").run("Go")
    cancel_time = MemoryEventLog()
    events = await log.read(run.task_id)
    await cancel_time.append(run.task_id, events, expected_seq=0)
    crashed = [event.model_copy(update={"task_id": "crashed", "context_id": "d"}) for event in events[:5]]
    await cancel_time.append("crashed", crashed, expected_seq=0)

    difference = await diff(cancel_time, run.task_id, "crashed")

    assert difference.first is not None
    assert difference.first[1] is None
    assert (difference.b.state, difference.b.events) == ("working", ())
    assert "has ended here" in str(difference)


def test_diff_has_the_total_cost_and_the_cost_after_the_difference() -> None:
    log = MemoryEventLog()
    prices = {"scripted": Price(1.0, 10.0), "dear": Price(10.0, 100.0)}
    with virtual_time() as time:
        first = turn(calls=[call("work", "w", seconds=2)], usage=USED)
        parent = time.run(agent(log, first, turn("Fine.", usage=USED)).run("Go"))
        at = time.run(find_seq(log, parent.task_id, "checkpoint"))
        time.advance(3600)
        dear = ScriptedModel(turn(calls=[call("work", seconds=3)], usage=USED), turn("No.", usage=USED), name="dear")
        fork = time.run(agent(log).fork(parent.task_id, at, model=dear))
        difference = time.run(diff(log, parent.task_id, fork.task_id, prices=prices))
        unpriced = time.run(diff(log, parent.task_id, fork.task_id))

    whole, since = difference.a.cost, difference.a.cost_since
    assert (whole.model_calls, whole.tool_calls, whole.usage, whole.seconds) == (2, 1, USED + USED, 2.0)
    assert (since.model_calls, since.tool_calls, since.usage, since.seconds) == (1, 0, USED, 0.0)
    assert (whole.dollars, since.dollars) == pytest.approx((0.004, 0.002))
    whole, since = difference.b.cost, difference.b.cost_since
    assert (whole.model_calls, whole.tool_calls, whole.seconds) == (3, 2, 5.0)
    assert (since.model_calls, since.tool_calls, since.usage, since.seconds) == (2, 1, USED + USED, 3.0)
    assert (whole.dollars, since.dollars) == pytest.approx((0.042, 0.04))
    assert (unpriced.a.cost.dollars, unpriced.b.cost_since.dollars) == (None, None)


async def test_tokens_of_a_different_answer_count_after_the_difference() -> None:
    log = MemoryEventLog()
    answers = [turn("Yes.", usage=USED), turn("No.", usage=USED)]
    a, b = [await agent(log, answer).run("Go") for answer in answers]
    difference = await diff(log, a.task_id, b.task_id)

    assert (difference.shared, difference.a.cost_since.usage, difference.b.cost_since.usage) == (2, USED, USED)


@pytest.mark.parametrize("length", range(1, 13))
async def test_diff_ignores_a_crash_and_resume(length: int) -> None:
    @tool(name="work", idempotent=True)
    async def look_slowly(seconds: float) -> str:
        """Takes no time."""
        return "worked"

    log, cancel_time = MemoryEventLog(), MemoryEventLog()
    turns: list[Any] = [[call("work", "v", seconds=0), call("work", "w", seconds=1)], "Fine."]
    whole = await agent(log, *turns, tools=[look_slowly]).run("Go")
    events = await log.read(whole.task_id)
    assert len(events) == 13
    await cancel_time.append(whole.task_id, events[:length], expected_seq=0)
    known = sum(isinstance(event, ContentCompleteEvent) for event in events[:length])
    await agent(cancel_time, *turns[known:], tools=[look_slowly]).resume(whole.task_id)

    names = {"task_id": "uncut", "context_id": "uncut"}
    await cancel_time.append("uncut", [event.model_copy(update=names) for event in events], expected_seq=0)
    assert (await diff(cancel_time, "uncut", whole.task_id)).first is None


async def test_diff_is_formatted_as_text() -> None:
    log = MemoryEventLog()
    parent = await agent(log, call("work", "w", seconds=0), "Fine.").run("Go")
    at = await find_seq(log, parent.task_id, "tool-complete")
    other = [call("work", seconds=0), call("work", seconds=0), "No\nmoney, " + "and no hope " * 20]
    fork = await agent(log, *other).fork(parent.task_id, at, results={"w": "declined"})

    difference = await diff(log, parent.task_id, fork.task_id)

    lines = str(difference).splitlines()
    assert lines[:8] == [
        "The first 4 events are the same.",
        "",
        f"{parent.task_id} (completed)",
        "     6 tool-complete 1: work = worked",
        "     8 llm-call 2: scripted, 3 messages",
        "     9 content-complete 2: Fine.",
        "    11 status-update: completed, Fine.",
        "",
    ]
    assert lines[8] == f"{fork.task_id} (completed)"
    assert lines[11] == "     9 content-complete 2: work(seconds=0)"
    assert lines[17] == "  ... and 4 more"
    assert all(len(line) < 120 for line in lines)
    assert difference.b.lines()[-2].endswith(
        "No money, and no hope and no hope and no hope and no hope and no hope and no..."
    )


async def test_diff_compares_the_errors_of_failed_runs() -> None:
    log = MemoryEventLog()
    good, bad = await agent(log, "ok").run("Go"), await outcome(agent(log, ValueError("broken")).run("Go"))

    difference = await diff(log, good.task_id, bad.task_id)

    assert difference.first is not None
    assert [type(event) for event in difference.first] == [ContentCompleteEvent, ContentCompleteEvent]
    assert "failed (error)" in str(difference)


async def test_diff_of_an_unknown_run_raises_an_error() -> None:
    log = MemoryEventLog()
    run = await agent(log, "ok").run("Go")

    with pytest.raises(UnknownRun, match="nowhere"):
        await diff(log, run.task_id, "nowhere")
