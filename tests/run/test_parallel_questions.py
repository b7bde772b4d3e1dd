"""Parallel questions have separate answers."""

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


def count_events(events: list[Event], kind: type[Event]) -> int:
    return sum(isinstance(event, kind) for event in events)


async def test_questions_of_parallel_calls_are_all_asked(bank: Payments) -> None:
    run = bank.agent([call("pay", amount=n) for n in range(7)]).run("Pay")
    events = await collect(run)

    assert count_events(events, InputRequiredEvent) == 7
    assert len((await run).pending) == 7


async def test_answer_to_a_dropped_guard_question_does_not_approve_the_call() -> None:
    sent: list[int] = []
    is_customer = False

    @tool(approve=True)
    async def send(amount: int) -> str:
        """Sends."""
        sent.append(amount)
        return "sent"

    @op.on(ToolRequest)
    async def ask_for_customer(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        yield request if is_customer or await ctx.ask("Is Bob a customer?") else request.refuse("No customer.")

    loop = op.standard(before_tools=[ask_for_customer])
    agent = Agent(ScriptedModel(call("send", amount=5), "done"), tools=[send], log=MemoryEventLog(), loop=loop)
    first = await agent.run("Send 5")
    is_customer = True
    second = await agent.resume(first.task_id, inputs={first.pending[0].input_id: True})

    assert sent == []
    assert second.state == "input-required"
    assert "send" in second.pending[0].prompt
    third = await agent.resume(first.task_id, inputs={second.pending[0].input_id: True})
    assert sent == [5]
    assert third.output == "done"


async def test_questions_in_another_order_get_their_own_answers() -> None:
    answers: list[Any] = []
    calls = 0

    @tool
    async def asks(ctx: RunContext[Any]) -> str:
        """Asks."""
        nonlocal calls
        calls += 1

        async def ask_later(name: str, rounds: int) -> tuple[str, bool]:
            for _ in range(rounds):
                await asyncio.sleep(0)
            return name, await ctx.ask(f"{name}?")

        answers.append(await asyncio.gather(ask_later("a", 1 if calls == 1 else 3), ask_later("b", 2)))
        return "ok"

    agent = Agent(ScriptedModel(call("asks"), "done"), tools=[asks], log=MemoryEventLog())
    result = await agent.run("Go")
    while result.state == "input-required":
        inputs = {question.input_id: question.prompt == "a?" for question in result.pending}
        result = await agent.resume(result.task_id, inputs=inputs)

    assert answers == [[("a", True), ("b", False)]]


async def test_same_question_twice_gets_two_answers() -> None:
    answers: list[Any] = []

    @tool
    async def asks(ctx: RunContext[Any]) -> str:
        """Asks."""
        answers.append([await ctx.ask("Sure?"), await ctx.ask("Sure?")])
        return "ok"

    agent = Agent(ScriptedModel(call("asks"), "done"), tools=[asks], log=MemoryEventLog())
    first = await agent.run("Go")
    second = await agent.resume(first.task_id, inputs={first.pending[0].input_id: True})
    assert second.pending[0].input_id != first.pending[0].input_id
    await agent.resume(first.task_id, inputs={second.pending[0].input_id: False})

    assert answers == [[True, False]]
