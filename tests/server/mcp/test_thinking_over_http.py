"""Sequential thinking over HTTP: sessions, host names and limits."""

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
from rxloop.cli.service.process import open_listener
from rxloop.errors import ConfigurationError
from rxloop.pipeline.artifact_rules import ArtifactRecord
from rxloop.server import ServerLimits, ThinkingTools, make_connection_sessions, mcp_server
from rxloop.server.mcp.thinking_tools import MAX_BODY_BYTES
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
async def serve(
    sessions: ThinkingSessions | None = None, session: str | None = None, **options: Any
) -> AsyncGenerator[str]:
    """Serve thinking tools, and yield the URL."""
    async with serve_mcp(sequential_thinking=ThinkingTools(sessions, session=session), **options) as endpoint:
        yield endpoint.url


async def think(client: Client, **fields: Any) -> dict[str, Any]:
    result = await client.call_tool("sequentialthinking", {**CALL, **fields})
    assert result.structured_content is not None
    return result.structured_content


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_each_client_has_its_own_session(mode: str) -> None:
    async with (
        serve(make_connection_sessions()) as url,
        Client(url, mode=mode) as one,
        Client(url, mode=mode) as other,
    ):
        first = await think(one)
        await think(other)
        assert (await think(one))["thoughtHistoryLength"] == 2
        assert (await think(other))["thoughtHistoryLength"] == 2
        result = await other.call_tool("sequentialthinking", {**CALL, "sessionId": first["sessionId"]})
        assert result.is_error


class ObservedStore(MemoryArtifacts):
    """Store that sets an event when it deletes a session."""

    def __init__(self) -> None:
        super().__init__()
        self.removed = asyncio.Event()

    @override
    async def delete(self, context_id: str, artifact_id: str, *, expected: ArtifactRecord | None = None) -> bool:
        deleted = await super().delete(context_id, artifact_id, expected=expected)
        self.removed.set()
        return deleted


async def test_session_of_a_disconnected_client_is_deleted() -> None:
    store = ObservedStore()
    sessions = make_connection_sessions(store)
    async with serve(sessions) as url, Client(url) as one:
        async with Client(url) as other:
            await think(one)
            await think(other)
            assert len(await store.list(CONTEXT)) == 2
        async with asyncio.timeout(5):
            await store.removed.wait()
        assert len(await store.list(CONTEXT)) == 1
        assert (await think(one))["thoughtHistoryLength"] == 2
    assert not await store.list(CONTEXT)


async def test_session_of_a_silent_client_expires() -> None:
    store = ObservedStore()
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    call = {"name": "sequentialthinking", "arguments": CALL}
    async with (
        serve(make_connection_sessions(store), session_timeout=0.2) as url,
        httpx.AsyncClient(headers=HEADERS) as client,
    ):
        reply = await client.post(url, json={"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
        session_headers = {"mcp-session-id": reply.headers["mcp-session-id"]}
        await client.post(url, headers=session_headers, json={"jsonrpc": "2.0", "method": "notifications/initialized"})
        body = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}
        assert (await client.post(url, headers=session_headers, json=body)).status_code == 200
        assert len(await store.list(CONTEXT)) == 1
        async with asyncio.timeout(10):
            await store.removed.wait()
        assert await store.list(CONTEXT) == []
        assert (await client.post(url, headers=session_headers, json=body)).status_code == 404


async def test_named_session_is_shared_by_all_clients() -> None:
    async with serve(make_connection_sessions(), "plan") as url, Client(url) as one, Client(url) as other:
        await think(one)
        assert (await think(other))["thoughtHistoryLength"] == 2


async def test_request_without_a_connection_starts_a_session_and_continues_by_its_id() -> None:
    async with serve(make_connection_sessions()) as url, Client(url, mode="2026-07-28") as client:
        first = await think(client)
        assert (await think(client))["thoughtHistoryLength"] == 1
        again = await think(client, sessionId=first["sessionId"])
        assert again["thoughtHistoryLength"] == 2
        result = await client.call_tool("thinking_history", {"sessionId": first["sessionId"]})
        assert result.structured_content is not None
        assert len(result.structured_content["thoughts"]) == 2
        result = await client.call_tool("thinking_history", {})
        assert result.structured_content is not None
        assert result.structured_content["thoughts"] == []


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
async def test_page_with_a_foreign_host_or_origin_is_refused(name: str, value: str, status: int) -> None:
    async with serve(make_connection_sessions()) as url, httpx.AsyncClient() as client:
        reply = await client.post(url, headers={**HEADERS, name: value}, json={"jsonrpc": "2.0", "id": 1})
        assert reply.status_code == status


def test_port_in_use_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"cannot listen on 127.0.0.1, port {port}: "):
            open_listener("127.0.0.1", port)


async def read_until_closed(url: str, data: bytes) -> bytes:
    """Return all data until the server closes the connection."""
    port = httpx.URL(url).port
    assert port is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    try:
        async with asyncio.timeout(10):
            return await reader.read()
    finally:
        writer.close()


async def test_body_that_does_not_arrive_is_refused() -> None:
    async with serve(limits=ServerLimits(body_seconds=0.1)) as url:
        head = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n"
        assert (await read_until_closed(url, head + b"x")).startswith(b"HTTP/1.1 408")


async def test_body_that_is_too_long_is_refused() -> None:
    async with serve(limits=ServerLimits(body=MAX_BODY_BYTES)) as url, httpx.AsyncClient() as client:
        reply = await client.post(url, content=b"x" * (MAX_BODY_BYTES + 1))
        assert reply.status_code == 413


async def test_number_of_sessions_is_limited_and_a_closed_one_frees_its_slot() -> None:
    async with serve(max_sessions=2) as url, httpx.AsyncClient(headers=HEADERS) as client:
        replies = [await client.post(url, json=INITIALIZE) for _ in range(3)]
        assert [each.status_code for each in replies] == [200, 200, 503]
        closed = {"mcp-session-id": replies[0].headers["mcp-session-id"]}
        assert (await client.delete(url, headers=closed)).status_code == 200
        async with asyncio.timeout(5):
            while (await client.post(url, json=INITIALIZE)).status_code != 200:
                pass


@pytest.mark.parametrize("options", [{"session_timeout": 0}, {"session_timeout": float("inf")}, {"max_sessions": 0}])
def test_invalid_limits_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        mcp_server(Runtime({}, log=MemoryEventLog()), sequential_thinking=True, **options)
