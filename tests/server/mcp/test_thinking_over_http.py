"""Sequential thinking over HTTP: sessions of connections, names of the server, and limits."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest
from mcp import Client
from typing_extensions import override

from rxloop import MemoryEventLog, Runtime
from rxloop.cli.service.process import listening
from rxloop.errors import ConfigurationError
from rxloop.pipeline.artifact_rules import ArtifactRecord
from rxloop.server import ServerLimits, ThinkingTools, make_connection_sessions, mcp_server
from rxloop.server.mcp.thinking_tools import MAX_BODY
from rxloop.storage import MemoryArtifacts
from rxloop.thinking import ThinkingSessions
from rxloop.thinking.sessions.session_artifacts import CONTEXT
from support.clients.mcp import serve_mcp

CALL = {"thought": "So.", "nextThoughtNeeded": True, "thoughtNumber": 1, "totalThoughts": 3}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}
HEADERS = {"accept": "application/json, text/event-stream"}


@contextlib.asynccontextmanager
async def serving(
    sessions: ThinkingSessions | None = None, session: str | None = None, **options: Any
) -> AsyncGenerator[str]:
    """The URL of a server that runs for as long as the block lasts."""
    async with serve_mcp(sequential_thinking=ThinkingTools(sessions, session=session), **options) as here:
        yield here.url


async def think(client: Client, **fields: Any) -> dict[str, Any]:
    result = await client.call_tool("sequentialthinking", {**CALL, **fields})
    assert result.structured_content is not None
    return result.structured_content


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_each_client_has_a_session_of_its_own(mode: str) -> None:
    async with (
        serving(make_connection_sessions()) as url,
        Client(url, mode=mode) as one,
        Client(url, mode=mode) as other,
    ):
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
    sessions = make_connection_sessions(store)
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
    async with (
        serving(make_connection_sessions(store), session_timeout=0.2) as url,
        httpx.AsyncClient(headers=HEADERS) as client,
    ):
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
    async with serving(make_connection_sessions(), "plan") as url, Client(url) as one, Client(url) as other:
        await think(one)
        assert (await think(other))["thoughtHistoryLength"] == 2


async def test_a_request_without_a_connection_begins_a_session_and_goes_on_by_its_id() -> None:
    async with serving(make_connection_sessions()) as url, Client(url, mode="2026-07-28") as client:
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
    async with serving(make_connection_sessions()) as url, httpx.AsyncClient() as client:
        reply = await client.post(url, headers={**HEADERS, name: value}, json={"jsonrpc": "2.0", "id": 1})
        assert reply.status_code == status


def test_a_port_that_is_taken_is_said_in_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"cannot listen on 127.0.0.1, port {port}: "):
            listening("127.0.0.1", port)


async def until_closed(url: str, said: bytes) -> bytes:
    """What comes back until the server closes the connection."""
    port = httpx.URL(url).port
    assert port is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(said)
    try:
        async with asyncio.timeout(10):
            return await reader.read()
    finally:
        writer.close()


async def test_a_body_that_does_not_come_is_refused() -> None:
    async with serving(limits=ServerLimits(body_seconds=0.1)) as url:
        head = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n"
        assert (await until_closed(url, head + b"x")).startswith(b"HTTP/1.1 408")


async def test_a_body_that_is_too_long_is_refused() -> None:
    async with serving(limits=ServerLimits(body=MAX_BODY)) as url, httpx.AsyncClient() as client:
        reply = await client.post(url, content=b"x" * (MAX_BODY + 1))
        assert reply.status_code == 413


async def test_there_are_only_so_many_clients_and_room_comes_back() -> None:
    async with serving(max_sessions=2) as url, httpx.AsyncClient(headers=HEADERS) as client:
        replies = [await client.post(url, json=INITIALIZE) for _ in range(3)]
        assert [each.status_code for each in replies] == [200, 200, 503]
        left = {"mcp-session-id": replies[0].headers["mcp-session-id"]}
        assert (await client.delete(url, headers=left)).status_code == 200
        async with asyncio.timeout(5):
            while (await client.post(url, json=INITIALIZE)).status_code != 200:
                pass


@pytest.mark.parametrize("options", [{"session_timeout": 0}, {"session_timeout": float("inf")}, {"max_sessions": 0}])
def test_numbers_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        mcp_server(Runtime({}, log=MemoryEventLog()), sequential_thinking=True, **options)
