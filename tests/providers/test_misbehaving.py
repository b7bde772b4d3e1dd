"""Misbehaving servers over real sockets. Each call ends with the right error or answer in bounded time."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
import struct
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest
from reactivex import operators as ops

from rxloop.errors import (
    Overloaded,
    ProviderConnectionError,
    ProviderError,
    ProviderProtocolError,
    ProviderTimeout,
    RateLimited,
    ServerError,
)
from rxloop.protocol.events import Event, LLMFailedEvent
from rxloop.providers import Retry, Timeouts, limited, openai_chat
from support.http_server import (
    REQUEST,
    Reply,
    Server,
    StreamResult,
    active_connections,
    chat_model,
    collect,
    delta,
    sse,
    streamed_text,
    text_reply,
)
from support.tcp_server import serve_connections

pytestmark = pytest.mark.usefixtures("transport")

Script = Callable[[asyncio.StreamWriter], Awaitable[None]]

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
HELLO = b"".join(sse(delta(content="Hel"), delta(content="lo"), delta("stop")))
HALF = b"".join(sse(delta(content="Hel"), done=False))
WHOLE = b'{"choices": [{"message": {"content": "Hello"}, "finish_reason": "stop"}]}'
IDLE = Timeouts(idle=0.05)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def write_then_close(*pieces: bytes) -> Script:
    async def script(writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()

    return script


def write_then_wait(*pieces: bytes) -> Script:
    async def script(writer: asyncio.StreamWriter) -> None:
        await write_then_close(*pieces)(writer)
        await asyncio.get_running_loop().create_future()

    return script


def write_then_reset(*pieces: bytes) -> Script:
    async def script(writer: asyncio.StreamWriter) -> None:
        await write_then_close(*pieces)(writer)
        # Wait for the data to arrive, because a reset discards unread data.
        await asyncio.sleep(0.02)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    return script


@contextlib.asynccontextmanager
async def start_raw_server(*scripts: Script) -> AsyncGenerator[str]:
    """Start a server that runs one script per connection, and yield its URL."""
    connections = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        script = scripts[min(connections, len(scripts)) - 1]
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
            await reader.readexactly(int(length.partition(b":")[2]))
            await script(writer)
        writer.close()

    async with serve_connections(handle) as port:
        yield f"http://127.0.0.1:{port}/v1"


async def ask(*scripts: Script, **options: Any) -> StreamResult:
    """Call a provider, and check for leaked connections."""
    options.setdefault("retry", Retry(attempts=1))
    async with start_raw_server(*scripts) as base_url, asyncio.timeout(5):
        provider = openai_chat("m", base_url=base_url, **options)
        answer = await collect(provider.call(REQUEST))
        for _ in range(20):
            # After the total time, the call ends before the connection is closed.
            await asyncio.sleep(0)
        assert active_connections(provider) == []
        await provider.aclose()
    return answer


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200", HEAD, CHUNKED, CHUNKED + b"5\r\nda"])
async def test_silence_before_the_first_event_is_a_timeout(sent: bytes) -> None:
    # L68
    answer = await ask(write_then_wait(sent), timeout=IDLE, retry=Retry(first=0))
    assert isinstance(answer.error, ProviderTimeout)
    assert answer.error.retryable
    assert "idle timeout" in str(answer.error)
    assert answer.events == []


async def test_silence_in_the_stream_is_a_timeout_that_keeps_the_text() -> None:
    # L68
    answer = await ask(write_then_wait(CHUNKED, chunk(HALF)), timeout=IDLE)
    assert isinstance(answer.error, ProviderTimeout)
    assert streamed_text(answer) == "Hel"


async def test_endless_headers_end_at_the_total_time() -> None:
    async def trickle(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        while True:
            writer.write(b"x-more: 1\r\n")
            await writer.drain()
            await asyncio.sleep(0.01)

    answer = await ask(trickle, timeout=Timeouts(idle=1, total=0.1))
    assert isinstance(answer.error, ProviderTimeout)
    assert "0.1 s" in str(answer.error)


async def test_endless_comments_end_at_the_total_time_shared_with_retries() -> None:
    async def comments(writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED)
        while True:
            writer.write(chunk(b": PROCESSING\n\n"))
            await writer.drain()
            await asyncio.sleep(0.01)

    answer = await ask(write_then_reset(), comments, timeout=Timeouts(total=0.1), retry=Retry(first=0))
    assert [type(event) for event in answer.events] == [LLMFailedEvent]
    assert isinstance(answer.error, ProviderTimeout)


async def test_unaccepted_connection_is_a_connect_timeout() -> None:
    # The socket listens but never accepts. Once its queue is full, no further connection is established.
    with socket.socket() as deaf, contextlib.ExitStack() as stack:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(deaf.getsockname())
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}/v1"
        provider = openai_chat("m", base_url=url, timeout=Timeouts(connect=0.05))
        answer = await collect(provider.call(REQUEST))
        await provider.aclose()
    assert isinstance(answer.error, ProviderTimeout)
    assert "connect timeout" in str(answer.error)


@pytest.mark.parametrize(
    "sent",
    [
        CHUNKED + chunk(HALF) + b"20\r\ndata: {",
        CHUNKED + chunk(HALF + b"data: {"),
        CHUNKED + chunk(HALF),
        HEAD + b"content-length: 9999\r\n\r\n" + HALF,
        HEAD + b"connection: close\r\n\r\n" + HALF,
        CHUNKED + chunk(HALF + b"data: {") + chunk(b"") + b"\r\n",
    ],
    ids=["half a chunk", "half an event", "no last chunk", "too short", "neither end", "half an event, ended well"],
)
async def test_answer_that_stops_early_is_an_error_that_keeps_the_text(sent: bytes) -> None:
    # L66
    answer = await ask(write_then_close(sent), retry=Retry(first=0))
    assert isinstance(answer.error, ProviderConnectionError)
    assert streamed_text(answer) == "Hel"


@pytest.mark.parametrize(("sent", "kept"), [(b"", ""), (HEAD, ""), (CHUNKED, ""), (CHUNKED + chunk(HALF), "Hel")])
async def test_reset_is_a_connection_error(sent: bytes, kept: str) -> None:
    answer = await ask(write_then_reset(sent))
    assert isinstance(answer.error, ProviderConnectionError)
    assert answer.error.retryable
    assert streamed_text(answer) == kept


async def test_retry_after_two_resets_gets_the_answer() -> None:
    # L67
    well = write_then_close(CHUNKED, chunk(HELLO), chunk(b""))
    answer = await ask(write_then_reset(), write_then_reset(CHUNKED), well, retry=Retry(first=0))
    assert answer.error is None
    assert streamed_text(answer) == "Hello"
    assert [event.error.code for event in answer.events if isinstance(event, LLMFailedEvent)] == ["connection"] * 2


async def test_response_that_is_not_http_is_an_error() -> None:
    answer = await ask(write_then_close(b"SSH-2.0-OpenSSH_9.6\r\n"))
    assert isinstance(answer.error, ProviderError)


@pytest.mark.parametrize("kind", ["text/html", "text/html; charset=utf-8", "application/json", "application/xhtml+xml"])
async def test_html_page_is_a_protocol_error(server: Server, kind: str) -> None:
    server.answer(Reply([b"<html><h1>Sign in</h1></html>"], content_type=kind))
    provider = chat_model(server, retry=Retry(first=0))
    answer = await collect(provider.call(REQUEST))
    assert isinstance(answer.error, ProviderProtocolError)
    assert "<h1>Sign in</h1>" in str(answer.error)
    assert len(server.requests) == 1
    await provider.aclose()


@pytest.mark.parametrize("kind", ["text/plain", "application/octet-stream", "", "TEXT/EVENT-STREAM", "nonsense"])
async def test_stream_with_a_wrong_content_type_is_read(server: Server, kind: str) -> None:
    server.answer(Reply([HELLO], content_type=kind))
    provider = chat_model(server)
    assert streamed_text(await collect(provider.call(REQUEST))) == "Hello"
    await provider.aclose()


@pytest.mark.parametrize("stream", [True, False])
async def test_empty_body_is_an_error(server: Server, stream: bool) -> None:
    server.answer(Reply([], content_type="text/event-stream" if stream else "application/json"))
    provider = chat_model(server, stream=stream)
    answer = await collect(provider.call(REQUEST))
    assert isinstance(answer.error, ProviderConnectionError if stream else ProviderProtocolError)
    await provider.aclose()


BUSY = b'{"error": {"message": "busy"}}'


@pytest.mark.parametrize("headers", [{"retry-after": "0"}, {"retry-after-ms": "10"}, {}, {"retry-after": "soon"}])
async def test_rate_limited_request_is_retried_after_the_requested_delay(
    server: Server, headers: dict[str, str]
) -> None:
    # L67
    server.answer(Reply([BUSY], 429, headers, "application/json"), text_reply("Hello"))
    provider = chat_model(server, retry=Retry(first=0.01, jitter=0))
    answer = await collect(provider.call(REQUEST))
    assert streamed_text(answer) == "Hello"
    failure = answer.events[0]
    assert isinstance(failure, LLMFailedEvent)
    assert failure.retry_in == (0 if headers.get("retry-after") == "0" else 0.01)
    await provider.aclose()


async def test_long_delay_is_left_to_the_caller(server: Server) -> None:
    # L67
    server.answer(Reply([BUSY], 429, {"retry-after": "3600"}, "application/json"))
    provider = chat_model(server, retry=Retry())
    answer = await collect(provider.call(REQUEST))
    assert isinstance(answer.error, RateLimited)
    assert answer.error.retry_after == 3600
    assert len(server.requests) == 1
    await provider.aclose()


# P30
@pytest.mark.parametrize("total", [None, 10])
async def test_delay_beyond_the_total_time_fails_at_once(server: Server, total: float | None) -> None:
    server.answer(Reply([BUSY], 429, {"x-ratelimit-reset-tokens": "6m0s"}, "application/json"))
    provider = limited(
        chat_model(server, timeout=Timeouts(total=total), retry=Retry(longest=60 if total is None else 999))
    )
    async with asyncio.timeout(5):
        answer = await collect(provider.call(REQUEST))
    assert isinstance(answer.error, RateLimited)
    assert answer.error.retry_after == 360
    assert "retry after 360 s" in str(answer.error)
    assert len(server.requests) == 1
    await provider.aclose()


async def test_retry_after_three_server_errors_gets_the_answer(server: Server) -> None:
    # L67
    bad = [Reply([b"oops"], status, content_type="text/plain") for status in (500, 502, 503)]
    server.answer(*bad, text_reply("Hello"))
    provider = chat_model(server, retry=Retry(attempts=4, first=0))
    answer = await collect(provider.call(REQUEST))
    assert streamed_text(answer) == "Hello"
    codes = [event.error.code for event in answer.events if isinstance(event, LLMFailedEvent)]
    assert codes == ["server", "server", "overloaded"]
    assert server.connections == 1
    await provider.aclose()


@pytest.mark.parametrize(("status", "kind"), [(500, ServerError), (503, Overloaded), (529, Overloaded)])
async def test_endless_error_body_is_reported_as_the_error(status: int, kind: type[Exception]) -> None:
    head = b"HTTP/1.1 %d Oops\r\ntransfer-encoding: chunked\r\n\r\n" % status
    answer = await ask(write_then_wait(head, chunk(b"so far")), timeout=IDLE)
    assert type(answer.error) is kind
    assert "so far" in str(answer.error)


async def test_large_error_body_is_not_read_completely() -> None:
    sent = 0

    async def flood(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 500 Oops\r\ntransfer-encoding: chunked\r\n\r\n")
        while True:
            writer.write(chunk(b"x" * 10_000))
            await writer.drain()
            sent += 10_000

    answer = await ask(flood)
    assert isinstance(answer.error, ServerError)
    assert sent < 50_000_000


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_redirect_is_not_followed_and_its_target_is_reported(server: Server, status: int) -> None:
    server.answer(Reply([], status, {"location": "https://elsewhere.example/v1"}))
    provider = chat_model(server, api_key="secret", retry=Retry(first=0))
    answer = await collect(provider.call(REQUEST))
    assert isinstance(answer.error, ProviderProtocolError)
    assert "https://elsewhere.example/v1" in str(answer.error)
    assert "secret" not in str(answer.error)
    assert len(server.requests) == 1
    await provider.aclose()


@pytest.mark.parametrize("size", [1, 7, 10_000])
async def test_unrequested_compression_is_decoded(server: Server, size: int) -> None:
    for body, kind in ((HELLO, "text/event-stream"), (WHOLE, "application/json")):
        packed = gzip.compress(body)
        pieces = [packed[i : i + size] for i in range(0, len(packed), size)]
        server.answer(Reply(pieces, headers={"content-encoding": "gzip"}, content_type=kind))
        provider = chat_model(server)
        assert streamed_text(await collect(provider.call(REQUEST))) == "Hello"
        await provider.aclose()


async def test_invalid_compression_is_a_protocol_error(server: Server) -> None:
    server.answer(Reply([HELLO], headers={"content-encoding": "gzip"}))
    provider = chat_model(server)
    answer = await collect(provider.call(REQUEST))
    assert isinstance(answer.error, ProviderProtocolError)
    await provider.aclose()


async def test_compressed_error_is_read(server: Server) -> None:
    server.answer(Reply([gzip.compress(BUSY)], 429, {"content-encoding": "gzip"}, "application/json"))
    provider = chat_model(server)
    answer = await collect(provider.call(REQUEST))
    assert isinstance(answer.error, RateLimited)
    assert "busy" in str(answer.error)
    await provider.aclose()


@pytest.mark.parametrize(("body", "kind"), [(HELLO, b"text/event-stream"), (WHOLE, b"application/json")])
async def test_http_1_0_answer_that_ends_with_the_connection_is_read(body: bytes, kind: bytes) -> None:
    answer = await ask(write_then_close(b"HTTP/1.0 200 OK\r\ncontent-type: " + kind + b"\r\n\r\n" + body))
    assert answer.error is None
    assert streamed_text(answer) == "Hello"


async def test_http_1_0_answer_that_ends_early_is_an_error() -> None:
    # L66
    answer = await ask(write_then_close(b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + HALF))
    assert isinstance(answer.error, ProviderConnectionError)
    assert streamed_text(answer) == "Hel"


async def test_informational_responses_are_skipped() -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"
    answer = await ask(write_then_close(early + CHUNKED + chunk(HELLO) + chunk(b"")))
    assert streamed_text(answer) == "Hello"


async def test_data_received_while_the_loop_was_blocked_is_not_a_timeout() -> None:
    begun = threading.Event()

    def vendor(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(CHUNKED + chunk(HALF))
            begun.wait(10)
            time.sleep(0.1)
            connection.sendall(chunk(b"".join(sse(delta(content="lo"), delta("stop")))) + b"0\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=vendor, args=(listener,))
        thread.start()
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        model = openai_chat("m", base_url=address, timeout=Timeouts(idle=0.15), retry=Retry(attempts=1))

        def block_loop(event: Event) -> None:
            if not begun.is_set():
                begun.set()
                asyncio.get_running_loop().call_soon(time.sleep, 0.6)

        answer = await collect(model.call(REQUEST).pipe(ops.do_action(block_loop)))
        await model.aclose()
        thread.join()
    assert answer.error is None
    assert streamed_text(answer) == "Hello"
