"""Conversion of responses to messages."""

from __future__ import annotations

from rxloop.protocol.events import ContentCompleteEvent, Event
from rxloop.protocol.messages import Message
from rxloop.state.history import make_content


def to_message(complete: Event) -> Message:
    """Return the message that a response adds to the history."""
    assert isinstance(complete, ContentCompleteEvent), complete
    return Message(
        role="assistant",
        content=make_content(complete.content, complete.files) if complete.files else complete.content,
        reasoning=complete.reasoning,
        tool_calls=tuple(complete.tool_calls),
        provider_state=complete.provider_state,
    )
