"""Calls of a sequential thinking server."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from mcp import Client
from mcp.server import Server
from mcp_types import CallToolResult, TextContent

from rxloop import MemoryEventLog, Runtime
from rxloop.server import ThinkingTools, mcp_server
from rxloop.thinking import ThinkingSessions, ThoughtResult


def thinking_server(
    sessions: ThinkingSessions | None = None,
    *,
    session: str | None = None,
    strategies: Sequence[str] = (),
    on_thought: Callable[[ThoughtResult], None] | None = None,
) -> Server[Any]:
    """Return a server without agents, for in-memory transports."""
    tools = ThinkingTools(sessions, session=session, strategies=strategies, on_thought=on_thought)
    return mcp_server(Runtime({}, log=MemoryEventLog()), sequential_thinking=tools).server


def thought(number: int = 1, text: str = "So.", **fields: Any) -> dict[str, Any]:
    return {"thought": text, "nextThoughtNeeded": True, "thoughtNumber": number, "totalThoughts": 3, **fields}


def parse_result(result: CallToolResult) -> dict[str, Any]:
    """Parse a tool result. Assert that its text and structured content agree."""
    [item] = result.content
    assert isinstance(item, TextContent)
    parsed = json.loads(item.text)
    if not result.is_error:
        assert parsed == result.structured_content
        assert item.text == json.dumps(parsed, indent=2, ensure_ascii=False)
    return parsed


async def think(client: Client, *thoughts: dict[str, Any]) -> dict[str, Any]:
    parsed: dict[str, Any] = {}
    for each in thoughts:
        result = await client.call_tool("sequentialthinking", each)
        assert not result.is_error, result
        parsed = parse_result(result)
    return parsed


async def expect_error(client: Client, arguments: dict[str, Any], tool: str = "sequentialthinking") -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    parsed = parse_result(result)
    assert list(parsed) == ["error", "code", "fields", "status"]
    assert parsed["status"] == "failed"
    return parsed


async def fetch_history(client: Client, **arguments: Any) -> dict[str, Any]:
    return parse_result(await client.call_tool("thinking_history", arguments))


def texts(parsed: dict[str, Any]) -> list[str]:
    return [each["thought"] for each in parsed["thoughts"]]
