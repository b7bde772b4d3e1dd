from __future__ import annotations

from typing import Any

from rxloop import Agent, MemoryEventLog, RunContext, history, tool
from rxloop.state.history import CANCELED_CALL
from rxloop.testing import ScriptedModel, call

MARK = "PLANTED"


@tool(hidden=True)
async def peek() -> str:
    """Look."""
    return MARK


@tool(approve=True)
async def pay(ctx: RunContext[Any]) -> str:
    """Pay."""
    return "paid"


async def look() -> str:
    """Look openly."""
    return "seen"


async def test_history_has_the_messages_of_the_next_run() -> None:
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


async def test_public_history_omits_hidden_tools() -> None:
    log = MemoryEventLog()
    agent = Agent(ScriptedModel(call("peek"), "Done."), tools=[peek], log=log)
    await agent.run("Peek", context_id="c")

    public = await history(log, "c", public=True)

    assert MARK in repr(await history(log, "c"))
    assert [(message.role, message.text) for message in public] == [("user", "Peek"), ("assistant", "Done.")]
    assert MARK not in repr(public)
    assert "peek" not in repr(public)


async def test_history_includes_a_result_for_an_unanswered_question() -> None:
    log = MemoryEventLog()
    agent = Agent(ScriptedModel(call("pay"), "Well."), tools=[pay], log=log)
    waiting = await agent.run("Pay", context_id="c")

    messages = await history(log, "c")

    assert waiting.pending
    assert [message.role for message in messages] == ["user", "assistant", "tool"]


async def test_public_history_has_no_result_for_an_unanswered_question_until_it_is_dropped() -> None:
    log = MemoryEventLog()
    model = ScriptedModel([call("look"), call("pay")], "Well.")
    agent = Agent(model, tools=[pay, tool(look)], log=log)
    waiting = await agent.run("Pay", context_id="c")
    while_waiting = await history(log, "c", public=True)

    await agent.run("Never mind", context_id="c")

    assert waiting.pending
    assert [(message.role, message.text) for message in while_waiting[2:]] == [("tool", "seen")]
    after = await history(log, "c", public=True)
    assert [message.role for message in after] == ["user", "assistant", "tool", "tool", "user", "assistant"]
    assert after[3].text == CANCELED_CALL


async def test_unknown_conversation_has_no_messages() -> None:
    assert await history(MemoryEventLog(), "unknown") == []
