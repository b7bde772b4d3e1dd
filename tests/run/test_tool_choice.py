"""Requests to which a forced `tool_choice` applies."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import BaseModel

from rxloop import (
    Agent,
    LimitReached,
    Limits,
    MemoryEventLog,
    ModelRequest,
    ModelSettings,
    RunContext,
    Signal,
    op,
    tool,
)
from rxloop.errors import ContextLengthExceeded
from rxloop.strategies import StrategyRun, strategy
from rxloop.testing import ScriptedModel, call
from rxloop.tools import FunctionTool
from support.runs import copy_first_events

FORCED = ["required", "look"]


@tool
async def look(at: str = "") -> str:
    """Look."""
    return "seen"


@tool(approve=True)
async def pay() -> str:
    """Pay."""
    return "paid"


def choices(model: ScriptedModel) -> list[Any]:
    return [request.settings.tool_choice for request in model.requests]


@pytest.mark.parametrize("choice", FORCED)
async def test_forced_tool_choice_applies_to_the_first_request_only(choice: str) -> None:  # P12
    model = ScriptedModel(call("look"), call("look"), "Done")
    result = await Agent(model, tools=[look], settings=ModelSettings(tool_choice=choice)).run("Go")

    assert choices(model) == [choice, "auto", "auto"]
    assert result.output == "Done"


@pytest.mark.parametrize("choice", ["auto", "none", None])
async def test_other_tool_choices_apply_to_every_request(choice: str | None) -> None:
    model = ScriptedModel(call("look"), "Done")
    await Agent(model, tools=[look], settings=ModelSettings(tool_choice=choice)).run("Go")

    assert choices(model) == [choice] * 2


@pytest.mark.parametrize("choice", FORCED)
async def test_forced_tool_choice_applies_to_every_request_by_option(choice: str) -> None:  # P12
    model = ScriptedModel(*[call("look")] * 10)
    settings = ModelSettings(tool_choice=choice, tool_choice_scope="every")
    with pytest.raises(LimitReached):
        await Agent(model, tools=[look], settings=settings, limits=Limits(iterations=4)).run("Go")

    assert choices(model) == [choice] * 4


async def test_settings_of_a_run_override_the_scope_of_the_agent() -> None:
    model = ScriptedModel(call("look"), call("look"), "Done")
    agent = Agent(model, tools=[look], settings=ModelSettings(tool_choice="look", tool_choice_scope="every"))
    await agent.run("Go", settings=ModelSettings(tool_choice_scope="first"))

    assert choices(model) == ["look", "auto", "auto"]


async def test_each_run_of_a_conversation_forces_its_first_request() -> None:  # P12
    log, settings = MemoryEventLog(), ModelSettings(tool_choice="look")
    model = ScriptedModel(call("look"), "One", call("look"), "Two")
    agent = Agent(model, tools=[look], settings=settings, log=log)
    first = await agent.run("Go")
    await agent.run("Again", context_id=first.context_id)

    assert choices(model) == ["look", "auto", "look", "auto"]


async def test_resumed_run_does_not_force_again() -> None:  # P12
    log, settings = MemoryEventLog(), ModelSettings(tool_choice="pay")
    paused = await Agent(ScriptedModel(call("pay")), tools=[pay], log=log, settings=settings).run("Go")
    model = ScriptedModel(call("look"), "Done")
    agent = Agent(model, tools=[pay, look], log=log, settings=settings)
    await agent.resume(paused.task_id, inputs={paused.pending[0].input_id: True})

    assert choices(model) == ["auto", "auto"]


async def test_resumed_run_forces_a_first_request_that_was_not_answered() -> None:  # P12
    log, settings = MemoryEventLog(), ModelSettings(tool_choice="look")
    run = await Agent(ScriptedModel(call("look"), "Done"), tools=[look], log=log, settings=settings).run("Go")
    events = await log.read(run.task_id)
    request_seq = next(event.seq for event in events if event.kind == "llm-call")
    model = ScriptedModel(call("look"), "Done")
    crashed = await copy_first_events(log, run.task_id, request_seq)
    await Agent(model, tools=[look], log=crashed, settings=settings).resume(run.task_id)

    assert choices(model) == ["look", "auto"]


async def test_settings_of_an_operator_are_not_changed() -> None:  # P12
    @op.on(ModelRequest)
    async def force(request: ModelRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        yield request.replace(settings=request.settings.model_copy(update={"tool_choice": "look"}))

    model = ScriptedModel(call("look"), call("look"), "Done")
    await Agent(model, tools=[look], loop=op.standard(before_model=[force])).run("Go")

    assert choices(model) == ["look"] * 3


async def test_nested_agent_forces_its_own_first_request() -> None:  # P12
    inner = ScriptedModel(call("look"), "Seen", call("look"), "Seen")
    clerk = Agent(inner, name="clerk", tools=[look], settings=ModelSettings(tool_choice="look"))
    outer = ScriptedModel(call("clerk", prompt="a"), call("clerk", prompt="b"), "Done")
    await Agent(outer, tools=[clerk.as_tool()], settings=ModelSettings(tool_choice="clerk")).run("Go")

    assert choices(outer) == ["clerk", "auto", "auto"]
    assert choices(inner) == ["look", "auto", "look", "auto"]


class Sky(BaseModel):
    color: str


ANSWERS = [("required", ["required"] * 3), ("look", ["look", "auto", "auto"]), ("final_answer", ["final_answer"] * 3)]


@pytest.mark.parametrize(("choice", "expected"), ANSWERS)
async def test_answer_tool_remains_forced(choice: str, expected: list[str]) -> None:  # P12
    model = ScriptedModel(call("look"), call("final_answer", colour="blue"), call("final_answer", color="blue"))
    settings = ModelSettings(tool_choice=choice)
    result = await Agent(model, tools=[look], output_type=Sky, output_mode="tool", settings=settings).run("Go")

    assert choices(model) == expected
    assert result.output == Sky(color="blue")


@pytest.mark.parametrize("mode", ["prompted", "native"])
async def test_typed_text_answer_follows_a_forced_tool(mode: Any) -> None:  # P12
    model = ScriptedModel(call("look"), '{"color": "blue"}')
    settings = ModelSettings(tool_choice="look")
    result = await Agent(model, tools=[look], output_type=Sky, output_mode=mode, settings=settings).run("Go")

    assert choices(model) == ["look", "auto"]
    assert result.output == Sky(color="blue")


async def test_concluding_request_is_not_forced() -> None:
    model = ScriptedModel(call("look"), call("look"), "Done")
    limits = Limits(iterations=3, conclude=True)
    await Agent(model, tools=[look], settings=ModelSettings(tool_choice="look"), limits=limits).run("Go")

    assert choices(model) == ["look", "auto", "none"]


async def test_retry_of_a_first_request_that_was_too_long_is_forced() -> None:  # P12
    model = ScriptedModel(ContextLengthExceeded("too long"), call("look"), "Done")
    await Agent(model, tools=[look], settings=ModelSettings(tool_choice="look")).run("Go")

    assert choices(model) == ["look", "look", "auto"]


async def test_each_branch_of_a_strategy_forces_its_first_request() -> None:  # P12
    @strategy
    async def ask_on_two_branches(run: StrategyRun) -> str:
        for branch in ("a", "b"):
            await run.ask("Act", branch=branch, tools=True)
        return "Done"

    model = ScriptedModel(call("look"), "a", call("look"), "b")
    await Agent(model, tools=[look], settings=ModelSettings(tool_choice="look"), strategy=ask_on_two_branches).run("Go")

    assert choices(model) == ["look", "auto", "look", "auto"]


async def test_ignored_forced_choice_is_not_repeated() -> None:  # P12
    model = ScriptedModel("no JSON", '{"color": "blue"}')
    settings = ModelSettings(tool_choice="look")
    agent = Agent(model, tools=[look], output_type=Sky, output_mode="prompted", settings=settings)
    await agent.run("Color?")

    assert choices(model) == ["look", "auto"]


async def test_forced_choice_of_one_question_of_a_strategy_applies_to_its_first_request() -> None:  # P12
    @strategy
    async def force_twice(run: StrategyRun) -> str:
        for _ in range(2):
            await run.ask("Act", tools=True, settings=ModelSettings(tool_choice="required"))
        return "Done"

    model = ScriptedModel(call("look"), call("look"), "seen", call("look"), "seen")
    await Agent(model, tools=[look], strategy=force_twice).run("Go")

    assert choices(model) == ["required", "auto", "auto", "required", "auto"]


async def test_strategy_on_the_main_branch_forces_once() -> None:  # P12
    model = ScriptedModel(call("look"), call("look"), "Answer: blue")
    settings = ModelSettings(tool_choice="look")
    await Agent(model, tools=[look], settings=settings, strategy="react").run("Color?")

    assert choices(model) == ["look", "auto", "auto"]


async def test_tools_are_searched_for_answer_tools_once_per_run() -> None:
    reads = 0

    class CountedTool(FunctionTool[Any, [], Any]):
        def __getattribute__(self, name: str) -> Any:
            nonlocal reads
            reads += name == "definition"
            return super().__getattribute__(name)

    async def count_reads(iterations: int) -> int:
        nonlocal reads
        agent = Agent(ScriptedModel(*[call("look")] * iterations, "Done"), tools=[look, CountedTool(unused)])
        reads = 0
        await agent.run("Go")
        return reads

    async def unused() -> None: ...

    assert await count_reads(2) == await count_reads(6)
