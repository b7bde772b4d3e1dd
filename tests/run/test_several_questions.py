"""Several questions of one message: each has its own answer, whatever the order in which they come."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from rxloop import (
    Agent,
    Event,
    InputRequiredEvent,
    MemoryEventLog,
    RunContext,
    op,
    tool,
)
from rxloop.pipeline.requests import Signal, ToolRequest
from rxloop.testing import ScriptedModel, call
from support.payments import Payments
from support.runs import collect


def seen(events: list[Event], kind: type[Event]) -> int:
    return sum(isinstance(event, kind) for event in events)


async def test_questions_of_calls_side_by_side_are_all_asked(bank: Payments) -> None:
    run = bank.agent([call("pay", amount=n) for n in range(7)]).run("Pay")
    events = await collect(run)

    assert seen(events, InputRequiredEvent) == 7
    assert len((await run).pending) == 7


async def test_an_answer_to_a_question_that_is_not_put_any_more_approves_nothing() -> None:
    sent: list[int] = []
    known = False

    @tool(approve=True)
    async def send(amount: int) -> str:
        """Sends."""
        sent.append(amount)
        return "sent"

    @op.on(ToolRequest)
    async def knows(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        yield request if known or await ctx.ask("Is Bob a customer?") else request.refuse("No customer.")

    loop = op.standard(before_tools=[knows])
    agent = Agent(ScriptedModel(call("send", amount=5), "done"), tools=[send], log=MemoryEventLog(), loop=loop)
    first = await agent.run("Send 5")
    known = True
    second = await agent.resume(first.task_id, inputs={first.pending[0].input_id: True})

    assert (sent, second.state) == ([], "input-required")
    assert "send" in second.pending[0].prompt
    third = await agent.resume(first.task_id, inputs={second.pending[0].input_id: True})
    assert (sent, third.output) == ([5], "done")


async def test_questions_that_come_in_another_order_have_their_own_answers() -> None:
    got: list[Any] = []
    calls = 0

    @tool
    async def asks(ctx: RunContext[Any]) -> str:
        """Asks."""
        nonlocal calls
        calls += 1

        async def put(name: str, turns: int) -> tuple[str, bool]:
            for _ in range(turns):
                await asyncio.sleep(0)
            return name, await ctx.ask(f"{name}?")

        got.append(await asyncio.gather(put("a", 1 if calls == 1 else 3), put("b", 2)))
        return "ok"

    agent = Agent(ScriptedModel(call("asks"), "done"), tools=[asks], log=MemoryEventLog())
    result = await agent.run("Go")
    while result.state == "input-required":
        inputs = {question.input_id: question.prompt == "a?" for question in result.pending}
        result = await agent.resume(result.task_id, inputs=inputs)

    assert got == [[("a", True), ("b", False)]]


async def test_the_same_question_twice_has_two_answers() -> None:
    got: list[Any] = []

    @tool
    async def asks(ctx: RunContext[Any]) -> str:
        """Asks."""
        got.append([await ctx.ask("Sure?"), await ctx.ask("Sure?")])
        return "ok"

    agent = Agent(ScriptedModel(call("asks"), "done"), tools=[asks], log=MemoryEventLog())
    first = await agent.run("Go")
    second = await agent.resume(first.task_id, inputs={first.pending[0].input_id: True})
    assert second.pending[0].input_id != first.pending[0].input_id
    await agent.resume(first.task_id, inputs={second.pending[0].input_id: False})

    assert got == [[True, False]]
