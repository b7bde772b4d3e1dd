"""Tests for questions with and without `await`."""

from __future__ import annotations

import ast
import asyncio
import logging
from typing import Any, Literal

import pytest

from rxloop import Agent, MemoryEventLog, RunContext, RxloopError, ToolCompleteEvent, tool
from rxloop.pipeline.ask import Question
from rxloop.testing import ScriptedModel, call
from support.runs import collect


async def execute(pay: Any) -> tuple[ToolCompleteEvent, ScriptedModel]:
    model = ScriptedModel(call("pay"), "Done.")
    run = Agent(model, tools=[pay]).run("Pay.", on_input=lambda question: True)
    return next(event for event in await collect(run) if isinstance(event, ToolCompleteEvent)), model


async def test_question_in_a_condition_raises_an_error() -> None:
    paid: list[str] = []

    @tool
    async def pay(ctx: RunContext) -> str:
        """Pay."""
        if not ctx.ask("Pay?"):  # pyright: ignore[reportGeneralTypeIssues, reportUnnecessaryComparison]
            return "refused"
        paid.append("paid")
        return "paid"

    event, _ = await execute(pay)
    assert not event.success
    assert "ctx.ask('Pay?') was not awaited" in (event.error or "")
    assert paid == []


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_tool_fails_when_it_ignores_its_question(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    async def pay(ctx: RunContext) -> str:
        """Pay."""
        ctx.ask("Pay?")  # pyright: ignore[reportUnusedCoroutine]
        return "paid"

    def pay_sync(ctx: RunContext) -> str:
        """Pay."""
        ctx.ask("Pay?")  # pyright: ignore[reportUnusedCoroutine]
        return "paid"

    with caplog.at_level(logging.ERROR, "rxloop"):
        event, model = await execute(tool(name="pay")(pay if kind == "async" else pay_sync))
    assert not event.success
    assert "did not wait for the answer" in model.requests[1].messages[-1].text
    assert [each.levelname for each in caplog.records] == ["ERROR"]


async def test_question_can_be_awaited_directly_or_by_tasks() -> None:
    @tool
    async def pay(ctx: RunContext) -> list[bool]:
        """Pay."""
        one = await ctx.ask("One?")
        two = await asyncio.create_task(ctx.ask("Two?"))
        three, four = await asyncio.gather(ctx.ask("Three?"), ctx.ask("Four?"))
        async with asyncio.timeout(5):
            five = await asyncio.wait_for(ctx.ask("Five?"), 5)
        return [one, two, three, four, five]

    event, _ = await execute(pay)
    assert event.result == [True] * 5


async def test_question_without_await_is_logged_outside_tools(caplog: pytest.LogCaptureFixture) -> None:
    async def ask() -> bool:
        return True

    question = Question("Pay?", ask)
    del question
    assert "ctx.ask('Pay?') was never awaited" in caplog.text
    with pytest.raises(RxloopError, match="use `await ctx"):
        bool(Question("Pay?", ask))
    assert await Question("Pay?", ask)


@pytest.mark.parametrize(
    ("answer", "options"),
    [(bool, ["yes", "no"]), (int, [1, "2"]), (str, [1, 2]), (bool, [0, 1]), (list[str], ["a", "b"])],
)
async def test_option_of_another_type_is_refused_because_no_answer_would_be_valid(answer: Any, options: Any) -> None:
    @tool
    async def pay(ctx: RunContext) -> str:
        """Pay."""
        return str(await ctx.ask("Which bill?", answer, options=options))

    event, _ = await execute(pay)
    assert not event.success
    assert "cannot answer 'Which bill?'" in (event.error or "")
    assert "pass their type" in (event.error or "")


@pytest.mark.parametrize(
    ("answer", "options"), [(str, ["rent", "power"]), (float, [1, 2.5]), (bool, [True]), (Literal["a", 1], ["a", 1])]
)
async def test_question_accepts_each_of_its_options(answer: Any, options: list[Any]) -> None:
    @tool
    async def choose(ctx: RunContext) -> str:
        """Choose."""
        return repr(await ctx.ask("Which bill?", answer, options=options))

    for option in options:
        agent = Agent(ScriptedModel(call("choose"), "Done."), tools=[choose], log=MemoryEventLog())
        paused = await agent.run("Choose.")
        result = await agent.resume(paused.task_id, inputs={paused.pending[0].input_id: option})
        assert ast.literal_eval(result.messages[2].text) == option
