"""Tests for recorded runs with nested agents."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

from rxloop import Agent, MemoryEventLog, RunContext, SqliteEventLog, diff, follow, history, replay, tool
from rxloop.providers.script import ScriptedModel
from rxloop.testing import call
from support.nested_agents import check_attempts, editor, filter_by_path, researcher, turn_with_usage
from support.runs import collect, shape


@tool
async def pay(ctx: RunContext[Any]) -> str:
    """Pays."""
    await asyncio.sleep(random.random() * 0.01)
    return f"{await ctx.ask('Pay?')}"


def make_agent(log: Any) -> Agent:
    """Return an agent that calls three agents concurrently."""
    agents = [researcher(call("pay"), turn_with_usage(f"{n}."), name=f"r{n}", tools=[pay]).as_tool() for n in range(3)]
    return editor(*agents, turns=[[call(f"r{n}", prompt="x") for n in range(3)], turn_with_usage("Done.")], log=log)


async def test_diff_ignores_pauses_and_the_order_of_nested_events() -> None:
    log = MemoryEventLog()
    uninterrupted = make_agent(log).run("q", on_input=lambda _: True)
    await uninterrupted
    agent = make_agent(log)
    paused = agent.run("q")
    while (result := await paused).pending:
        paused = agent.resume(paused.task_id, inputs={result.pending[-1].input_id: True})
    difference = await diff(log, uninterrupted.task_id, paused.task_id)
    assert difference.first is None, str(difference)


async def test_diff_finds_a_difference_in_a_nested_run() -> None:
    log = MemoryEventLog()
    runs = [editor(researcher(turn_with_usage(text)).as_tool("research"), log=log).run("q") for text in ("A.", "B.")]
    for run in runs:
        await run
    difference = await diff(log, runs[0].task_id, runs[1].task_id)
    assert difference.first is not None
    assert "B." in str(difference)


async def test_replay_has_the_same_result() -> None:
    log = MemoryEventLog()
    run = editor(researcher().as_tool("research"), log=log).run("q")
    result = await run
    again = await replay(log, run.task_id).result()
    assert (again.messages, again.usage, again.output) == (result.messages, result.usage, "A page.")
    events = await collect(replay(log, run.task_id))
    check_attempts(events)
    model = ScriptedModel.from_events(events)
    child = ScriptedModel.from_events(events, task_id=filter_by_path(events, "researcher")[0].task_id)
    assert (model.name, child.name) == ("scripted", "scripted")


async def test_nested_events_are_followed_but_not_part_of_the_history(tmp_path: Path) -> None:
    log = SqliteEventLog(tmp_path / "runs.db")
    run = editor(researcher().as_tool("research"), log=log).run("q", context_id="c")
    await run.begin()
    followed = await collect(follow(log, run.task_id))
    assert filter_by_path(followed, "researcher")[-1].kind == "status-update"
    check_attempts(followed)
    assert shape(await history(log, "c")) == [
        "user: q",
        "assistant: research",
        "tool: A capital.",
        "assistant: A page.",
    ]
    (record,) = await log.list_runs()
    assert (record.state, record.usage) == ("completed", (await run).usage)
    await log.aclose()


async def test_thoughts_of_nested_and_outer_runs_are_separate() -> None:
    def think(text: str) -> Any:
        return call("think_aloud", thought=text, thought_type="planning")

    child = researcher([think("below")], turn_with_usage("A."), thoughts=True)
    run = editor(
        child.as_tool("research"), turns=[think("above"), call("research", prompt="x"), "B."], thoughts=True
    ).run("q")
    graph = (await run).thoughts
    assert [thought.content for thought in graph] == ["above", "below"]
    assert [(thought.thought_id, thought.index) for thought in graph] == [("t1", 0), ("t1", 0)]
    assert graph["t1"].content == "above"
