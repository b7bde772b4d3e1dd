"""System messages in tool results."""

from __future__ import annotations

from itertools import repeat
from typing import Any, cast

import pytest

from rxloop import Agent, MemoryEventLog, Message, ToolCompleteEvent, ToolResult, op, tool
from rxloop.testing import ScriptedModel, call
from support.bank import log_after_crash
from support.runs import collect, is_well_formed, shape


@tool
async def learn(what: str) -> ToolResult:
    """Learns."""
    return ToolResult({"learnt": what}, "learnt", messages=[f"SECRET {what}", Message.system("Be brief.")])


async def test_tool_messages_follow_the_results_of_the_batch_and_are_private() -> None:  # L118
    log = MemoryEventLog()
    model = ScriptedModel([call("learn", what="a"), call("learn", what="b")], "Done.")
    run = Agent(model, tools=[learn], log=log).run("Go", context_id="c")
    events = await collect(run.pipe(op.grammar()))
    result = await run

    assert shape(result.messages)[2:-1] == [
        *["tool: learnt"] * 2,
        *["system: SECRET a", "system: Be brief.", "system: SECRET b", "system: Be brief."],
    ]
    assert is_well_formed(result.messages)
    assert shape(model.requests[1].messages) == shape(result.messages)[:-1]
    assert len({message.message_id for message in result.messages}) == len(result.messages)
    assert all(b"SECRET" not in event.to_json(public=True) for event in events if event.public)


@pytest.mark.parametrize("message", ["x", ""])
async def test_endless_tool_messages_fail_the_call(message: str) -> None:  # L118
    @tool
    async def tell() -> ToolResult:
        """Tells."""
        return ToolResult(1, "told", messages=cast("Any", repeat(message)))

    result = await Agent(ScriptedModel(call("tell"), "Done."), tools=[tell]).run("Go")
    assert "are longer than 100,000 characters" in result.messages[2].text


async def test_tool_messages_are_not_duplicated_after_a_crash() -> None:  # L118
    log = MemoryEventLog()
    first = await Agent(ScriptedModel(call("learn", what="a"), "Done."), tools=[learn], log=log).run("Go")
    log = await log_after_crash(log, first.task_id, ToolCompleteEvent)
    result = await Agent(ScriptedModel("Done."), tools=[learn], log=log).resume(first.task_id)
    assert shape(result.messages) == shape(first.messages)
    assert [message.message_id for message in result.messages] == [message.message_id for message in first.messages]


@pytest.mark.parametrize("messages", [[Message.user("Hi")], [5], ["x" * 100_001]])
async def test_invalid_tool_messages_fail_the_call(messages: Any) -> None:  # L118
    @tool
    async def odd() -> ToolResult:
        """Odd."""
        return ToolResult(1, "one", messages=messages)

    result = await Agent(ScriptedModel(call("odd"), "Sorry."), tools=[odd]).run("Go")
    assert result.messages[2].text.startswith("The tool ran, but ")
