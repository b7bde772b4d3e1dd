"""A question of a tool has to be awaited."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from rxloop import Agent, RunContext, RxloopError, ToolCompleteEvent, tool
from rxloop.pipeline.ask import Asked
from rxloop.testing import ScriptedModel, call
from support.runs import collect


async def done(made: Any) -> tuple[ToolCompleteEvent, ScriptedModel]:
    model = ScriptedModel(call("pay"), "Done.")
    run = Agent(model, tools=[made]).run("Pay.", on_input=lambda question: True)
    return next(event for event in await collect(run) if isinstance(event, ToolCompleteEvent)), model


async def test_a_question_that_is_taken_for_its_answer_is_an_error() -> None:
    paid: list[str] = []

    @tool
    async def pay(ctx: RunContext) -> str:
        """Pay."""
        if not ctx.ask("Pay?"):  # pyright: ignore[reportGeneralTypeIssues]
            return "refused"
        paid.append("paid")
        return "paid"

    event, _ = await done(pay)
    assert not event.success
    assert "ctx.ask('Pay?') was not awaited" in (event.error or "")
    assert paid == []


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_tool_that_goes_on_without_the_answer_has_failed(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    async def pay(ctx: RunContext) -> str:
        """Pay."""
        ctx.ask("Pay?")  # pyright: ignore[reportUnusedCoroutine]
        return "paid"

    def pays(ctx: RunContext) -> str:
        """Pay."""
        ctx.ask("Pay?")  # pyright: ignore[reportUnusedCoroutine]
        return "paid"

    with caplog.at_level(logging.ERROR, "rxloop"):
        event, model = await done(tool(name="pay")(pay if kind == "async" else pays))
    assert not event.success
    assert "did not wait for the answer" in model.requests[1].messages[-1].text
    assert [each.levelname for each in caplog.records] == ["ERROR"]


async def test_a_question_can_be_awaited_in_every_way() -> None:
    @tool
    async def pay(ctx: RunContext) -> list[bool]:
        """Pay."""
        one = await ctx.ask("One?")
        two = await asyncio.create_task(ctx.ask("Two?"))
        three, four = await asyncio.gather(ctx.ask("Three?"), ctx.ask("Four?"))
        async with asyncio.timeout(5):
            five = await asyncio.wait_for(ctx.ask("Five?"), 5)
        return [one, two, three, four, five]

    event, _ = await done(pay)
    assert event.result == [True] * 5


async def test_a_question_that_nobody_awaits_is_told_where_there_is_no_tool(caplog: pytest.LogCaptureFixture) -> None:
    async def put() -> bool:
        return True

    asked = Asked("Pay?", put)
    del asked
    assert "nobody awaited ctx.ask('Pay?')" in caplog.text
    with pytest.raises(RxloopError, match="write `await ctx"):
        bool(Asked("Pay?", put))
    assert await Asked("Pay?", put)
