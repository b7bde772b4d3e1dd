"""The server over HTTP, in this process, and what reads the pipes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest
from typing_extensions import override

from mcp import Client
from rxloop.errors import ConfigurationError
from rxloop.mcp.sequential_thinking import connection_sessions, sequential_thinking_server
from rxloop.mcp.transports import _line, _Lines, serve_http
from rxloop.pipeline.artifact_rules import ArtifactRecord
from rxloop.storage import MemoryArtifacts
from rxloop.thinking.sessions import ThinkingSessions
from rxloop.thinking.sessions.session_artifacts import CONTEXT

CALL = {"thought": "So.", "nextThoughtNeeded": True, "thoughtNumber": 1, "totalThoughts": 3}
HEADERS = {"accept": "application/json, text/event-stream"}


@contextlib.asynccontextmanager
async def serving(sessions: ThinkingSessions, session: str | None = None, **options: Any) -> AsyncGenerator[str]:
    """The URL of a server that runs for as long as the block lasts."""
    found: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    server = sequential_thinking_server(sessions, session=session)
    task = asyncio.create_task(serve_http(server, port=0, ready=found.set_result, **options))
    try:
        yield await found
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def think(client: Client, **fields: Any) -> dict[str, Any]:
    result = await client.call_tool("sequentialthinking", {**CALL, **fields})
    assert result.structured_content is not None
    return result.structured_content


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_each_client_has_a_session_of_its_own(mode: str) -> None:
    async with serving(connection_sessions()) as url, Client(url, mode=mode) as one, Client(url, mode=mode) as other:
        first = await think(one)
        await think(other)
        assert (await think(one))["thoughtHistoryLength"] == 2
        assert (await think(other))["thoughtHistoryLength"] == 2
        result = await other.call_tool("sequentialthinking", {**CALL, "sessionId": first["sessionId"]})
        assert result.is_error


class Watched(MemoryArtifacts):
    """A store that tells when sessions are removed."""

    def __init__(self) -> None:
        super().__init__()
        self.removed = asyncio.Event()

    @override
    async def delete(self, context_id: str, artifact_id: str, *, expected: ArtifactRecord | None = None) -> bool:
        deleted = await super().delete(context_id, artifact_id, expected=expected)
        self.removed.set()
        return deleted


async def test_the_session_of_a_client_that_left_is_freed() -> None:
    store = Watched()
    sessions = connection_sessions(store)
    async with serving(sessions) as url, Client(url) as one:
        async with Client(url) as other:
            await think(one)
            await think(other)
            assert len(await store.list(CONTEXT)) == 2
        async with asyncio.timeout(5):
            await store.removed.wait()
        assert len(await store.list(CONTEXT)) == 1
        assert (await think(one))["thoughtHistoryLength"] == 2
    assert not await store.list(CONTEXT)


async def test_a_client_that_is_silent_for_too_long_has_left() -> None:
    store = Watched()
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    call = {"name": "sequentialthinking", "arguments": CALL}
    async with serving(connection_sessions(store), ttl=0.2) as url, httpx.AsyncClient(headers=HEADERS) as client:
        reply = await client.post(url, json={"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello})
        own = {"mcp-session-id": reply.headers["mcp-session-id"]}
        await client.post(url, headers=own, json={"jsonrpc": "2.0", "method": "notifications/initialized"})
        asked = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}
        assert (await client.post(url, headers=own, json=asked)).status_code == 200
        assert len(await store.list(CONTEXT)) == 1
        async with asyncio.timeout(10):
            await store.removed.wait()
        assert await store.list(CONTEXT) == []
        assert (await client.post(url, headers=own, json=asked)).status_code == 404


async def test_a_named_session_is_one_for_all_clients() -> None:
    async with serving(connection_sessions(), "plan") as url, Client(url) as one, Client(url) as other:
        await think(one)
        assert (await think(other))["thoughtHistoryLength"] == 2


async def test_a_request_without_a_connection_begins_a_session_and_goes_on_by_its_id() -> None:
    async with serving(connection_sessions()) as url, Client(url, mode="2026-07-28") as client:
        first = await think(client)
        assert (await think(client))["thoughtHistoryLength"] == 1
        again = await think(client, sessionId=first["sessionId"])
        assert again["thoughtHistoryLength"] == 2
        told = await client.call_tool("thinking_history", {"sessionId": first["sessionId"]})
        assert told.structured_content is not None
        assert len(told.structured_content["thoughts"]) == 2
        told = await client.call_tool("thinking_history", {})
        assert told.structured_content is not None
        assert told.structured_content["thoughts"] == []


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        ("host", "evil.example", 421),
        ("host", "localhost:1.evil.com", 421),
        ("host", "localhost@evil.com", 421),
        ("origin", "http://evil.example", 403),
        ("origin", "http://localhost:1.evil.com", 403),
        ("origin", "http://localhost:1@evil.com", 403),
        ("origin", "http://localhost.evil.com", 403),
        ("origin", "http://localhost/x", 403),
        ("origin", "ftp://localhost", 403),
        ("origin", "null", 403),
    ],
)
async def test_a_page_that_calls_the_server_under_a_name_of_its_own_is_refused(
    name: str, value: str, status: int
) -> None:
    async with serving(connection_sessions()) as url, httpx.AsyncClient() as client:
        reply = await client.post(url, headers={**HEADERS, name: value}, json={"jsonrpc": "2.0", "id": 1})
        assert reply.status_code == status


async def test_a_port_that_is_taken_is_said_in_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"cannot listen on 127.0.0.1, port {port}: "):
            await serve_http(sequential_thinking_server(), port=port)


async def read(*pieces: bytes) -> list[str]:
    reading, writing = os.pipe()

    def write() -> None:
        for piece in pieces:
            os.write(writing, piece)
        os.close(writing)

    written = asyncio.create_task(asyncio.to_thread(write))
    found = [line async for line in _Lines(reading)]
    await written
    os.close(reading)
    return found


async def test_lines_are_put_together_whatever_the_pieces() -> None:
    assert await read(b'{"a"', b": 1}\n\n  \n{", b"}\r\n[1]") == ['{"a": 1}', "{}\r", "[1]"]


async def test_a_line_may_be_long() -> None:
    [line] = await read(*[b"x" * 60_000] * 50)
    assert len(line) == 3_000_000


def test_half_a_character_becomes_a_replacement_character() -> None:
    assert _line(rb'{"a": "\ud800", "b": "\ud83c\udf3f"}') == '{"a": "\ufffd", "b": "🌿"}'
    assert _line(b'{"a": "\xff"}') == '{"a": "\ufffd"}'
    assert _line(rb'{"a": "\ud800"') == r'{"a": "\ud800"'
