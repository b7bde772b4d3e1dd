"""Single writes of requests, and responses read as usual."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from http.cookiejar import CookieJar
from typing import Any

import anyio
import httpcore
import httpx
import pytest

from rxloop.providers import openai_chat
from rxloop.providers.transport.httpcore_backend import (
    HEAD_BYTES,
    MAX_COMBINED_BYTES,
    Backend,
    PoolTransport,
    Stream,
)
from rxloop.providers.transport.httpx_client import HttpxClient
from support.http_server import (
    REQUEST,
    Reply,
    Server,
    active_connections,
    chat_model,
    collect,
    streamed_text,
    text_reply,
)

REQUEST_HEAD = b"POST /v1/chat/completions HTTP/1.1\r\n"


class RecordingBackend(Backend):
    """Network backend that records writes."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[bytes] = []

    async def connect_tcp(self, *args: Any, **options: Any) -> httpcore.AsyncNetworkStream:
        stream: Any = await self._inner.connect_tcp(*args, **options)
        write = stream.write

        async def record(buffer: bytes, *limits: Any) -> None:
            if buffer:
                self.seen.append(buffer)
            await write(buffer, *limits)

        stream.write = record
        return Stream(stream)


def make_client(backend: httpcore.AsyncNetworkBackend) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=PoolTransport(httpcore.AsyncConnectionPool(network_backend=backend)))


def make_recording_client() -> tuple[httpx.AsyncClient, RecordingBackend]:
    writes = RecordingBackend()
    return make_client(writes), writes


@pytest.mark.parametrize("body", [b"{}", b"{}\r\n\r\n", b" " * (MAX_COMBINED_BYTES - 2) + b"{}"])
async def test_head_and_body_are_sent_in_one_write(server: Server, body: bytes) -> None:
    server.replies = [Reply([b"{}"])]
    client, writes = make_recording_client()
    async with client:
        for _ in range(2):
            answer = await client.post(f"{server.base_url}/chat/completions", content=body)
            assert answer.content == b"{}"
    assert [len(each) for each in writes.seen] == [len(writes.seen[0])] * 2
    assert all(each.startswith(REQUEST_HEAD) and each.endswith(body) for each in writes.seen)
    assert server.connections == 1


async def test_large_body_is_not_copied(server: Server) -> None:
    body = b'"' + b"x" * MAX_COMBINED_BYTES + b'"'
    client, writes = make_recording_client()
    async with client:
        await client.post(f"{server.base_url}/chat/completions", content=body)
    assert [len(writes.seen), writes.seen[1]] == [2, body]


async def test_streamed_body_is_written_in_pieces(server: Server) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"{\r\n\r\n"
        yield b"}"

    client, writes = make_recording_client()
    async with client:
        headers = {"content-length": "6"}
        await client.post(f"{server.base_url}/chat/completions", content=pieces(), headers=headers)
    assert writes.seen[0].startswith(REQUEST_HEAD)
    assert b"".join(writes.seen).endswith(b"{\r\n\r\n}")
    assert server.requests[0].body == {}


async def test_head_without_a_body_is_sent_when_the_answer_is_read(server: Server) -> None:
    writes = RecordingBackend()
    stream = await writes.connect_tcp("127.0.0.1", server.port)
    await stream.write(b"POST / HTTP/1.1\r\ncontent-length: 2\r\n\r\n")
    assert writes.seen == []
    await stream.write(b"{}")
    assert (await stream.read(1_000)).startswith(b"HTTP/1.1 200")
    await stream.write(b"OPTIONS / HTTP/1.1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
    await stream.read(1_000)
    assert [each.split(b" ")[0] for each in writes.seen] == [b"POST", b"OPTIONS"]
    await stream.aclose()


async def test_provider_sends_each_request_in_one_write(server: Server) -> None:
    server.answer(text_reply("Hello"))
    provider = chat_model(server, transport="httpx")
    assert streamed_text(await collect(provider.call(REQUEST))) == "Hello"
    [client] = provider._pool.clients
    assert isinstance(client, HttpxClient)
    assert isinstance(client.http._transport, PoolTransport)
    assert active_connections(provider) == []
    await provider.aclose()


async def test_requests_use_the_proxy_of_the_environment(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.port}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    server.answer(text_reply("Hello"))
    provider = openai_chat("m", base_url="http://model.invalid/v1", api_key="k", transport="httpx")
    assert streamed_text(await collect(provider.call(REQUEST))) == "Hello"
    assert server.requests[0].path == "http://model.invalid/v1/chat/completions"
    await provider.aclose()


async def test_idle_connection_detects_that_the_server_closed_it(server: Server) -> None:
    stream = await Backend().connect_tcp("127.0.0.1", server.port)
    assert stream.get_extra_info("is_readable") is False
    for task in server.tasks:
        task.cancel()
    async with asyncio.timeout(2):
        await server.all_closed.wait()
    assert select.select([stream.get_extra_info("socket")], [], [], 2)[0]
    assert stream.get_extra_info("is_readable") is True
    await stream.aclose()
    assert stream.get_extra_info("is_readable") is True
    assert stream.get_extra_info("socket") is not None


async def test_connection_closed_at_once_is_not_a_program_error() -> None:
    here, there = socket.socketpair()
    with there:
        here.close()
        stream = Stream(BrokenStream(here))
        assert stream.get_extra_info("is_readable") is True
        assert stream.get_extra_info("socket") is here


async def test_requests_use_an_instrumented_transport_of_httpx(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    send, hosts = httpx.AsyncHTTPTransport.handle_async_request, list[str]()

    async def record(transport: httpx.AsyncHTTPTransport, request: httpx.Request) -> httpx.Response:
        hosts.append(request.url.host)
        return await send(transport, request)

    # OpenTelemetry's instrumentation of httpx replaces this method.
    monkeypatch.setattr(httpx.AsyncHTTPTransport, "handle_async_request", record)
    server.answer(text_reply("Hello"))
    provider = chat_model(server, transport="httpx")
    await collect(provider.call(REQUEST))
    await provider.aclose()
    assert hosts == ["127.0.0.1"]


async def test_only_responses_that_set_cookies_are_searched_for_cookies(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    extract, searched = CookieJar.extract_cookies, list[str]()

    def record(jar: CookieJar, response: Any, request: Any) -> None:
        searched.append(response.info()["set-cookie"])
        extract(jar, response, request)

    monkeypatch.setattr(CookieJar, "extract_cookies", record)
    plain = text_reply("Hello")
    server.answer(plain, replace(plain, headers={"set-cookie": "a=1"}), plain)
    provider = chat_model(server, transport="httpx")
    for _ in range(3):
        await collect(provider.call(REQUEST))
    await provider.aclose()
    assert searched == ["a=1"]
    assert [request.headers.get("cookie") for request in server.requests] == [None, None, "a=1"]


class BrokenStream(httpcore.AsyncNetworkStream):
    """Stream whose writes fail, while earlier data can still be read."""

    def __init__(self, end: socket.socket | None = None) -> None:
        self._end = end

    async def read(self, max_bytes: int, *limits: Any, **named: Any) -> bytes:
        return b"HTTP/1.1 429 Slow down\r\n\r\n"

    async def write(self, buffer: bytes, *limits: Any, **named: Any) -> None:
        raise httpcore.WriteError("broken pipe")

    def get_extra_info(self, info: str) -> Any:
        # As in httpcore.
        return self._end is not None and self._end.fileno() < 0 if info == "is_readable" else self._end


async def test_answer_is_read_although_the_request_cannot_be_written() -> None:
    stream = Stream(BrokenStream())
    await stream.write(b"GET / HTTP/1.1\r\n\r\n")
    assert (await stream.read(100)).startswith(b"HTTP/1.1 429")
    await stream.write(b"POST / HTTP/1.1\r\n\r\n")
    with pytest.raises(httpcore.WriteError):
        await stream.write(b"{}")


class ScriptedStream(httpcore.AsyncNetworkStream):
    """Stream of prepared data that records the maximum size of each read."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = list(pieces)
        self.sizes: list[int] = []

    async def read(self, max_bytes: int, *limits: Any, **named: Any) -> bytes:
        self.sizes.append(max_bytes)
        return self.pieces.pop(0)

    async def write(self, buffer: bytes, *limits: Any, **named: Any) -> None:
        pass

    def get_extra_info(self, info: str) -> Any:
        return None


@pytest.mark.parametrize(
    ("pieces", "small"),
    [
        ([b"HTTP/1.1 200 OK\r\n\r\n", b"{}"], 1),
        ([b"HTTP/1.1 103 Early Hints\r\n\r\n" * 9, b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 No\r\n", b"a: b"], 2),
        ([b"HTTP/1.1 103 Early Hints\r\n\r\nHTT", b"P/1.1 5", b"00 Failed\r\n\r\n"], 2),
        ([*(bytes([byte]) for byte in b"HTTP/1.0 200 OK\r\n"), b"\r\n"], 10),
        ([b"HTTP/1.1 103 Early Hints\r\na: HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n", b"{}"], 2),
        ([b"HTTP/1.1 103 Early Hints\r\na: ", b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n", b"{}"], 3),
    ],
)
async def test_read_size_is_smaller_before_the_final_status(pieces: list[bytes], small: int) -> None:
    connection = ScriptedStream(*pieces)
    stream = Stream(connection)
    await stream.write(b"GET / HTTP/1.1\r\n\r\n")
    for piece in pieces:
        assert await stream.read(2**16) == piece
    assert connection.sizes == [HEAD_BYTES] * small + [2**16] * (len(pieces) - small)
    # The head of the next response on this connection is read in small pieces, too.
    connection.pieces = [b"HTTP/1.1 103 Early Hints\r\n\r\n"]
    await stream.write(b"GET / HTTP/1.1\r\n\r\n")
    await stream.read(2**16)
    assert connection.sizes[-1] == HEAD_BYTES


@pytest.mark.parametrize("size", [2, 3 * MAX_COMBINED_BYTES, 2**22])
async def test_early_answer_of_a_server_is_read(size: int) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too large\r\nconnection: close\r\ncontent-length: 2\r\n\r\nno")
        await writer.drain()
        writer.write_eof()
        with contextlib.suppress(ConnectionError):
            while await reader.read(2**16):
                pass
        writer.close()
        ended.set()

    ended = asyncio.Event()
    listener = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with listener:
        async with make_client(Backend()) as client:
            port = listener.sockets[0].getsockname()[1]
            answer = await client.post(f"http://127.0.0.1:{port}/", content=b"x" * size)
            assert (answer.status_code, answer.content) == (413, b"no")
        async with asyncio.timeout(5):
            await ended.wait()


async def test_connection_of_a_cancelled_request_is_not_reused(server: Server) -> None:
    begun = asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        begun.set()
        await asyncio.get_running_loop().create_future()
        yield b"{}"

    server.replies = [Reply([b"{}"])]
    client, writes = make_recording_client()
    async with client:
        url = f"{server.base_url}/chat/completions"
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: client.post(url, content=pieces(), headers={"content-length": "2"}))
                await begun.wait()
                scope.cancel()
        assert writes.seen == [], "the head was held, and went with its connection"
        assert vars(vars(client)["_transport"])["_pool"].connections == []
        assert (await client.post(url, content=b"{}")).content == b"{}"
        assert [len(writes.seen), writes.seen[0][-2:]] == [1, b"{}"]


async def test_ipv6_server_is_supported(server: Server) -> None:
    try:
        listener = await asyncio.start_server(server.handle, "::1", 0)
    except OSError:
        return  # The machine may not support IPv6.
    server.answer(text_reply("Hello"))
    async with listener:
        provider = openai_chat("m", base_url=f"http://[::1]:{listener.sockets[0].getsockname()[1]}/v1", api_key="k")
        assert streamed_text(await collect(provider.call(REQUEST))) == "Hello"
        await provider.aclose()
        async with asyncio.timeout(5):
            await server.all_closed.wait()
