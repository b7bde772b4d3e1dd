"""A request leaves in one write, whatever it carries, and what comes back is read as ever."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
from collections.abc import AsyncIterator
from typing import Any

import anyio
import httpcore
import httpx
import pytest

from rxloop.providers import openai_chat
from rxloop.providers.transport.httpcore_backend import (
    _ERRORS,
    MOST_TOGETHER,
    Backend,
    PoolTransport,
    Stream,
    _to_httpx,
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


class Writes(Backend):
    """A network that keeps what is written to it, below its streams."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[bytes] = []

    async def connect_tcp(self, *args: Any, **options: Any) -> httpcore.AsyncNetworkStream:
        stream: Any = await self._inner.connect_tcp(*args, **options)
        write = stream.write

        async def seen(buffer: bytes, *limits: Any) -> None:
            if buffer:
                self.seen.append(buffer)
            await write(buffer, *limits)

        stream.write = seen
        return Stream(stream)


def client_of(backend: httpcore.AsyncNetworkBackend) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=PoolTransport(httpcore.AsyncConnectionPool(network_backend=backend)))


def watched() -> tuple[httpx.AsyncClient, Writes]:
    writes = Writes()
    return client_of(writes), writes


@pytest.mark.parametrize("body", [b"{}", b"{}\r\n\r\n", b" " * (MOST_TOGETHER - 2) + b"{}"])
async def test_the_head_and_a_body_are_network(server: Server, body: bytes) -> None:
    server.replies = [Reply([b"{}"])]
    client, writes = watched()
    async with client:
        for _ in range(2):
            answer = await client.post(f"{server.base_url}/chat/completions", content=body)
            assert answer.content == b"{}"
    assert [len(each) for each in writes.seen] == [len(writes.seen[0])] * 2
    assert all(each.startswith(REQUEST_HEAD) and each.endswith(body) for each in writes.seen)
    assert server.connections == 1


async def test_a_large_body_is_not_copied_behind_its_head(server: Server) -> None:
    body = b'"' + b"x" * MOST_TOGETHER + b'"'
    client, writes = watched()
    async with client:
        await client.post(f"{server.base_url}/chat/completions", content=body)
    assert [len(writes.seen), writes.seen[1]] == [2, body]


async def test_a_body_in_pieces_is_written_piece_by_piece_behind_the_first(server: Server) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"{\r\n\r\n"
        yield b"}"

    client, writes = watched()
    async with client:
        headers = {"content-length": "6"}
        await client.post(f"{server.base_url}/chat/completions", content=pieces(), headers=headers)
    assert writes.seen[0].startswith(REQUEST_HEAD)
    assert b"".join(writes.seen).endswith(b"{\r\n\r\n}")
    assert server.requests[0].body == {}


async def test_a_head_alone_leaves_when_the_answer_is_waited_for(server: Server) -> None:
    writes = Writes()
    stream = await writes.connect_tcp("127.0.0.1", server.port)
    await stream.write(b"POST / HTTP/1.1\r\ncontent-length: 2\r\n\r\n")
    assert writes.seen == []
    await stream.write(b"{}")
    assert (await stream.read(1_000)).startswith(b"HTTP/1.1 200")
    await stream.write(b"OPTIONS / HTTP/1.1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
    await stream.read(1_000)
    assert [each.split(b" ")[0] for each in writes.seen] == [b"POST", b"OPTIONS"]
    await stream.aclose()


async def test_the_clients_of_a_provider_do_so(server: Server) -> None:
    server.answer(text_reply("Hello"))
    provider = chat_model(server, transport="httpx")
    assert streamed_text(await collect(provider.call(REQUEST))) == "Hello"
    [client] = provider._pool.clients
    assert isinstance(client, HttpxClient)
    assert isinstance(client.http._transport, PoolTransport)
    assert active_connections(provider) == []
    await provider.aclose()


async def test_where_the_environment_names_a_proxy_the_requests_go_through_it(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.port}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    server.answer(text_reply("Hello"))
    provider = openai_chat("m", base_url="http://model.invalid/v1", api_key="k", transport="httpx")
    assert streamed_text(await collect(provider.call(REQUEST))) == "Hello"
    assert server.requests[0].path == "http://model.invalid/v1/chat/completions"
    await provider.aclose()


async def test_an_idle_connection_says_whether_the_server_has_closed_it(server: Server) -> None:
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


async def test_a_connection_that_is_gone_as_soon_as_it_is_made_is_no_mistake_of_the_program() -> None:
    here, there = socket.socketpair()
    with there:
        here.close()
        stream = Stream(Gone(here))
        assert stream.get_extra_info("is_readable") is True
        assert stream.get_extra_info("socket") is here


def test_each_exception_of_httpcore_has_its_counterpart_in_httpx() -> None:
    kinds = [kind for kind in vars(httpcore).values() if isinstance(kind, type) and issubclass(kind, _ERRORS)]
    assert len(kinds) > 10
    for kind in kinds:
        error = _to_httpx(kind("why"))
        assert (type(error).__name__, str(error)) == (kind.__name__, "why")


class Gone(httpcore.AsyncNetworkStream):
    """The end of a connection that takes nothing any more; what came before can still be read."""

    def __init__(self, end: socket.socket | None = None) -> None:
        self._end = end

    async def read(self, max_bytes: int, *limits: Any, **named: Any) -> bytes:
        return b"HTTP/1.1 429 Slow down\r\n\r\n"

    async def write(self, buffer: bytes, *limits: Any, **named: Any) -> None:
        raise httpcore.WriteError("broken pipe")

    def get_extra_info(self, info: str) -> Any:
        # As the streams of httpcore have it.
        return self._end is not None and self._end.fileno() < 0 if info == "is_readable" else self._end


async def test_an_answer_that_came_before_the_request_is_read_though_the_request_cannot_be_written() -> None:
    stream = Stream(Gone())
    await stream.write(b"GET / HTTP/1.1\r\n\r\n")
    assert (await stream.read(100)).startswith(b"HTTP/1.1 429")
    await stream.write(b"POST / HTTP/1.1\r\n\r\n")
    with pytest.raises(httpcore.WriteError):
        await stream.write(b"{}")


@pytest.mark.parametrize("size", [2, 3 * MOST_TOGETHER, 2**22])
async def test_a_server_that_answers_before_it_has_read_the_request_is_heard(size: int) -> None:
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
        async with client_of(Backend()) as client:
            port = listener.sockets[0].getsockname()[1]
            answer = await client.post(f"http://127.0.0.1:{port}/", content=b"x" * size)
            assert (answer.status_code, answer.content) == (413, b"no")
        async with asyncio.timeout(5):
            await ended.wait()


async def test_a_request_that_is_cancelled_in_its_middle_leaves_no_connection_to_be_used_again(server: Server) -> None:
    begun = asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        begun.set()
        await asyncio.get_running_loop().create_future()
        yield b"{}"

    server.replies = [Reply([b"{}"])]
    client, writes = watched()
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


async def test_a_server_with_an_address_of_the_sixth_version_is_spoken_to(server: Server) -> None:
    try:
        listener = await asyncio.start_server(server.handle, "::1", 0)
    except OSError:
        return  # a machine without it
    server.answer(text_reply("Hello"))
    async with listener:
        provider = openai_chat("m", base_url=f"http://[::1]:{listener.sockets[0].getsockname()[1]}/v1", api_key="k")
        assert streamed_text(await collect(provider.call(REQUEST))) == "Hello"
        await provider.aclose()
        async with asyncio.timeout(5):
            await server.all_closed.wait()
