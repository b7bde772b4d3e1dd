from __future__ import annotations

import asyncio
import gc
import weakref
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from rxloop.errors import ConfigurationError
from rxloop.providers import Timeouts, openai_chat
from rxloop.providers import transport as _pool
from rxloop.providers.transport import TRANSPORT_ENV, ClientPool
from rxloop.providers.transport.exchange import Client
from rxloop.providers.transport.httpx_client import STREAMS, HttpxClient
from rxloop.testing import virtual_time
from support.http_server import REQUEST, Server, chat_model, collect, streamed_text, text_reply


async def test_streams_are_distributed_over_several_clients() -> None:
    pool = ClientPool(Timeouts(), transport="httpx")
    async with AsyncExitStack() as streams:
        lent = [await streams.enter_async_context(pool.lease()) for _ in range(STREAMS + 1)]
        assert len(set(map(id, lent))) == len(pool.clients) == 2
    async with pool.lease() as again:
        assert again is lent[0]
    await pool.aclose()
    assert all(client.is_closed for client in lent)


async def test_pool_creates_clients_on_demand_and_again_after_close() -> None:
    pool = ClientPool(Timeouts())
    assert pool.clients == []
    await pool.aclose()
    async with pool.lease() as client:
        assert not client.is_closed
    await pool.aclose()
    await pool.aclose()


def test_surplus_idle_clients_are_closed_after_a_delay() -> None:
    async def use() -> None:
        pool = ClientPool(Timeouts(), transport="httpx")
        async with AsyncExitStack() as most, AsyncExitStack() as one:
            for _ in range((_pool.IDLE_CLIENTS + 1) * STREAMS):
                await most.enter_async_context(pool.lease())
            for _ in range(STREAMS):
                await one.enter_async_context(pool.lease())
            every = pool.clients
            assert len(every) == _pool.IDLE_CLIENTS + 2
            await most.aclose()
            pool.tidy()
            await asyncio.sleep(_pool.IDLE_SECONDS - 1)
            # Still open, because they may be needed soon.
            assert pool.clients == every
            # One client was used again, which restarted its idle time.
            async with AsyncExitStack() as again:
                for _ in range((_pool.IDLE_CLIENTS + 1) * STREAMS):
                    await again.enter_async_context(pool.lease())
            await asyncio.sleep(_pool.IDLE_SECONDS - 1)
            assert pool.clients == every
            await asyncio.sleep(_pool.IDLE_SECONDS)
            # The active client is kept.
            assert pool.clients == [*every[: _pool.IDLE_CLIENTS], every[-1]]
            assert [client.is_closed for client in every] == [False] * _pool.IDLE_CLIENTS + [True, False]
        pool.tidy()
        await asyncio.sleep(2 * _pool.IDLE_SECONDS)
        assert pool.clients == every[: _pool.IDLE_CLIENTS]
        await asyncio.sleep(3600)
        assert pool.clients == every[: _pool.IDLE_CLIENTS]
        await pool.aclose()
        assert all(client.is_closed for client in every)

    with virtual_time() as time:
        time.run(use())


async def test_concurrent_calls_share_few_clients_and_leave_no_connection(server: Server, transport: str) -> None:
    server.answer(text_reply("Hello"))
    provider = chat_model(server)
    for _ in range(2):
        answers = await asyncio.gather(*(collect(provider.call(REQUEST)) for _ in range(3 * STREAMS)))
        assert {streamed_text(answer) for answer in answers} == {"Hello"}
    assert len(provider._pool.clients) == (3 if transport == "httpx" else 1)
    assert server.connections == 3 * STREAMS
    await provider.aclose()
    async with asyncio.timeout(1):
        await server.all_closed.wait()


def test_each_event_loop_has_its_own_clients() -> None:
    pool = ClientPool(Timeouts())
    seen: list[Client] = []

    async def stream() -> None:
        async with pool.lease() as client:
            seen.append(client)
        assert pool.clients == [client]

    asyncio.run(stream())
    asyncio.run(stream())
    assert seen[0] is not seen[1]


async def test_custom_client_is_used_and_never_closed() -> None:
    async with httpx.AsyncClient() as own:
        pool = ClientPool(Timeouts(), own=own)
        async with AsyncExitStack() as streams:
            for _ in range(STREAMS + 1):
                client = await streams.enter_async_context(pool.lease())
                assert isinstance(client, HttpxClient)
                assert client.http is own
        await pool.aclose()
        assert not own.is_closed


async def test_url_for_a_custom_client_is_parsed_once(server: Server) -> None:
    urls: list[httpx.URL | str] = []

    class Client(httpx.AsyncClient):
        def build_request(self, method: str, url: httpx.URL | str, **options: Any) -> httpx.Request:
            urls.append(url)
            return super().build_request(method, url, **options)

    server.answer(text_reply("hi"))
    async with Client() as own:
        model = chat_model(server, http_client=own)
        for _ in range(2):
            await collect(model.call(REQUEST))
    first, second = urls
    assert isinstance(first, httpx.URL)
    assert second is first
    assert [request.path for request in server.requests] == ["/v1/chat/completions"] * 2


async def test_transport_defaults_to_httpx(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def find_transport(pool: ClientPool) -> str:
        async with pool.lease() as client:
            name = type(client).__name__
        await pool.aclose()
        return name

    monkeypatch.delenv(TRANSPORT_ENV, raising=False)
    assert await find_transport(ClientPool(Timeouts())) == "HttpxClient"
    assert await find_transport(ClientPool(Timeouts(), transport="aiohttp")) == "AiohttpClient"
    monkeypatch.setenv(TRANSPORT_ENV, "aiohttp")
    assert await find_transport(ClientPool(Timeouts())) == "AiohttpClient"
    assert await find_transport(ClientPool(Timeouts(), transport="httpx")) == "HttpxClient"


async def test_unknown_or_missing_transport_error_suggests_a_remedy(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = "transport must be 'httpx' or 'aiohttp', got 'curl'; check transport= and RXLOOP_TRANSPORT"
    with pytest.raises(ConfigurationError, match=unknown):
        openai_chat("m", base_url=server.base_url, transport="curl")  # pyright: ignore[reportArgumentType]
    monkeypatch.setenv(TRANSPORT_ENV, "curl")
    assert str((await collect(chat_model(server).call(REQUEST))).error) == unknown
    monkeypatch.setitem(__import__("sys").modules, "rxloop.providers.transport.aiohttp_client", None)
    missing = (await collect(chat_model(server, transport="aiohttp").call(REQUEST))).error
    assert isinstance(missing, ConfigurationError)
    assert "pip install 'rxloop[fast]'" in str(missing)
    with pytest.raises(ConfigurationError, match=r"pass an httpx transport as http_client=httpx.AsyncClient"):
        openai_chat("m", transport=httpx.MockTransport(lambda _: httpx.Response(200)))  # pyright: ignore[reportArgumentType]
    assert server.requests == []


async def test_custom_client_and_transport_are_mutually_exclusive() -> None:
    async with httpx.AsyncClient() as own:
        with pytest.raises(ConfigurationError, match="not both"):
            openai_chat("m", base_url="http://localhost/v1", http_client=own, transport="httpx")


async def test_transport_is_httpx_if_the_environment_has_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("NO_PROXY", "localhost")
    assert not ClientPool(Timeouts(), transport="aiohttp").shielded
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    assert ClientPool(Timeouts(), transport="aiohttp").shielded


async def test_dropped_provider_releases_its_pool(server: Server, transport: str) -> None:
    server.answer(text_reply("Hello"))
    provider = chat_model(server)
    await collect(provider.call(REQUEST))
    pool = weakref.ref(provider._pool)
    await provider.aclose()
    gc.collect()
    gc.disable()
    try:
        del provider
        assert pool() is None
    finally:
        gc.enable()


def test_idle_clients_are_closed_after_a_peak() -> None:
    async def use() -> None:
        pool = ClientPool(Timeouts(), transport="httpx")
        async with AsyncExitStack() as peak, AsyncExitStack() as work:
            for _ in range(10 * STREAMS):
                await work.enter_async_context(pool.lease())
            for _ in range(30 * STREAMS):
                await peak.enter_async_context(pool.lease())
            every = pool.clients
            assert len(every) == 40
            await peak.aclose()
            pool.tidy()
            await asyncio.sleep(2 * _pool.IDLE_SECONDS)
            assert len(pool.clients) == 10 + _pool.IDLE_CLIENTS
        pool.tidy()
        await asyncio.sleep(2 * _pool.IDLE_SECONDS)
        assert len(pool.clients) == _pool.IDLE_CLIENTS
        assert sum(not client.is_closed for client in every) == _pool.IDLE_CLIENTS
        await pool.aclose()

    with virtual_time() as time:
        time.run(use())


def test_pool_close_waits_for_clients_being_closed() -> None:
    async def use() -> None:
        pool = ClientPool(Timeouts(), transport="httpx")
        async with AsyncExitStack() as peak:
            for _ in range(20 * STREAMS):
                await peak.enter_async_context(pool.lease())
            every = pool.clients
        pool.tidy()
        while len(pool.clients) == len(every):  # noqa: ASYNC110 (in virtual time)
            await asyncio.sleep(_pool.IDLE_SECONDS)
        await pool.aclose()
        assert all(client.is_closed for client in every)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with virtual_time() as time:
        time.run(use())


async def test_peak_reuses_its_connections(server: Server) -> None:
    server.answer(text_reply("Hello"))
    provider = chat_model(server, transport="httpx")

    async def call_sequentially() -> None:
        for _ in range(3):
            await collect(provider.call(REQUEST))

    await asyncio.gather(*(call_sequentially() for _ in range(60)))
    # Each connection is created once, even if all clients are idle between two calls.
    assert server.connections <= 60
    await provider.aclose()


async def test_sockets_of_a_peak_are_closed(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pool, "IDLE_SECONDS", 0.05)
    server.answer(text_reply("Hello"))
    provider = chat_model(server, transport="httpx")
    await asyncio.gather(*(collect(provider.call(REQUEST)) for _ in range(100)))
    async with asyncio.timeout(5):
        while server.open > STREAMS * _pool.IDLE_CLIENTS:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await provider.aclose()
