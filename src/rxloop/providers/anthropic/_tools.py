"""The tools of a request, as the vendor takes their definitions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from rxloop.pipeline.requests import ToolDefinition
from rxloop.protocol.messages import Message
from rxloop.providers.anthropic._schemas import demands, fitted
from rxloop.providers.anthropic._settings import Tell
from rxloop.providers.writing._json import dumps

_STRICT, _OPTIONAL, _UNIONS = 20, 24, 16
"""The most strict tools of a request, and the optional arguments and unions in all of them."""
_AT_ROOT = ("anyOf", "oneOf", "allOf")
"""What an input schema may not begin with."""
_REMEMBERED = 50


def encoded_tools(tools: Sequence[ToolDefinition], strict: bool, tell: Tell) -> bytes:
    """The definitions, with commas between them.

    Args:
        tools: The tools.
        strict: The model can be held to the schemas of its calls.
        tell: Is told what is left out.
    """
    held = _held(tools, tell) if strict else {}
    return b",".join(dumps(_tool(tool, held.get(place), tell)) for place, tool in enumerate(tools))


def remembered_tools(messages: Iterable[Message]) -> bytes:
    """Bare definitions of the tools that are called in messages: calls are refused where no tool is defined."""
    names: dict[str, None] = {}
    for message in messages:
        for call in message.tool_calls:
            if len(names) < _REMEMBERED:
                names[re.sub("[^0-9A-Za-z_-]", "_", call.name)[:128] or "unknown"] = None
    return b",".join(dumps({"name": name, "input_schema": {"type": "object"}}) for name in names)


def _tool(tool: ToolDefinition, strict: dict[str, Any] | None, tell: Tell) -> dict[str, Any]:
    made: dict[str, Any] = {"name": tool.name}
    if tool.description:
        made["description"] = tool.description
    if strict is not None:
        return {**made, "input_schema": strict, "strict": True}
    schema = tool.parameters
    if schema.get("type") != "object" or any(name in schema for name in _AT_ROOT):
        if left := [name for name in _AT_ROOT if name in schema]:
            tell(f"{', '.join(left)} at the root of the arguments of {tool.name!r}")
        schema = {
            "type": "object",
            **{name: value for name, value in schema.items() if name not in (*_AT_ROOT, "type")},
        }
    return {**made, "input_schema": schema}


def _held(tools: Sequence[ToolDefinition], tell: Tell) -> dict[int, dict[str, Any]]:
    """The schemas of the tools whose calls the model is held to, by place, as many as the vendor takes."""
    held: dict[int, dict[str, Any]] = {}
    optional = unions = 0
    for place, tool in enumerate(tools):
        schema = fitted(tool.parameters) if tool.strict else None
        if schema is None or schema.get("type") != "object":
            if tool.strict:
                tell(f"strict for {tool.name!r}, whose arguments have no form that Claude can be held to")
            continue
        more = demands(schema)
        if len(held) >= _STRICT or optional + more[0] > _OPTIONAL or unions + more[1] > _UNIONS:
            tell(f"strict for {tool.name!r}: there are too many strict tools, or they have too many optional arguments")
            continue
        optional, unions = optional + more[0], unions + more[1]
        held[place] = schema
    return held
