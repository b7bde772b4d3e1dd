"""Thoughts, messages and calls for thought graphs."""

from __future__ import annotations

from typing import Any

from rxloop.protocol.events import ContentCompleteEvent, ThoughtStreamEvent
from rxloop.protocol.messages import ToolCall


def thought(id: str, related_to: str | None = None, content: str = "", **more: Any) -> ThoughtStreamEvent:
    return ThoughtStreamEvent(thought_id=id, related_to=related_to, content=content or f"about {id}", **more)


def message(*calls: str, step: str = "1", **more: Any) -> ContentCompleteEvent:
    tool_calls = [ToolCall(id=each, name="weather", arguments={"city": each}) for each in calls]
    return ContentCompleteEvent(tool_calls=tool_calls, step=step, **more)
