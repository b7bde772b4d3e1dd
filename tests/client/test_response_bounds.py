"""Limits on responses of faulty or hostile servers."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import tracemalloc
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import httpx
import pytest

from rxloop.client import Client, ResponseBounds
from rxloop.errors import ApiError
from support.tcp_server import serve_connections

MIB = 2**20
HEAD = b"HTTP/1.1 %d OK\r\nconnection: close\r\n"

Read = Callable[[Client], Awaitable[Any]]


async def follow(client: Client) -> list[Any]:
    return [event async for event in client.follow("run")]


READS: dict[str, Read] = {
    "get": lambda client: client.agents(),
    "post": lambda client: client.start(None, "Hi"),
    "text": lambda client: client.graph("run"),
    "stream": follow,
}


class HostileServer:
    """TCP server that sends the same bytes to each request, and can repeat the last part forever."""

    def __init__(self, head: bytes, body: bytes, *, endless: bool) -> None:
        self._head, self._body, self._endless = head, body, endless
        self.requests = 0
        self.sent = 0
        self.url = ""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            self.requests += 1
            writer.write(self._head + b"\r\n")
            while True:
                writer.write(self._body)
                await writer.drain()
                self.sent += len(self._body)
                if not self._endless:
                    break


@contextlib.asynccontextmanager
async def serve_bytes(
    body: bytes, *headers: bytes, status: int = 200, endless: bool = False
) -> AsyncGenerator[HostileServer]:
    served = HostileServer(HEAD % status + b"".join(each + b"\r\n" for each in headers), body, endless=endless)
    async with serve_connections(served.handle) as port:
        served.url = f"http://127.0.0.1:{port}"
        yield served


def make_bomb(size: int) -> bytes:
    return gzip.compress(b" " * size)


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("status", [200, 500])
async def test_endless_body_is_refused(name: str, status: int) -> None:
    async with serve_bytes(b"x" * 65_536, status=status, endless=True) as served:
        async with Client(served.url, bounds=ResponseBounds(document=MIB)) as client:
            with pytest.raises(ApiError, match=r"more than 1,048,576 bytes.*ResponseBounds\(document=") as raised:
                await READS[name](client)
    assert raised.value.code == "protocol"
    # A faulty response is not requested again.
    assert served.requests == 1
    assert served.sent < 20 * MIB


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("encoding", [b"gzip", b"deflate"])
async def test_decompression_bomb_is_refused_with_little_memory(name: str, encoding: bytes) -> None:
    bomb = make_bomb(200 * MIB) if encoding == b"gzip" else zlib.compress(b" " * (200 * MIB))
    async with serve_bytes(bomb, b"content-encoding: " + encoding) as served:
        async with Client(served.url, bounds=ResponseBounds(document=4 * MIB)) as client:
            tracemalloc.start()
            try:
                with pytest.raises(ApiError, match=r"more than 4,194,304 bytes"):
                    await READS[name](client)
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
    assert peak < 16 * MIB


async def test_default_bounds_refuse_a_large_bomb() -> None:
    async with serve_bytes(make_bomb(300 * MIB), b"content-encoding: gzip") as served, Client(served.url) as client:
        with pytest.raises(ApiError, match=r"more than 67,108,864 bytes"):
            await client.agents()


async def test_stream_without_events_is_refused() -> None:
    async with serve_bytes(b"\n" * 65_536, endless=True) as served:
        async with Client(served.url, bounds=ResponseBounds(document=MIB)) as client:
            with pytest.raises(ApiError, match=r"more than 1,048,576 bytes without an event"):
                await follow(client)
    assert served.requests == 1


@pytest.mark.parametrize("name", ["get", "post", "stream"])
@pytest.mark.parametrize(
    ("data", "words"),
    [(b"[" + b"1," * 5_000 + b"1]", "more than 1,000 values"), (b"[" * 150 + b"]" * 150, "more than 100 levels")],
    ids=["values", "depth"],
)
async def test_json_is_counted_before_it_is_parsed(name: str, data: bytes, words: str) -> None:
    async with serve_bytes(b" " * 70_000 + data + b"\n") as served:
        async with Client(served.url, bounds=ResponseBounds(values=1_000)) as client:
            with pytest.raises(ApiError, match=words) as raised:
                await READS[name](client)
    assert (raised.value.code, served.requests) == ("protocol", 1)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "identity"])
async def test_compressed_responses_are_read(encoding: str) -> None:
    text = b'{"agents": []}'
    data = {"gzip": gzip.compress(text), "deflate": zlib.compress(text), "identity": text}[encoding]
    async with serve_bytes(data, b"content-encoding: " + encoding.encode()) as served:
        async with Client(served.url) as client:
            assert await client.agents() == []


async def test_unsupported_encoding_is_reported() -> None:
    async with serve_bytes(b"{}", b"content-encoding: br") as served, Client(served.url, retries=0) as client:
        with pytest.raises(ApiError, match=r"content-encoding must be gzip or deflate, got 'br'"):
            await client.agents()


async def test_body_that_an_event_hook_has_read_is_used() -> None:
    async def read(response: httpx.Response) -> None:
        await response.aread()

    async with serve_bytes(gzip.compress(b'{"agents": []}'), b"content-encoding: gzip") as served:
        async with httpx.AsyncClient(event_hooks={"response": [read]}) as http:
            assert await Client(served.url, http=http).agents() == []


@pytest.mark.parametrize("bounds", [{"document": 0}, {"values": -1}, {"depth": True}, {"document": 1.5}])
def test_bounds_must_be_positive_integers(bounds: Any) -> None:
    with pytest.raises(Exception, match=r"must be a positive integer"):
        ResponseBounds(**bounds)


@pytest.mark.parametrize("charset", [b"nope", b"hex", b"utf-16"])
async def test_character_set_of_the_server_is_ignored(charset: bytes) -> None:
    async with (
        serve_bytes("A → B".encode(), b"content-type: text/plain; charset=" + charset) as server,
        Client(server.url) as client,
    ):
        assert await client.graph("run") == "A → B"
