"""Runs with nested ones that are given up, and strategies whose lines call agents."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rxloop import Agent, MemoryEventLog, RunContext, StatusUpdateEvent, ToolCompleteEvent, Usage, tool
from rxloop.pipeline.requests import ModelRequest
from rxloop.strategies import StrategyRun, strategy
from rxloop.testing import ScriptedModel, call, turn
from support.nested_agents import check_attempts, checked, editor, in_virtual_time, of, researcher, search, tokens, used
from support.runs import collect

DONE: list[str] = []


def by_turn(*turns: Any) -> list[Any]:
    """A script that answers by what the model has said before, whichever attempt asks."""

    def answer(request: ModelRequest) -> Any:
        said = turns[sum(message.role == "assistant" for message in request.messages)]
        usage = Usage(input_tokens=10)
        return turn(said, usage=usage) if isinstance(said, str) else turn(calls=said, usage=usage)

    return [answer] * 9


@tool
async def slow() -> str:
    """Takes its time, and must not be cut off."""
    DONE.append("begun")
    await asyncio.sleep(2)
    DONE.append("over")
    return "ok"


@in_virtual_time
async def test_a_run_that_is_released_leaves_its_nested_runs_as_they_are() -> None:
    DONE.clear()
    log = MemoryEventLog()
    child = researcher(call("slow"), call("search", question="x"), tokens("A."), tools=[slow])
    run = editor(child.as_tool("research"), log=log).run("q").start()
    await asyncio.sleep(1)
    await run.release(grace=10)
    assert DONE == ["begun", "over"], "the call of the nested run is waited for"
    events = await log.read(run.task_id)
    assert not [event for event in events if isinstance(event, StatusUpdateEvent) and event.final]
    assert of(events, "researcher")[-1].kind == "tool-complete"

    rest = researcher(tokens("A."), tools=[slow])
    again = editor(rest.as_tool("research"), turns=[tokens("A page.")], log=log).resume(run.task_id)
    await collect(again)
    assert (await again).output == "A page."
    assert DONE == ["begun", "over"]
    check_attempts(await log.read(run.task_id))


@in_virtual_time
async def test_a_run_that_is_released_at_once_cuts_its_nested_runs_off() -> None:
    log = MemoryEventLog()
    child = researcher(call("slow"), tools=[slow])
    run = editor(child.as_tool("research"), log=log).run("q").start()
    await asyncio.sleep(1)
    await run.release()
    events = await log.read(run.task_id)
    assert events[-1].kind == "tool-start"
    rest = researcher(tokens("A."), tools=[slow])
    again = editor(rest.as_tool("research"), turns=[tokens("A page.")], log=log).resume(run.task_id)
    await collect(again)
    assert (await again).output == "A page."
    (answer,) = [e for e in of(await log.read(run.task_id), "researcher") if isinstance(e, ToolCompleteEvent)]
    assert "interrupted" in answer.content


@pytest.mark.parametrize("grace", [0, 5])
@in_virtual_time
async def test_nothing_begins_or_is_done_below_a_run_that_is_released_at_any_event(grace: float) -> None:  # L89
    @tool
    async def pay(ctx: RunContext[Any]) -> str:
        """Pays."""
        await ctx.ask("Pay?")
        DONE.append(f"paid {ctx.idempotency_key}")
        return "paid"

    def family(log: MemoryEventLog) -> Agent:
        leaf = researcher(*by_turn([call("pay"), call("slow")], "Paid."), name="leaf", tools=[pay, slow])
        script = by_turn([call("leaf", prompt="x")], [call("pay")], "Asked.")
        middle = researcher(*script, name="middle", tools=[leaf.as_tool(), pay])
        both = [call("middle", prompt="x"), call("middle", prompt="x")]
        return editor(middle.as_tool(), turns=by_turn(both, "A page."), log=log)

    whole = await collect(family(MemoryEventLog()).run("q", on_input=lambda _: True))
    for place in range(1, len(whole), 2):
        DONE.clear()
        log = MemoryEventLog()
        run = family(log).run("q", on_input=lambda _: True)
        releasing: list[asyncio.Task[None]] = []
        seen = 0
        async for _ in run:
            if seen == place:
                releasing.append(asyncio.create_task(run.release(grace)))
            seen += 1
        await asyncio.gather(*releasing)
        again = family(log).resume(run.task_id, on_input=lambda _: True)
        await collect(again)
        result = await again
        events = await log.read(run.task_id)
        check_attempts(events)
        assert result.output == "A page.", place
        assert result.usage == used(events), place
        paid = [each for each in DONE if each.startswith("paid")]
        assert len(paid) == len(set(paid)), place


@tool
async def ask(ctx: RunContext[Any]) -> str:
    """Asks."""
    return f"{await ctx.ask('May I?')}"


@strategy
async def delegates(run: StrategyRun) -> str:
    """Has an agent answer, beside the main line."""
    answer = await run.call("research", {"prompt": "x"}, branch="delegates/1")
    return answer.content


async def test_an_agent_that_is_called_on_a_line_of_a_strategy_may_ask() -> None:
    def agent(log: MemoryEventLog, *turns: Any) -> Agent:
        child = researcher(*turns, tools=[ask])
        return Agent(ScriptedModel(), tools=[child.as_tool("research")], log=log, strategy=delegates, name="head")

    log = MemoryEventLog()
    run = agent(log, call("ask")).run("q")
    events = await checked(run)
    result = await run
    assert result.state == "input-required"
    again = agent(log, tokens("A.")).resume(run.task_id, inputs={result.pending[0].input_id: True})
    await collect(again)
    result = await again
    assert (result.output, result.pending) == ("A.", [])
    whole = await log.read(run.task_id)
    check_attempts(whole)
    assert result.usage == used(whole)
    assert len({event.task_id for event in [*events, *whole]}) == 2


@in_virtual_time
async def test_an_agent_that_a_cancel_cut_off_on_a_line_goes_on_where_it_stood() -> None:  # L89
    def agent(log: MemoryEventLog) -> Agent:
        script = by_turn([call("slow")], [call("search", question="x")], [call("slow")], "A.")
        child = researcher(*script, tools=[slow, search])
        return Agent(ScriptedModel(), tools=[child.as_tool("research")], log=log, strategy=delegates, name="head")

    DONE.clear()
    log = MemoryEventLog()
    run = agent(log).run("q").start()
    await asyncio.sleep(3)  # in the second `slow`
    run.cancel()
    await collect(run)
    cut_off = await log.read(run.task_id)

    again = agent(log).resume(run.task_id)
    await collect(again)
    assert (await again).output == "A."
    # The second one was cut off with an effect that nobody knows, and is not made once more.
    assert DONE == ["begun", "over", "begun"]
    whole = await log.read(run.task_id)
    check_attempts(whole)
    assert len({event.task_id for event in of(whole, "researcher")}) == 1

    for at in (len(cut_off), len(whole) - 2):
        DONE.clear()
        fork = agent(log).fork(run.task_id, at=at)
        await collect(fork)
        assert (await fork).output == "A.", at
        assert DONE == []
        assert len({event.task_id for event in of(await log.read(fork.task_id), "researcher")}) == 1, at
