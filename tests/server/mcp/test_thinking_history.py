"""The history of a thinking session over MCP: as a tool, and as resources."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_types import TextResourceContents

from support.thinking_calls import expect_error, fetch_history, texts, think, thinking_server, thought


async def branched(client: Client) -> None:
    await think(client, thought(1, "one"), thought(2, "two"))
    for number in (2, 3):
        await think(client, thought(number, f"b{number}", branchId="b", branchFromThought=1))
    await think(client, thought(3, "No.", isRevision=True, revisesThought=2))


async def test_the_history_tells_what_was_thought() -> None:
    async with Client(thinking_server()) as client:
        empty = await fetch_history(client)
        await branched(client)
        told = await fetch_history(client)
    assert (empty["thoughts"], empty["status"]) == ([], "active")
    assert empty["sessionId"] == told["sessionId"]
    assert (told["thoughtHistoryLength"], told["branches"]) == (5, ["b"])
    assert told["thoughts"][4] == {
        "place": 5,
        "thoughtNumber": 3,
        "thought": "No.",
        "isRevision": True,
        "revisesThought": 2,
        "branchId": None,
        "branchFromThought": None,
        "totalThoughts": 3,
    }
    assert "next" not in told


@pytest.mark.parametrize(
    ("arguments", "expected", "further"),
    [
        ({"limit": 2}, ["one", "two"], 3),
        ({"first": "3", "limit": "2"}, ["b2", "b3"], 5),
        ({"first": 5, "limit": 2}, ["No."], None),
        ({"first": 6}, [], None),
        ({"branchId": "b"}, ["b2", "b3"], None),
        ({"branchId": "b", "limit": 1}, ["b2"], 4),
        ({"branchId": "b", "first": 4, "limit": 1}, ["b3"], None),
    ],
)
async def test_the_history_comes_in_pages_and_by_branch(
    arguments: dict[str, Any], expected: Sequence[str], further: int | None
) -> None:
    async with Client(thinking_server()) as client:
        await branched(client)
        told = await fetch_history(client, **arguments)
    assert (texts(told), told.get("next")) == (expected, further)


async def test_a_page_of_the_history_has_an_end() -> None:
    async with Client(thinking_server()) as client:
        await think(client, *(thought(number) for number in range(1, 52)))
        told = await fetch_history(client)
    assert (len(told["thoughts"]), told["next"]) == (50, 51)


async def test_a_history_that_cannot_be_given_is_refused() -> None:
    async with Client(thinking_server()) as client:
        await branched(client)
        told = await expect_error(client, {"branchId": "none"}, "thinking_history")
        assert told["code"] == "unknown_branch"
        assert "'b'" in told["error"]
        told = await expect_error(client, {"first": 0, "limit": "many"}, "thinking_history")
        assert (told["code"], set(told["fields"])) == ("invalid_arguments", {"first", "limit"})


async def test_the_session_is_a_resource_as_json_and_drawn() -> None:
    async with Client(thinking_server()) as client:
        listed = (await client.list_resources()).resources
        await branched(client)
        [whole] = (await client.read_resource("thinking://session")).contents
        [drawn] = (await client.read_resource("thinking://session/graph")).contents
        told = await fetch_history(client)
    assert isinstance(whole, TextResourceContents)
    assert isinstance(drawn, TextResourceContents)
    assert json.loads(whole.text) == told
    assert {each.uri: each.mime_type for each in listed} == {
        whole.uri: whole.mime_type,
        drawn.uri: drawn.mime_type,
    }
    assert drawn.text.splitlines() == [
        "flowchart TD",
        '    n1["1/3<br/>one"]',
        '    n2["2/3<br/>two"]',
        '    n3["2/3<br/>b2"]',
        '    n4["3/3<br/>b3"]',
        '    n5["3/3<br/>No#46;"]',
        "    n1 --> n2",
        '    n1 -->|"b"| n3',
        "    n3 --> n4",
        "    n2 --> n5",
        '    n5 -.->|"revises"| n2',
    ]


async def test_what_is_not_there_is_an_error_of_the_protocol() -> None:
    async with Client(thinking_server()) as client:
        with pytest.raises(MCPError, match="no tool 'think'"):
            await client.call_tool("think", {})
        with pytest.raises(MCPError, match="no resource 'thinking://else'"):
            await client.read_resource("thinking://else")
