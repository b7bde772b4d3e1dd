"""The messages of a conversation, out of the log."""

from __future__ import annotations

from typing import Any

from rxloop import Agent, MemoryEventLog, RunContext, history, tool
from rxloop.testing import ScriptedModel, call

MARK = "PLANTED"


@tool(hidden=True)
async def peek() -> str:
    """Look where nobody sees it."""
    return MARK


@tool(approve=True)
async def pay(ctx: RunContext[Any]) -> str:
    """Pay."""
    return "paid"


async def test_the_history_is_what_the_next_run_would_begin_with() -> None:
    log = MemoryEventLog()
    model = ScriptedModel("Oslo.", call("peek"), "Done.", "Bergen.")
    agent = Agent(model, tools=[peek], log=log, instructions="Be brief.")
    await agent.run("The capital?", context_id="c")
    await agent.run("And now peek", context_id="c")

    before = await history(log, "c")
    await agent.run("Next?", context_id="c")

    sent = model.requests[-1].messages
    assert [*before, *sent[-1:]] == [message for message in sent if message.role != "system"]
    assert [message.role for message in before] == ["user", "assistant", "user", "assistant", "tool", "assistant"]


async def test_what_clients_get_of_it_has_nothing_of_hidden_tools() -> None:
    log = MemoryEventLog()
    agent = Agent(ScriptedModel(call("peek"), "Done."), tools=[peek], log=log)
    await agent.run("Peek", context_id="c")

    shown = await history(log, "c", public=True)

    assert MARK in repr(await history(log, "c"))
    assert [(message.role, message.text) for message in shown] == [("user", "Peek"), ("assistant", "Done.")]
    assert MARK not in repr(shown)
    assert "peek" not in repr(shown)


async def test_a_question_that_nobody_answered_is_told_as_the_next_run_would_be() -> None:
    log = MemoryEventLog()
    agent = Agent(ScriptedModel(call("pay"), "Well."), tools=[pay], log=log)
    waiting = await agent.run("Pay", context_id="c")

    told = await history(log, "c")

    assert waiting.pending
    assert [message.role for message in told] == ["user", "assistant", "tool"]


async def test_a_conversation_that_nobody_began_has_no_messages() -> None:
    assert await history(MemoryEventLog(), "nobody") == []
