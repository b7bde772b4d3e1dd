"""Approvals of calls whose arguments a guard edits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from rxloop import Agent, MemoryEventLog, RunContext, Signal, ToolRequest, op, tool
from rxloop.testing import ScriptedModel, call

PROMPTS = ["Pay?", "Pay {amount}?"]


def make_agent(amounts: list[int], paid: list[int], prompt: str) -> Agent[None, str]:
    """Create an agent whose guard replaces the amount of each attempt by the next of these amounts."""

    @tool(approve=prompt)
    async def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return "Paid."

    @op.on(ToolRequest)
    async def edit(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        yield request.replace(amount=amounts.pop(0))

    model = ScriptedModel(call("pay", amount=1), "Done.")
    return Agent(model, tools=[pay], log=MemoryEventLog(), loop=op.standard(before_tools=[edit]), thoughts=False)


@pytest.mark.parametrize("prompt", PROMPTS)
async def test_approval_counts_only_for_the_arguments_that_were_approved(prompt: str) -> None:
    paid: list[int] = []
    agent = make_agent([5, 500, 500], paid, prompt)
    first = await agent.run("Pay 1.")
    [asked] = first.pending
    second = await agent.resume(first.task_id, inputs={asked.input_id: True})
    assert paid == []
    [asked_again] = second.pending
    assert asked_again.input_id != asked.input_id
    assert asked_again.call is not None
    assert asked_again.call.arguments == {"amount": 500}
    assert (await agent.resume(first.task_id, inputs={asked_again.input_id: True})).output == "Done."
    assert paid == [500]


@pytest.mark.parametrize("prompt", PROMPTS)
async def test_approval_counts_if_a_guard_edits_the_arguments_alike(prompt: str) -> None:
    paid: list[int] = []
    agent = make_agent([5, 5], paid, prompt)
    first = await agent.run("Pay 1.")
    assert (await agent.resume(first.task_id, inputs={first.pending[0].input_id: True})).output == "Done."
    assert paid == [5]
