"""Tool calls during a strategy."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rxloop import (
    Agent,
    Event,
    LLMCallEvent,
    MemoryEventLog,
    ModelSettings,
    RunContext,
    RunError,
    ToolCompleteEvent,
    op,
    tool,
)
from rxloop.pipeline.requests import ModelRequest, Signal, ToolRequest
from rxloop.strategies import StrategyRun, strategy
from rxloop.testing import ScriptedModel, call
from support.runs import collect
from support.strategy_cases import add, find_open_items


async def test_tools_and_settings_apply_to_a_single_ask() -> None:
    @strategy
    async def handy(run: StrategyRun) -> str:
        without_tools = await run.ask("Without.", settings=ModelSettings(temperature=0.9))
        with_tools = await run.ask("With.", tools=True)
        return f"{without_tools.text} {with_tools.text} {[each.result for each in with_tools.results]}"

    model = ScriptedModel("No.", call("add", a=1, b=2), "3")
    result = await Agent(model, tools=[add], strategy=handy, settings=ModelSettings(seed=7)).run("Q")
    assert result.output == "No. 3 [3]"
    assert [[each.name for each in request.tools] for request in model.requests] == [
        [],
        ["add", "think_aloud"],
        ["add", "think_aloud"],
    ]
    assert [(each.settings.temperature, each.settings.seed) for each in model.requests] == [
        (0.9, 7),
        (None, 7),
        (None, 7),
    ]


async def test_guard_can_refuse_a_call_of_the_strategy() -> None:
    @op.on(ToolRequest)
    async def no_adding(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        yield request.refuse(f"no {request.call.name} of {request.call.arguments}")

    agent = Agent(ScriptedModel(), tools=[add], loop=op.standard(before_tools=[no_adding]), strategy=call_add)
    assert (await agent.run("Q")).output == "False no add of {'a': 1, 'b': 2}"


@strategy
async def call_add(run: StrategyRun) -> str:
    answer = await run.call("add", {"a": 1, "b": 2}, branch="call_add/1")
    return f"{answer.success} {answer.content}"


async def test_call_of_the_strategy_needs_no_model() -> None:
    model = ScriptedModel()
    run = Agent(model, tools=[add], strategy=call_add).run("Q")
    events = await collect(run)
    assert (await run).output == "True 3"
    assert not model.requests
    assert [each.kind for each in events if each.branch == "call_add/1"] == [
        "content-complete",
        "tool-start",
        "tool-complete",
        "checkpoint",
    ]


async def test_call_of_an_unknown_tool_fails_and_the_run_continues() -> None:
    result = await Agent(ScriptedModel(), strategy=call_add).run("Q")
    assert result.output.startswith("False There is no tool 'add'")


async def test_cancelled_call_is_closed() -> None:
    @tool
    async def add(a: int, b: int) -> int:
        """Never ends."""
        await asyncio.get_running_loop().create_future()
        return 0

    run = Agent(ScriptedModel(), tools=[add], strategy=call_add).run("Q")
    events: list[Event] = []
    async for event in run:
        events.append(event)
        if event.kind == "tool-start":
            run.cancel()
    assert find_open_items(events) == set()
    assert [each.error for each in events if isinstance(each, ToolCompleteEvent)] == ["canceled"]


async def test_pipeline_without_tools_is_an_error_that_names_its_operators() -> None:
    agent = Agent(ScriptedModel(), tools=[add], strategy=call_add, loop=[op.call_model()])
    with pytest.raises(RunError, match="no operator answered the call of add; the pipeline is call_model"):
        await agent.run("Q")


# -- questions to a person


@tool
async def pay(ctx: RunContext[None], amount: int) -> str:
    """Pays."""
    return "paid" if await ctx.ask(f"Pay {amount}?") else "not paid"


async def test_question_on_a_branch_pauses_the_run_until_it_is_answered() -> None:
    @strategy
    async def paying(run: StrategyRun) -> str:
        await run.ask("Say hello.")
        paid = await run.gather(*(run.ask("Pay.", branch=name, tools=True) for name in "ab"))
        return " ".join(each.text for each in paid)

    def reply(request: ModelRequest) -> Any:
        if request.messages[-1].role == "tool":
            return f"{request.branch}: {request.messages[-1].text}"
        return "Hello." if request.branch == "paying" else call("pay", amount=5)

    log = MemoryEventLog()
    agent = Agent(ScriptedModel(*[reply] * 20), tools=[pay], strategy=paying, log=log)
    paused = await agent.run("Q")
    assert paused.state == "input-required"
    assert sorted(each.input_id for each in paused.pending) == ["a/1.0.1", "b/1.0.1"]
    result = await agent.resume(paused.task_id, inputs={"a/1.0.1": True, "b/1.0.1": False})
    assert result.output == "a: paid b: not paid"
    events = await log.read(result.task_id)
    assert [event.kind for event in events].count("input-required") == 2
    asked = [event.step for event in events if isinstance(event, LLMCallEvent)]
    assert sorted(step or "" for step in asked) == ["a/1", "a/2", "b/1", "b/2", "paying/1"]


async def test_open_question_is_not_asked_again() -> None:
    @strategy
    async def paying(run: StrategyRun) -> str:
        await run.ask("Say hello.", branch="first")
        paid = await run.gather(*(run.ask("Pay.", branch=name, tools=True) for name in "ab"))
        return " ".join(each.text for each in paid)

    def reply(request: ModelRequest) -> Any:
        return request.messages[-1].text if request.messages[-1].role == "tool" else call("pay", amount=5)

    log = MemoryEventLog()
    agent = Agent(ScriptedModel("Hello.", *[reply] * 20), tools=[pay], strategy=paying, log=log)
    paused = await agent.run("Q")
    half = await agent.resume(paused.task_id, inputs={"a/1.0.1": True})
    assert [each.input_id for each in half.pending] == ["b/1.0.1"]
    assert (await agent.resume(paused.task_id, on_input=lambda question: True)).output == "paid paid"
    events = await log.read(paused.task_id)
    assert [event.kind for event in events].count("input-required") == 2


async def test_question_on_a_branch_can_be_answered_by_on_input() -> None:
    @strategy
    async def paying(run: StrategyRun) -> str:
        return (await run.ask("Pay.", tools=True)).text

    model = ScriptedModel(call("pay", amount=5), lambda request: request.messages[-1].text)
    result = await Agent(model, tools=[pay], strategy=paying).run("Q", on_input=lambda question: True)
    assert (result.output, result.pending) == ("paid", [])
