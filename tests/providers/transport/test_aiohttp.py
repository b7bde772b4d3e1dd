"""Behaviour specific to aiohttp. It emits no warnings, as with httpx."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import queue
import threading
from collections.abc import Awaitable, Callable, Generator
from typing import Any

import httpx
import pytest
from aiohttp.client_proto import ResponseHandler

from rxloop.errors import ConfigurationError, ProviderError
from rxloop.providers import HTTPModel, Retry, Timeouts, openai_chat
from rxloop.providers.bounds import DEFAULT_BOUNDS
from rxloop.providers.failures import Endpoint
from rxloop.providers.transport.aiohttp_client import HEAD_PIECE, PIECE, AiohttpClient
from support.http_server import (
    REQUEST,
    Reply,
    Server,
    active_connections,
    chat_model,
    collect,
    start_server,
    streamed_text,
    text_reply,
)
from support.tcp_server import serve_connections


async def test_unclosed_provider_leaves_no_connection_and_no_warning(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.answer(text_reply("Hello"))
    provider = chat_model(server, transport="aiohttp")
    assert streamed_text(await collect(provider.call(REQUEST))) == "Hello"
    assert server.open == 1
    del provider
    gc.collect()
    async with asyncio.timeout(2):
        await server.all_closed.wait()
    assert caplog.records == []


@contextlib.contextmanager
def start_server_thread() -> Generator[Server]:
    """Start a server in a separate thread."""
    ready: queue.Queue[tuple[Server, asyncio.AbstractEventLoop, asyncio.Event]] = queue.Queue()

    async def serve() -> None:
        async with start_server() as server:
            over = asyncio.Event()
            ready.put((server, asyncio.get_running_loop(), over))
            await over.wait()
            await server.all_closed.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    server, loop, over = ready.get()
    yield server
    loop.call_soon_threadsafe(over.set)
    thread.join(5)
    assert not thread.is_alive()


# An ending event loop may report resources of any library.
@pytest.mark.filterwarnings("ignore:unclosed (transport|<socket):ResourceWarning")
@pytest.mark.parametrize("debug", [False, True])
def test_provider_can_be_used_in_a_new_event_loop_without_warnings(
    caplog: pytest.LogCaptureFixture, debug: bool
) -> None:
    caplog.set_level(logging.WARNING)

    async def ask(provider: HTTPModel) -> str:
        asyncio.get_running_loop().slow_callback_duration = 60
        return streamed_text(await collect(provider.call(REQUEST)))

    with start_server_thread() as server:
        server.answer(text_reply("Hello"))
        provider = chat_model(server, transport="aiohttp")
        for _ in range(2):
            assert asyncio.run(ask(provider), debug=debug) == "Hello"
        assert server.connections == 2
        del provider
        gc.collect()
    assert caplog.records == []


async def ask_server(
    handle: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]], count: int = 1
) -> Any:
    """Call such a server several times."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            await handle(reader, writer)

    async with serve_connections(serve) as port:
        provider = openai_chat(
            "m",
            base_url=f"http://127.0.0.1:{port}/v1",
            transport="aiohttp",
            retry=Retry(attempts=1),
            timeout=Timeouts(idle=0.2),
        )
        async with asyncio.timeout(5):
            answers = [await collect(provider.call(REQUEST)) for _ in range(count)]
        assert active_connections(provider) == []
        await provider.aclose()
        return answers


CHUNK = b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\n'
WHOLE = b'{"choices":[{"message":{"content":"hi"},"finish_reason":"stop"}]}'


async def test_answer_that_becomes_invalid_http_is_an_error() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        writer.write(head + b"%x\r\n%b\r\n" % (len(CHUNK), CHUNK))
        await asyncio.sleep(0.05)
        writer.write(b"ZZZ\r\nno chunk\r\n")
        await asyncio.Event().wait()

    [answer] = await ask_server(handle)
    assert streamed_text(answer) == "hi"
    assert isinstance(answer.error, ProviderError)


async def test_data_on_an_idle_connection_is_not_an_answer() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(WHOLE)
        writer.write(head + WHOLE)
        writer.write(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 2\r\n\r\nno")
        await asyncio.Event().wait()

    answers = await ask_server(handle, 2)
    assert [(streamed_text(answer), answer.error) for answer in answers] == [("hi", None), ("hi", None)]


async def test_long_header_is_accepted_and_invalid_url_is_a_configuration_error() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        long = b"x-long: " + b"x" * 20_000 + b"\r\n"
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n" % len(WHOLE)
        writer.write(head + long + b"\r\n" + WHOLE)
        await asyncio.Event().wait()

    [answer] = await ask_server(handle)
    assert (streamed_text(answer), answer.error) == ("hi", None)
    odd = openai_chat("m", base_url="http://xn--é.com/v1", transport="aiohttp", retry=Retry(attempts=1))
    assert isinstance((await collect(odd.call(REQUEST))).error, ConfigurationError)


async def test_read_size_is_limited(server: Server) -> None:
    server.answer(Reply([b"x" * PIECE] * 20))
    client = AiohttpClient(Timeouts(), True, httpx.create_ssl_context(), 30, DEFAULT_BOUNDS)
    answer = await client.post(Endpoint("m", f"{server.base_url}/chat/completions"), {}, b"{}")
    connection: Any = answer._response.connection
    assert connection.transport.max_size == PIECE
    await answer.aclose()
    await client.aclose()


async def test_read_size_is_smaller_before_the_final_head(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    received = ResponseHandler.data_received
    sizes: list[int] = []

    def record(handler: ResponseHandler, data: bytes) -> None:
        sizes.append(len(data))
        received(handler, data)

    monkeypatch.setattr(ResponseHandler, "data_received", record)
    provider = chat_model(server, transport="aiohttp")
    # The second request uses the connection of the first one.
    for connections in (1, 1):
        server.answer(Reply(text_reply("Hello").pieces, interim=5_000))
        assert streamed_text(await collect(provider.call(REQUEST))) == "Hello"
        assert server.connections == connections
    await provider.aclose()
    assert sum(sizes) > 200_000
    assert max(sizes) <= HEAD_PIECE
