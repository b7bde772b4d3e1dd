"""What becomes of the calls of one message: their events, and what the model reads."""

from typing import Any

from rxloop import (
    Agent,
    ToolCompleteEvent,
    tool,
)
from rxloop.testing import ScriptedModel
from support.runs import collect, well_formed


async def answer_of(*tools: Any, calls: Any, **fields: Any) -> tuple[list[ToolCompleteEvent], list[str]]:
    """The `tool-complete` events of one message with these calls, and what the model reads."""
    model = ScriptedModel(calls, "done")
    events = await collect(Agent(model, tools=tools, **fields).run("Go"))
    answers = sorted((event for event in events if isinstance(event, ToolCompleteEvent)), key=lambda event: event.index)
    assert well_formed(model.requests[1].messages)
    return answers, [message.text for message in model.requests[1].messages if message.role == "tool"]


@tool
async def echo(value: Any) -> Any:
    """Gives it back."""
    return value
