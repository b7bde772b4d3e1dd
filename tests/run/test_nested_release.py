"""Release and cancellation with nested runs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rxloop import Agent, MemoryEventLog, RunContext, StatusUpdateEvent, ToolCompleteEvent, Usage, tool
from rxloop.pipeline.requests import ModelRequest
from rxloop.strategies import StrategyRun, strategy
from rxloop.testing import ScriptedModel, call, turn
from support.nested_agents import (
    check_attempts,
    collect_checked,
    editor,
    filter_by_path,
    in_virtual_time,
    researcher,
    search,
    total_usage,
    turn_with_usage,
)
from support.runs import collect

EFFECTS: list[str] = []


def script_by_turn(*turns: Any) -> list[Any]:
    """Return a script whose answer depends on the number of earlier answers, in any attempt."""

    def answer(request: ModelRequest) -> Any:
        answer_content = turns[sum(message.role == "assistant" for message in request.messages)]
        usage = Usage(input_tokens=10)
        return (
            turn(answer_content, usage=usage)
            if isinstance(answer_content, str)
            else turn(calls=answer_content, usage=usage)
        )

    return [answer] * 9


@tool
async def slow() -> str:
    """Work slowly."""
    EFFECTS.append("begun")
    await asyncio.sleep(2)
    EFFECTS.append("over")
    return "ok"


@in_virtual_time
async def test_release_with_grace_waits_for_calls_of_nested_runs() -> None:
    EFFECTS.clear()
    log = MemoryEventLog()
    child = researcher(call("slow"), call("search", question="x"), turn_with_usage("A."), tools=[slow])
    run = editor(child.as_tool("research"), log=log).run("q").start()
    await asyncio.sleep(1)
    await run.release(grace=10)
    assert EFFECTS == ["begun", "over"], "the call of the nested run was not awaited"
    events = await log.read(run.task_id)
    assert not [event for event in events if isinstance(event, StatusUpdateEvent) and event.final]
    assert filter_by_path(events, "researcher")[-1].kind == "tool-complete"

    remaining_agent = researcher(turn_with_usage("A."), tools=[slow])
    resumed = editor(remaining_agent.as_tool("research"), turns=[turn_with_usage("A page.")], log=log).resume(
        run.task_id
    )
    await collect(resumed)
    assert (await resumed).output == "A page."
    assert EFFECTS == ["begun", "over"]
    check_attempts(await log.read(run.task_id))


@in_virtual_time
async def test_release_without_grace_interrupts_nested_runs() -> None:
    log = MemoryEventLog()
    child = researcher(call("slow"), tools=[slow])
    run = editor(child.as_tool("research"), log=log).run("q").start()
    await asyncio.sleep(1)
    await run.release()
    events = await log.read(run.task_id)
    assert [event.kind for event in events[-2:]] == ["tool-start", "status-update"]
    remaining_agent = researcher(turn_with_usage("A."), tools=[slow])
    resumed = editor(remaining_agent.as_tool("research"), turns=[turn_with_usage("A page.")], log=log).resume(
        run.task_id
    )
    await collect(resumed)
    assert (await resumed).output == "A page."
    (answer,) = [
        e for e in filter_by_path(await log.read(run.task_id), "researcher") if isinstance(e, ToolCompleteEvent)
    ]
    assert "interrupted" in answer.content


@pytest.mark.parametrize("grace", [0, 5])
@in_virtual_time
async def test_released_run_repeats_no_nested_effect_after_release_at_any_event(grace: float) -> None:  # L89
    @tool
    async def pay(ctx: RunContext[Any]) -> str:
        """Pays."""
        await ctx.ask("Pay?")
        EFFECTS.append(f"paid {ctx.idempotency_key}")
        return "paid"

    def make_agent_tree(log: MemoryEventLog) -> Agent:
        leaf = researcher(*script_by_turn([call("pay"), call("slow")], "Paid."), name="leaf", tools=[pay, slow])
        script = script_by_turn([call("leaf", prompt="x")], [call("pay")], "Asked.")
        middle = researcher(*script, name="middle", tools=[leaf.as_tool(), pay])
        parallel_calls = [call("middle", prompt="x"), call("middle", prompt="x")]
        return editor(middle.as_tool(), turns=script_by_turn(parallel_calls, "A page."), log=log)

    recorded = await collect(make_agent_tree(MemoryEventLog()).run("q", on_input=lambda _: True))
    for position in range(1, len(recorded), 2):
        EFFECTS.clear()
        log = MemoryEventLog()
        run = make_agent_tree(log).run("q", on_input=lambda _: True)
        releases: list[asyncio.Task[None]] = []
        count = 0
        async for _ in run:
            if count == position:
                releases.append(asyncio.create_task(run.release(grace)))
            count += 1
        await asyncio.gather(*releases)
        resumed = make_agent_tree(log).resume(run.task_id, on_input=lambda _: True)
        await collect(resumed)
        result = await resumed
        events = await log.read(run.task_id)
        check_attempts(events)
        assert result.output == "A page.", position
        assert result.usage == total_usage(events), position
        payments = [effect for effect in EFFECTS if effect.startswith("paid")]
        assert len(payments) == len(set(payments)), position


@tool
async def ask(ctx: RunContext[Any]) -> str:
    """Asks."""
    return f"{await ctx.ask('May I?')}"


@strategy
async def delegate(run: StrategyRun) -> str:
    """Delegate to an agent on a separate branch."""
    answer = await run.call("research", {"prompt": "x"}, branch="delegates/1")
    return answer.content


async def test_agent_called_on_a_branch_of_a_strategy_can_ask() -> None:
    def agent(log: MemoryEventLog, *turns: Any) -> Agent:
        child = researcher(*turns, tools=[ask])
        return Agent(ScriptedModel(), tools=[child.as_tool("research")], log=log, strategy=delegate, name="head")

    log = MemoryEventLog()
    run = agent(log, call("ask")).run("q")
    events = await collect_checked(run)
    result = await run
    assert result.state == "input-required"
    resumed = agent(log, turn_with_usage("A.")).resume(run.task_id, inputs={result.pending[0].input_id: True})
    await collect(resumed)
    result = await resumed
    assert result.output == "A."
    assert result.pending == []
    recorded = await log.read(run.task_id)
    check_attempts(recorded)
    assert result.usage == total_usage(recorded)
    assert len({event.task_id for event in [*events, *recorded]}) == 2


@in_virtual_time
async def test_agent_canceled_on_a_branch_of_a_strategy_is_resumed_where_it_stopped() -> None:  # L89
    def agent(log: MemoryEventLog) -> Agent:
        script = script_by_turn([call("slow")], [call("search", question="x")], [call("slow")], "A.")
        child = researcher(*script, tools=[slow, search])
        return Agent(ScriptedModel(), tools=[child.as_tool("research")], log=log, strategy=delegate, name="head")

    EFFECTS.clear()
    log = MemoryEventLog()
    run = agent(log).run("q").start()
    await asyncio.sleep(3)  # in the second `slow`
    run.cancel()
    await collect(run)
    canceled_events = await log.read(run.task_id)

    resumed = agent(log).resume(run.task_id)
    await collect(resumed)
    assert (await resumed).output == "A."
    # The second call was interrupted with an unknown effect, so it is not repeated.
    assert EFFECTS == ["begun", "over", "begun"]
    recorded = await log.read(run.task_id)
    check_attempts(recorded)
    assert len({event.task_id for event in filter_by_path(recorded, "researcher")}) == 1

    for at in (len(canceled_events), len(recorded) - 2):
        EFFECTS.clear()
        fork = agent(log).fork(run.task_id, at=at)
        await collect(fork)
        assert (await fork).output == "A.", at
        assert EFFECTS == []
        assert len({event.task_id for event in filter_by_path(await log.read(fork.task_id), "researcher")}) == 1, at
