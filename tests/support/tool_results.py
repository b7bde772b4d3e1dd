"""Execution of the tool calls in a message."""

from typing import Any

from rxloop import (
    Agent,
    ToolCompleteEvent,
    tool,
)
from rxloop.testing import ScriptedModel
from support.runs import collect, is_well_formed


async def run_tool_calls(*tools: Any, calls: Any, **fields: Any) -> tuple[list[ToolCompleteEvent], list[str]]:
    """Execute calls, returning their `tool-complete` events and the results sent to the model."""
    model = ScriptedModel(calls, "done")
    events = await collect(Agent(model, tools=tools, **fields).run("Go"))
    answers = sorted((event for event in events if isinstance(event, ToolCompleteEvent)), key=lambda event: event.index)
    assert is_well_formed(model.requests[1].messages)
    return answers, [message.text for message in model.requests[1].messages if message.role == "tool"]


@tool
async def echo(value: Any) -> Any:
    """Gives it back."""
    return value
