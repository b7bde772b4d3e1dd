"""Tool and resources for reading the history of a thinking session."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_types import TextResourceContents

from support.thinking_calls import expect_error, fetch_history, texts, think, thinking_server, thought


async def think_in_branches(client: Client) -> None:
    await think(client, thought(1, "one"), thought(2, "two"))
    for number in (2, 3):
        await think(client, thought(number, f"b{number}", branchId="b", branchFromThought=1))
    await think(client, thought(3, "No.", isRevision=True, revisesThought=2))


async def test_history_contains_all_thoughts() -> None:
    async with Client(thinking_server()) as client:
        empty = await fetch_history(client)
        await think_in_branches(client)
        page = await fetch_history(client)
    assert empty["thoughts"] == []
    assert empty["status"] == "active"
    assert empty["sessionId"] == page["sessionId"]
    assert page["thoughtHistoryLength"] == 5
    assert page["branches"] == ["b"]
    assert page["thoughts"][4] == {
        "place": 5,
        "thoughtNumber": 3,
        "thought": "No.",
        "isRevision": True,
        "revisesThought": 2,
        "branchId": None,
        "branchFromThought": None,
        "totalThoughts": 3,
    }
    assert "next" not in page


@pytest.mark.parametrize(
    ("arguments", "expected", "next_place"),
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
async def test_history_is_returned_by_page_and_by_branch(
    arguments: dict[str, Any], expected: Sequence[str], next_place: int | None
) -> None:
    async with Client(thinking_server()) as client:
        await think_in_branches(client)
        page = await fetch_history(client, **arguments)
    assert texts(page) == expected
    assert page.get("next") == next_place


async def test_page_of_the_history_is_limited() -> None:
    async with Client(thinking_server()) as client:
        await think(client, *(thought(number) for number in range(1, 52)))
        page = await fetch_history(client)
    assert len(page["thoughts"]) == 50
    assert page["next"] == 51


async def test_invalid_history_request_is_refused() -> None:
    async with Client(thinking_server()) as client:
        await think_in_branches(client)
        error = await expect_error(client, {"branchId": "none"}, "thinking_history")
        assert error["code"] == "unknown_branch"
        assert "'b'" in error["error"]
        error = await expect_error(client, {"first": 0, "limit": "many"}, "thinking_history")
        assert error["code"] == "invalid_arguments"
        assert set(error["fields"]) == {"first", "limit"}


async def test_session_is_a_resource_as_json_and_as_a_graph() -> None:
    async with Client(thinking_server()) as client:
        listed = (await client.list_resources()).resources
        await think_in_branches(client)
        [json_content] = (await client.read_resource("thinking://session")).contents
        [graph_content] = (await client.read_resource("thinking://session/graph")).contents
        page = await fetch_history(client)
    assert isinstance(json_content, TextResourceContents)
    assert isinstance(graph_content, TextResourceContents)
    assert json.loads(json_content.text) == page
    assert {each.uri: each.mime_type for each in listed} == {
        json_content.uri: json_content.mime_type,
        graph_content.uri: graph_content.mime_type,
    }
    assert graph_content.text.splitlines() == [
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


async def test_unknown_tools_and_resources_are_protocol_errors() -> None:
    async with Client(thinking_server()) as client:
        with pytest.raises(MCPError, match="the tool 'think' does not exist"):
            await client.call_tool("think", {})
        with pytest.raises(MCPError, match="unknown resource 'thinking://else'"):
            await client.read_resource("thinking://else")
