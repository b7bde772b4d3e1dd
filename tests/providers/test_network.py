"""A request leaves in one write, whatever it carries, and what comes back is read as ever."""

from __future__ import annotations

import asyncio
import select
from collections.abc import AsyncIterator
from typing import Any

import httpcore
import httpx
import pytest

from rxloop.providers._network import MOST_TOGETHER, with_cheap_network
from servers import REQUEST, Reply, Server, active, chat, collect, say, text

REQUEST_HEAD = b"POST /v1/chat/completions HTTP/1.1\r\n"


class Writes(httpcore.AsyncNetworkBackend):
    """A network that keeps what is written to it."""

    def __init__(self, inner: httpcore.AsyncNetworkBackend) -> None:
        self._inner = inner
        self.seen: list[bytes] = []

    async def connect_tcp(self, *args: Any, **options: Any) -> httpcore.AsyncNetworkStream:
        stream: Any = await self._inner.connect_tcp(*args, **options)
        write = stream.write

        async def seen(buffer: bytes, *limits: Any) -> None:
            if buffer:
                self.seen.append(buffer)
            await write(buffer, *limits)

        stream.write = seen
        return stream


def watched() -> tuple[httpx.AsyncClient, Writes]:
    client = httpx.AsyncClient(trust_env=False)
    pool: Any = vars(vars(client)["_transport"])["_pool"]
    writes = pool._network_backend = Writes(pool._network_backend)
    return with_cheap_network(client), writes


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
    client, writes = watched()
    async with client:
        pool: Any = vars(vars(client)["_transport"])["_pool"]
        stream = await pool._network_backend.connect_tcp("127.0.0.1", server.port)
        await stream.write(b"POST / HTTP/1.1\r\ncontent-length: 2\r\n\r\n")
        assert writes.seen == []
        await stream.write(b"{}")
        assert (await stream.read(1_000)).startswith(b"HTTP/1.1 200")
        await stream.write(b"OPTIONS / HTTP/1.1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
        await stream.read(1_000)
        assert [each.split(b" ")[0] for each in writes.seen] == [b"POST", b"OPTIONS"]
        await stream.aclose()


async def test_the_clients_of_a_provider_do_so(server: Server) -> None:
    server.answer(say("Hello"))
    provider = chat(server)
    assert text(await collect(provider.call(REQUEST))) == "Hello"
    [client] = provider._pool.clients
    backend: Any = vars(vars(vars(client)["_transport"])["_pool"])["_network_backend"]
    assert type(backend).__module__ == "rxloop.providers._network"
    assert active(provider) == []
    await provider.aclose()


def test_a_client_that_is_built_otherwise_is_left_alone() -> None:
    client = httpx.AsyncClient(transport=httpx.MockTransport(lambda request: httpx.Response(200)))
    assert with_cheap_network(client) is client


async def test_an_idle_connection_says_whether_the_server_has_closed_it(server: Server) -> None:
    client, _ = watched()
    async with client:
        pool: Any = vars(vars(client)["_transport"])["_pool"]
        stream = await pool._network_backend.connect_tcp("127.0.0.1", server.port)
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
