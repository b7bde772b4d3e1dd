"""Conversations as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from rxloop.protocol.messages import Message, ToolCall
from rxloop.protocol.parts import add_placeholders
from rxloop.support.text import to_one_line

WIDTH = 160
"""Maximum number of characters for arguments and results."""

_TITLES = {"user": "User", "assistant": "Assistant", "system": "System"}


def format_transcript(messages: Sequence[Message]) -> str:
    """Format messages as Markdown. Hidden tool calls and their results are omitted."""
    return "\n".join(_format_all(messages))


def _format_all(messages: Sequence[Message]) -> Iterator[str]:
    hidden = {call.id for message in messages for call in message.tool_calls if call.hidden}
    title = ""
    for message in messages:
        if message.role == "tool":
            if message.tool_call_id not in hidden:
                yield _fence(message.text)
            continue
        calls = [call for call in message.tool_calls if not call.hidden]
        text = add_placeholders(message.text, message.media).strip()
        if not text and not calls:
            continue
        if title != _TITLES[message.role] or message.role != "assistant":
            title = _TITLES[message.role]
            yield f"## {title}\n"
        if text:
            yield f"{text}\n"
        for call in calls:
            yield f"Tool call: `{format_call(call)}`\n"


def _fence(text: str) -> str:
    """Return a code block. Its fence is longer than all fences in the text."""
    mark = "```"
    while mark in text:
        mark += "`"
    return f"{mark}\n{text.strip()}\n{mark}\n"


def format_call(call: ToolCall) -> str:
    """Format a tool call using function call syntax."""
    if call.error is not None:
        return f"{to_one_line(call.name)}({to_one_line(call.raw or '', WIDTH)})"
    arguments = (f"{name}={to_short_json(value)}" for name, value in call.arguments.items())
    return f"{to_one_line(call.name)}({to_one_line(', '.join(arguments), WIDTH)})"


def to_short_json(value: Any) -> str:
    """Convert a value to JSON on a single line. Values that are not JSON are converted to text."""
    return orjson.dumps(value, default=str).decode()
