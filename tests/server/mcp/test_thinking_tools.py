"""Server for sequential thinking, with the client of the SDK in memory."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest
from mcp import Client
from typing_extensions import override

from rxloop import Agent, ConfigurationError, MemoryEventLog, Runtime
from rxloop.pipeline.artifact_rules import ArtifactChunk
from rxloop.server import mcp_server
from rxloop.server.mcp.thinking_tools import make_connection_sessions
from rxloop.storage import MemoryArtifacts
from rxloop.testing import ScriptedModel
from rxloop.thinking import ThinkingSessions, ThoughtResult
from support.thinking_calls import expect_error, fetch_history, parse_result, texts, think, thinking_server, thought

OFFICIAL = ["thoughtNumber", "totalThoughts", "nextThoughtNeeded", "branches", "thoughtHistoryLength"]
REQUIRED = ["thought", "nextThoughtNeeded", "thoughtNumber", "totalThoughts"]
Mode = Literal["legacy", "auto"]


async def test_published_tool_has_the_fields_of_the_reference_server() -> None:
    async with Client(thinking_server()) as client:
        tool = (await client.list_tools()).tools[0]
    # T24
    assert tool.input_schema["required"] == REQUIRED
    truth, number = ["boolean", "string"], "integer"
    assert {name: field["type"] for name, field in tool.input_schema["properties"].items()} == {
        "thought": "string",
        "nextThoughtNeeded": truth,
        "thoughtNumber": number,
        "totalThoughts": number,
        "isRevision": truth,
        "revisesThought": number,
        "branchFromThought": number,
        "branchId": "string",
        "needsMoreThoughts": truth,
    }
    assert tool.input_schema["properties"]["thoughtNumber"].items() >= {"minimum": 1, "maximum": 2**53 - 1}.items()
    assert all(field["description"] for field in tool.input_schema["properties"].values())
    assert tool.output_schema is not None
    assert tool.output_schema["required"] == OFFICIAL
    assert tool.name == "sequentialthinking"
    assert tool.title == "Sequential Thinking"


async def test_annotations_describe_the_tools() -> None:
    async with Client(thinking_server()) as client:
        tools = {tool.name: tool.annotations for tool in (await client.list_tools()).tools}
    hints = {
        name: (each.read_only_hint, each.idempotent_hint, each.destructive_hint, each.open_world_hint)
        for name, each in tools.items()
        if each is not None
    }
    assert hints == {
        "sequentialthinking": (False, False, False, False),
        "thinking_history": (True, True, False, False),
        "clear_thinking": (False, True, True, False),
    }


async def test_description_shows_a_revision_and_a_branch_and_no_ids() -> None:
    async with Client(thinking_server()) as client:
        description = (await client.list_tools()).tools[0].description or ""
    assert '"isRevision": true' in description
    assert '"branchFromThought": ' in description
    assert "sessionId" not in description


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_result_has_the_official_keys_as_text_and_structured_content(mode: Mode) -> None:
    async with Client(thinking_server(), mode=mode) as client:
        result = await think(client, thought(1, totalThoughts=2), thought(5))
    # T2, T23
    assert list(result)[:5] == OFFICIAL
    assert {key: result[key] for key in OFFICIAL} == {
        "thoughtNumber": 5,
        "totalThoughts": 5,
        "nextThoughtNeeded": True,
        "branches": [],
        "thoughtHistoryLength": 2,
    }


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_calls_without_an_id_use_the_session_of_the_connection(mode: Mode) -> None:
    async with Client(thinking_server(), mode=mode) as client:
        first = await think(client, thought(1))
        last = await think(client, thought(2), thought(3, nextThoughtNeeded=False))
    assert first["thoughtHistoryLength"] == 1
    assert last["thoughtHistoryLength"] == 3
    assert first["sessionId"] == last["sessionId"]
    # T40
    assert "summary" not in first
    assert last["summary"] == "Sequential thinking complete: 3 thoughts processed across 0 branches."


async def test_warnings_are_added_to_the_result() -> None:
    async with Client(thinking_server()) as client:
        first = await think(client, thought(1))
        # T15
        result = await think(client, thought(2, isRevision=True, revisesThought=9))
    assert "warnings" not in first
    assert [warning["code"] for warning in result["warnings"]] == ["dangling_revision"]


async def test_arguments_are_parsed_leniently() -> None:
    lenient = thought(
        "1",  # type: ignore[arg-type]
        totalThoughts=" 2 ",
        nextThoughtNeeded="TRUE",
        isRevision=None,
        branchId=None,
        unknown={"a": 1},
    )
    async with Client(thinking_server()) as client:
        # T9, T10, T11, T12
        result = await think(client, lenient)
    assert result["thoughtNumber"] == 1
    assert result["totalThoughts"] == 2
    assert result["nextThoughtNeeded"] is True


async def test_field_in_snake_case_is_unknown() -> None:
    async with Client(thinking_server()) as client:
        result = await think(client, thought(1, branch_id="a", branchFromThought=1, total_thoughts=9))
    assert result["branches"] == []
    assert result["totalThoughts"] == 3


@pytest.mark.parametrize("name", ["__proto__", "constructor", "10", "   ", "🌿", "x" * 5_000])
async def test_any_string_is_a_valid_branch_name(name: str) -> None:
    async with Client(thinking_server()) as client:
        # T5, T7
        names = ["b", name]
        result = await think(client, thought(1), *(thought(2, branchId=each, branchFromThought=1) for each in names))
    assert result["branches"] == names


async def test_invalid_thought_is_refused_with_its_fields_and_not_stored() -> None:
    async with Client(thinking_server()) as client:
        # T9, T13, T14
        error = await expect_error(client, {"thought": "a", "thoughtNumber": True, "totalThoughts": "one"})
        assert error["code"] == "invalid_thought"
        assert set(error["fields"]) == {"nextThoughtNeeded", "thoughtNumber", "totalThoughts"}
        assert (await fetch_history(client))["thoughtHistoryLength"] == 0
        assert set((await expect_error(client, {}))["fields"]) == set(REQUIRED)


async def test_call_without_arguments_is_refused() -> None:
    async with Client(thinking_server()) as client:
        result = await client.call_tool("sequentialthinking")
    assert parse_result(result)["code"] == "invalid_thought"


async def test_length_of_a_thought_is_limited() -> None:
    async with Client(thinking_server()) as client:
        # T8
        await think(client, thought(1, "x" * 1_000_000))
        error = await expect_error(client, thought(2, "x" * 1_000_001))
        assert error["code"] == "thought_too_long"
        assert (await fetch_history(client))["thoughtHistoryLength"] == 1


async def test_full_session_is_reported_and_can_be_cleared() -> None:
    async with Client(thinking_server(ThinkingSessions(MemoryArtifacts(), max_thoughts=2))) as client:
        await think(client, thought(1), thought(2))
        # T47
        assert (await expect_error(client, thought(3)))["code"] == "max_thoughts"
        await client.call_tool("clear_thinking")
        assert (await think(client, thought(1)))["thoughtHistoryLength"] == 1


async def test_strict_rules_refuse_a_revision_of_an_unknown_thought() -> None:
    async with Client(thinking_server(make_connection_sessions(strict=True))) as client:
        # T15
        error = await expect_error(client, thought(1, isRevision=True, revisesThought=4))
    assert error["code"] == "dangling_revision"
    assert set(error["fields"]) == {"revisesThought"}


async def test_session_of_another_connection_is_unknown() -> None:
    server = thinking_server()
    async with Client(server) as one, Client(server) as other:
        mine = await think(one, thought(1, "mine"))
        await think(other, thought(1, "other"), thought(2))
        # T33
        error = await expect_error(other, thought(3, sessionId=mine["sessionId"]))
        assert error["code"] == "unknown_session"
        for tool in ("thinking_history", "clear_thinking"):
            assert (await expect_error(other, {"sessionId": mine["sessionId"]}, tool))["code"] == "unknown_session"
        assert texts(await fetch_history(one)) == ["mine"]
        assert texts(await fetch_history(other)) == ["other", "So."]


async def test_unknown_session_id_is_refused() -> None:
    async with Client(thinking_server()) as client:
        # T32
        assert (await expect_error(client, thought(1, sessionId="made-up")))["code"] == "unknown_session"
        assert (await fetch_history(client))["thoughtHistoryLength"] == 0


async def test_thought_may_clear_the_session_and_keep_its_id() -> None:
    async with Client(thinking_server()) as client:
        old = await think(client, thought(1), thought(2))
        # T28, T30
        new = await think(client, thought(1, clearSession=True))
        assert new["thoughtHistoryLength"] == 1
        assert new["sessionId"] == old["sessionId"]
        assert (await think(client, thought(2)))["thoughtHistoryLength"] == 2
        # T31
        third = await think(client, thought(3, sessionId=old["sessionId"]))
        assert third["thoughtHistoryLength"] == 3
        assert third["sessionId"] == old["sessionId"]
        assert [each["code"] for each in third["warnings"]] == ["repetition"]


async def test_clearing_is_idempotent() -> None:
    async with Client(thinking_server()) as client:
        await think(client, thought(1), thought(2))
        cleared = parse_result(await client.call_tool("clear_thinking", {}))
        assert cleared["forgotten"] == 2
        assert parse_result(await client.call_tool("clear_thinking", {})) == {**cleared, "forgotten": 0}
        assert texts(await fetch_history(client)) == []
        assert (await think(client, thought(1)))["sessionId"] == cleared["sessionId"]


async def test_parallel_calls_keep_their_order() -> None:
    async with Client(thinking_server(), mode="legacy") as client:
        # T45
        calls = [client.call_tool("sequentialthinking", thought(number, str(number))) for number in range(1, 21)]
        lengths = [parse_result(result)["thoughtHistoryLength"] for result in await asyncio.gather(*calls)]
        assert lengths == list(range(1, 21))
        assert texts(await fetch_history(client)) == [str(number) for number in range(1, 21)]


class SlowStore(MemoryArtifacts):
    """Store with slow writes."""

    @override
    async def append(self, context_id: str, artifact_id: str, data: bytes, **options: Any) -> ArtifactChunk:
        for _ in range(20):
            await asyncio.sleep(0)
        return await super().append(context_id, artifact_id, data, **options)


async def test_read_waits_for_earlier_thoughts() -> None:
    async with Client(thinking_server(ThinkingSessions(SlowStore())), mode="legacy") as client:
        thinking = asyncio.create_task(client.call_tool("sequentialthinking", thought(1)))
        reading = asyncio.create_task(fetch_history(client))
        await thinking
        assert (await reading)["thoughtHistoryLength"] == 1


class FailingStore(MemoryArtifacts):
    """Store that fails on demand."""

    broken = False

    @override
    async def append(self, context_id: str, artifact_id: str, data: bytes, **options: Any) -> ArtifactChunk:
        if self.broken:
            raise RuntimeError("the disk is gone")
        return await super().append(context_id, artifact_id, data, **options)


async def test_crash_of_the_store_is_an_error_and_the_server_continues() -> None:
    store = FailingStore()
    async with Client(thinking_server(ThinkingSessions(store))) as client:
        await think(client, thought(1))
        store.broken = True
        error = await expect_error(client, thought(2))
        assert error["code"] == "internal"
        assert "RuntimeError" in error["error"]
        store.broken = False
        assert (await think(client, thought(2)))["thoughtHistoryLength"] == 2


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_session_of_a_closed_connection_is_deleted(mode: Mode) -> None:
    sessions = make_connection_sessions()
    async with Client(thinking_server(sessions), mode=mode) as client:
        await think(client, thought(1))
        await think(client, thought(1, clearSession=True))
        assert await sessions.all_sessions()
    assert not await sessions.all_sessions()


async def test_named_session_is_shared_by_all_connections_and_not_deleted() -> None:
    sessions = make_connection_sessions()
    server = thinking_server(sessions, session="plan")
    async with Client(server) as one, Client(server) as other:
        assert (await think(one, thought(1)))["sessionId"] == "plan"
        assert (await think(other, thought(2, sessionId="plan")))["thoughtHistoryLength"] == 2
    async with Client(server) as later:
        assert (await fetch_history(later))["thoughtHistoryLength"] == 2
    assert len(await sessions.get_session("plan")) == 2


async def test_accepted_thoughts_are_passed_to_the_callback() -> None:
    logged: list[ThoughtResult] = []
    async with Client(thinking_server(on_thought=logged.append)) as client:
        await think(client, thought(1, "one"))
        await expect_error(client, thought(0))
        await think(client, thought(2, "two"))
    assert [result.thought.thought for result in logged] == ["one", "two"]


async def test_failing_callback_loses_no_thought() -> None:
    def fail(result: ThoughtResult) -> None:
        raise OSError("no space left")

    async with Client(thinking_server(on_thought=fail)) as client:
        assert (await think(client, thought(1), thought(2)))["thoughtHistoryLength"] == 2


async def test_server_without_agents_has_only_the_thinking_tools() -> None:
    async with Client(thinking_server()) as client:
        tools = [tool.name for tool in (await client.list_tools()).tools]
    assert tools == ["sequentialthinking", "thinking_history", "clear_thinking"]


async def test_server_with_agents_also_has_the_thinking_tools_and_resources() -> None:
    agent = Agent(ScriptedModel("Four."), name="adder")
    runtime = Runtime({"adder": agent}, log=MemoryEventLog())
    server = mcp_server(runtime, sequential_thinking=True)
    async with runtime, Client(server.server) as client:
        tools = [tool.name for tool in (await client.list_tools()).tools]
        resources = [resource.uri for resource in (await client.list_resources()).resources]
        await think(client, thought(1))
        assert texts(await fetch_history(client)) == ["So."]
        await server.drain()
    assert tools == ["adder", "continue_run", "sequentialthinking", "thinking_history", "clear_thinking"]
    assert resources == ["thinking://session", "thinking://session/graph"]


def test_server_without_agents_and_thinking_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="the server has no tools"):
        mcp_server(Runtime({}, log=MemoryEventLog()))
