"""Reasoning strategies for the models of MCP clients."""

from __future__ import annotations

from typing import Any

import pytest
from mcp import Client

from rxloop import ConfigurationError
from rxloop.server import ThinkingTools
from rxloop.strategies import get_stages
from rxloop.thinking import ThoughtResult
from support.thinking_calls import fetch_history, parse_result, texts, think, thinking_server, thought


async def think_in_stages(client: Client, *thoughts: dict[str, Any]) -> dict[str, Any]:
    """Add thoughts, and return the result of the last one."""
    result: dict[str, Any] = {}
    for each in thoughts:
        result = parse_result(await client.call_tool("strategic_thinking", each))
    return result


async def test_server_without_strategies_has_no_tool_for_them() -> None:
    async with Client(thinking_server()) as client:
        assert "strategic_thinking" not in {tool.name for tool in (await client.list_tools()).tools}


async def test_tool_offers_the_given_strategies() -> None:
    async with Client(thinking_server(strategies=["react", "rewoo"])) as client:
        tool = (await client.list_tools()).tools[-1]
    assert tool.name == "strategic_thinking"
    assert tool.input_schema["properties"]["strategy"]["enum"] == ["react", "rewoo"]


async def test_model_is_guided_to_the_end_of_a_strategy() -> None:
    definition = get_stages("linear")
    async with Client(thinking_server(strategies=["linear"])) as client:
        result = await think_in_stages(client, thought(1, "Start."))
        visited = [result["stage"]]
        for number in range(2, 20):
            if not result.get("nextStages"):
                break
            stage = min(result["nextStages"], key=definition.steps_to_end)
            assert result["guidance"][stage] == definition.stage(stage).prompt
            result = await think_in_stages(client, thought(number, f"Stage {stage}.", stage=stage))
            visited.append(result["stage"])
        assert visited[0] == definition.initial
        assert visited[-1] in definition.terminal
        # The thoughts are in the session of the connection.
        assert texts(await fetch_history(client)) == ["Start.", *(f"Stage {stage}." for stage in visited[1:])]


async def test_refused_stage_names_the_allowed_ones() -> None:
    async with Client(thinking_server(strategies=["react"])) as client:
        first = await think_in_stages(client, thought(1))
        refused = await client.call_tool("strategic_thinking", thought(2, stage="nowhere"))
        assert refused.is_error
        failure = parse_result(refused)
        assert failure["allowed"] == first["nextStages"]
        assert "nowhere" in failure["error"]
        # The position is unchanged.
        again = await think_in_stages(client, thought(2, stage=first["nextStages"][0]))
        assert again["stage"] == first["nextStages"][0]


async def test_connections_have_separate_positions() -> None:
    server = thinking_server(strategies=["react"])
    async with Client(server) as one, Client(server) as other:
        first = await think_in_stages(one, thought(1))
        await think_in_stages(one, thought(2, stage=first["nextStages"][0]))
        fresh = await think_in_stages(other, thought(1))
        assert (fresh["stage"], fresh["thoughtHistoryLength"]) == (first["stage"], 1)


async def test_session_of_another_connection_is_unknown() -> None:
    server = thinking_server(strategies=["react"])
    async with Client(server) as one, Client(server) as other:
        first = await think_in_stages(one, thought(1))
        foreign = await other.call_tool("strategic_thinking", thought(2, sessionId=first["sessionId"]))
        assert foreign.is_error
        assert parse_result(foreign)["code"] == "unknown_session"


async def test_both_tools_share_a_session_and_report_thoughts() -> None:
    reported: list[ThoughtResult] = []
    async with Client(thinking_server(strategies=["react"], on_thought=reported.append)) as client:
        await think(client, thought(1, "Before."))
        staged = await think_in_stages(client, thought(2, "In a stage."))
        assert staged["thoughtHistoryLength"] == 2
    assert [result.thought.thought for result in reported] == ["Before.", "In a stage."]


def test_unknown_strategy_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'socratic'"):
        ThinkingTools(strategies=["socratic"])
