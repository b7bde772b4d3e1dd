"""Calls of the server of sequential thinking."""

from __future__ import annotations

import json
from typing import Any

from mcp_types import CallToolResult, TextContent

from mcp import Client


def thought(number: int = 1, text: str = "So.", **fields: Any) -> dict[str, Any]:
    return {"thought": text, "nextThoughtNeeded": True, "thoughtNumber": number, "totalThoughts": 3, **fields}


def said(result: CallToolResult) -> dict[str, Any]:
    """What a tool said, which has to be the same in text and in structured content."""
    [item] = result.content
    assert isinstance(item, TextContent)
    told = json.loads(item.text)
    if not result.is_error:
        assert told == result.structured_content
        assert item.text == json.dumps(told, indent=2, ensure_ascii=False)
    return told


async def think(client: Client, *thoughts: dict[str, Any]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for each in thoughts:
        result = await client.call_tool("sequentialthinking", each)
        assert not result.is_error, result
        told = said(result)
    return told


async def refused(client: Client, arguments: dict[str, Any], tool: str = "sequentialthinking") -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    told = said(result)
    assert list(told) == ["error", "code", "fields", "status"]
    assert told["status"] == "failed"
    return told


async def history(client: Client, **arguments: Any) -> dict[str, Any]:
    return said(await client.call_tool("thinking_history", arguments))


def texts(told: dict[str, Any]) -> list[str]:
    return [each["thought"] for each in told["thoughts"]]
