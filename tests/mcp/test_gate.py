"""What an MCP server by HTTP lets in: how many clients and requests, how much, and how long it waits; over sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest
import uvicorn

from rxloop.errors import ConfigurationError
from rxloop.mcp._gate import HALF_OPEN, LONGEST, Gate, impatient
from rxloop.mcp.sequential_thinking import sequential_thinking_server
from rxloop.mcp.transports import serve_http

HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}
HEADERS = {"accept": "application/json, text/event-stream"}


async def echo(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    message = await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(len(message["body"])).encode()})


@contextlib.asynccontextmanager
async def serving(connections: int = 100, patience: float = 30, **options: Any) -> AsyncGenerator[int]:
    """The port of an app behind a gate."""
    app: Any = Gate(echo, ["localhost", "127.0.0.1"], patience=patience, **options)
    config = uvicorn.Config(
        app, http=impatient(connections, patience), ws="none", lifespan="off", log_config=None, access_log=False
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await task


async def until_closed(port: int, said: bytes) -> bytes:
    """What comes back until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(said)
    try:
        async with asyncio.timeout(10):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


async def test_a_whole_request_is_let_in() -> None:
    async with serving() as port, httpx.AsyncClient() as client:
        for _ in range(2):
            reply = await client.post(f"http://localhost:{port}/", content=b"x" * 100_000)
            assert (reply.status_code, reply.text) == (200, "100000")


@pytest.mark.parametrize("said", [b"", b"POST / HTTP/1.1\r\nHost: loc", b"POST / HTTP/1.1\r\nHost: localhost\r\n"])
async def test_a_head_that_does_not_come_closes_the_connection(said: bytes) -> None:
    async with serving(patience=0.1) as port:
        assert await until_closed(port, said) == b""


async def test_so_does_a_second_one_on_the_same_connection() -> None:
    async with serving(patience=0.1) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD % 1 + b"x")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.write(b"POST / HTTP/1.1\r\n")
        async with asyncio.timeout(3):
            await reader.read()
        writer.close()


async def test_a_body_that_does_not_come_is_refused() -> None:
    async with serving(patience=0.1) as port:
        assert (await until_closed(port, HEAD % 10 + b"x")).startswith(b"HTTP/1.1 408")


async def test_a_body_that_is_too_long_is_refused() -> None:
    async with serving() as port, httpx.AsyncClient() as client:
        reply = await client.post(f"http://localhost:{port}/", content=b"x" * (LONGEST + 1))
        assert reply.status_code == 413


async def test_bodies_have_a_bound_all_together_and_room_comes_back() -> None:
    async with serving(at_once=1_000_000) as port, httpx.AsyncClient() as client:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD % 900_000 + b"x" * 899_999)
        await writer.drain()
        url, content = f"http://localhost:{port}/", b"x" * 200_000
        async with asyncio.timeout(10):
            while (await client.post(url, content=content)).status_code != 503:
                pass
            writer.write(b"x")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            while (await client.post(url, content=content)).status_code != 200:
                pass
        writer.close()


@pytest.mark.parametrize("said", [b"POST / HTTP/1.1\r\n", HEAD % 10 + b"x"])
async def test_of_too_many_half_requests_those_that_began_first_are_given_up(said: bytes) -> None:
    async with serving(connections=1_000) as port, httpx.AsyncClient() as client:
        halves = [await asyncio.open_connection("127.0.0.1", port) for _ in range(HALF_OPEN)]
        for _, writer in halves:
            writer.write(said)
        for _ in range(20):
            assert (await client.post(f"http://localhost:{port}/", content=b"x")).status_code == 200
        later = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        for _, writer in later:
            writer.write(said)
        async with asyncio.timeout(10):
            for reader, _ in halves[:20]:
                with contextlib.suppress(ConnectionResetError):
                    assert (await reader.read())[9:12] in (b"", b"408")
        assert not any(reader.at_eof() for reader, _ in later)
        for _, writer in halves + later:
            writer.close()


async def test_there_are_only_so_many_connections() -> None:
    async with serving(connections=3) as port:
        open_ones = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        assert await until_closed(port, HEAD % 1 + b"x") == b""
        for _, writer in open_ones:
            writer.close()


async def test_there_are_only_so_many_clients_and_room_comes_back() -> None:
    found: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve_http(sequential_thinking_server(), port=0, max_clients=2, ready=found.set_result))
    async with httpx.AsyncClient(headers=HEADERS) as client:
        url = await found
        replies = [await client.post(url, json=INITIALIZE) for _ in range(3)]
        assert [each.status_code for each in replies] == [200, 200, 503]
        left = {"mcp-session-id": replies[0].headers["mcp-session-id"]}
        assert (await client.delete(url, headers=left)).status_code == 200
        async with asyncio.timeout(5):
            while (await client.post(url, json=INITIALIZE)).status_code != 200:
                pass
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("options", [{"ttl": 0}, {"ttl": float("inf")}, {"max_clients": 0}])
async def test_numbers_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        await serve_http(sequential_thinking_server(), port=0, **options)
