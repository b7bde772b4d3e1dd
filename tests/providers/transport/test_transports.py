"""Behaviour common to all transports: TLS, proxies, timeouts, broken and reused connections."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Generator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import trustme

from rxloop.errors import ConfigurationError, ProviderConnectionError, ProviderTimeout
from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol.messages import Message
from rxloop.protocol.settings import ModelSettings
from rxloop.providers import HTTPModel, Retry, Timeouts, openai_chat
from rxloop.providers import transport as _pool
from support.http_server import (
    REQUEST,
    Server,
    StreamResult,
    active_connections,
    chat_model,
    collect,
    start_server,
    streamed_text,
    text_reply,
)
from support.tcp_server import serve_connections

pytestmark = pytest.mark.usefixtures("transport")

ONCE = Retry(attempts=1)


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """Certificate authority of the tests."""
    return trustme.CA()


@pytest.fixture(scope="module")
def certificate(authority: trustme.CA) -> trustme.LeafCert:
    """Certificate for this machine."""
    return authority.issue_cert("127.0.0.1")


@pytest.fixture
def trusted(authority: trustme.CA, monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    with authority.cert_pem.tempfile() as file:
        monkeypatch.setenv("SSL_CERT_FILE", file)
        _pool._ssl_context.cache_clear()
        yield
    _pool._ssl_context.cache_clear()


async def test_certificates_are_loaded_outside_of_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, load = list[int](), _pool._ssl_context

    @cache
    def record_thread() -> ssl.SSLContext:
        threads.append(threading.get_ident())
        return load()

    monkeypatch.setattr(_pool, "_ssl_context", record_thread)
    async with start_server() as server:
        server.answer(text_reply("Hello"))
        for _ in range(2):
            model = chat_model(server)
            assert streamed_text(await collect(model.call(REQUEST))) == "Hello"
            await model.aclose()
    assert len(threads) == 1
    assert threading.get_ident() not in threads


LOADING = """
import asyncio, sys, threading
import anyio
from rxloop import Agent
from rxloop.providers import Retry, openai_chat

loaded = []

class Finder:
    def find_spec(self, name, path=None, target=None):
        if threading.current_thread() is threading.main_thread():
            loaded.append(name)

async def main():
    model = openai_chat("m", base_url="http://127.0.0.1:9/v1", api_key="k", retry=Retry(attempts=1))
    sys.meta_path.insert(0, Finder())
    try:
        await Agent(model).run("Hi")
    except Exception as error:
        print(error.code, *[name for name in loaded if name in ("httpx", "anyio._backends._asyncio")])

{runner}.run(main{call})
"""


@pytest.mark.parametrize(("runner", "call"), [("asyncio", "()"), ("anyio", "")])
def test_libraries_are_loaded_outside_of_the_event_loop(runner: str, call: str) -> None:
    program = LOADING.format(runner=runner, call=call)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL
    )
    assert done.stdout.split() == ["connection"]


@contextlib.asynccontextmanager
async def secure(certificate: trustme.LeafCert) -> AsyncGenerator[Server]:
    """Model server with TLS."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    certificate.configure_cert(context)
    made = Server()
    made.answer(text_reply("Hello"))
    async with serve_connections(made.handle, ssl=context) as made.port:
        yield made


@contextlib.asynccontextmanager
async def start_tunnel(asked: list[str]) -> AsyncGenerator[str]:
    """Start a CONNECT proxy, and yield its URL."""
    tasks: set[asyncio.Task[Any]] = set()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                writer.write(data)
        writer.close()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        line = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0].decode()
        asked.append(line)
        host, _, port = line.split()[1].partition(":")
        there, out = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
        await asyncio.gather(carry(reader, out), carry(there, writer))

    listener = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    finally:
        listener.close()
        await asyncio.gather(*tasks)


async def ask(base_url: str, key: str = "k") -> StreamResult:
    """Call a provider, and check for leaked connections."""
    provider = openai_chat("m", base_url=base_url, retry=ONCE, api_key=key)
    return (await ask_sequentially(provider, 1))[0]


async def ask_sequentially(provider: HTTPModel, count: int) -> list[StreamResult]:
    """Make sequential calls."""
    async with asyncio.timeout(5):
        found = [await collect(provider.call(REQUEST)) for _ in range(count)]
        assert active_connections(provider) == []
        await provider.aclose()
    return found


@pytest.mark.usefixtures("trusted")
async def test_server_with_a_valid_certificate_is_called_over_one_connection(certificate: trustme.LeafCert) -> None:
    async with secure(certificate) as server:
        provider = openai_chat("m", base_url=f"https://127.0.0.1:{server.port}/v1", retry=ONCE)
        assert [streamed_text(answer) for answer in await ask_sequentially(provider, 3)] == ["Hello"] * 3
        assert (server.connections, len(server.requests)) == (1, 3)


async def test_untrusted_certificate_is_a_connection_error(certificate: trustme.LeafCert) -> None:
    async with secure(certificate) as server:
        answer = await ask(f"https://127.0.0.1:{server.port}/v1")
        assert isinstance(answer.error, ProviderConnectionError)
        assert "certificate" in str(answer.error).lower()
        assert server.requests == []


async def test_http_proxy_of_the_environment_gets_the_absolute_url(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answer(text_reply("Hello"))
    monkeypatch.setenv("HTTP_PROXY", f"http://ann:pass@127.0.0.1:{server.port}")
    answer = await ask("http://model.example/v1")
    assert (answer.error, streamed_text(answer)) == (None, "Hello")
    assert server.requests[0].path == "http://model.example/v1/chat/completions"
    assert server.requests[0].headers["proxy-authorization"] == "Basic YW5uOnBhc3M="
    assert server.requests[0].headers["authorization"] == "Bearer k"


async def test_url_excluded_from_the_proxy_is_called_directly(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.answer(text_reply("Hello"))
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    assert streamed_text(await ask(server.base_url)) == "Hello"
    monkeypatch.delenv("NO_PROXY")
    assert isinstance((await ask(server.base_url)).error, ProviderConnectionError)
    assert len(server.requests) == 1


@pytest.mark.usefixtures("trusted")
async def test_tls_uses_the_tunnel_of_a_proxy(certificate: trustme.LeafCert, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    async with start_tunnel(asked) as address, secure(certificate) as server:
        monkeypatch.setenv("HTTPS_PROXY", address)
        provider = openai_chat("m", base_url=f"https://127.0.0.1:{server.port}/v1", retry=ONCE)
        assert [streamed_text(answer) for answer in await ask_sequentially(provider, 2)] == ["Hello"] * 2
        assert asked == [f"CONNECT 127.0.0.1:{server.port} HTTP/1.1"]


async def test_request_that_the_server_does_not_read_is_a_timeout() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Read only the head.
        await reader.readuntil(b"\r\n\r\n")
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.Event().wait()

    timeout = Timeouts(connect=0.1, idle=0.1)
    async with serve_connections(handle) as port:
        provider = openai_chat("m", base_url=f"http://127.0.0.1:{port}/v1", retry=ONCE, timeout=timeout)
        async with asyncio.timeout(5):
            answer = await collect(provider.call(ModelRequest(messages=[Message.user("x" * 30_000_000)])))
        assert isinstance(answer.error, ProviderTimeout)
        assert active_connections(provider) == []
        await provider.aclose()


async def test_key_that_is_invalid_in_a_header_is_a_configuration_error(server: Server) -> None:
    answer = await ask(server.base_url, key="a\nb")
    assert isinstance(answer.error, ConfigurationError)
    assert server.requests == []


async def test_cookies_of_a_gateway_are_returned_to_it(server: Server) -> None:
    plain = text_reply("Hello")
    cookies = ["a=1; Path=/", "b=2; Path=/elsewhere", "a=3; Path=/"]
    server.answer(*[replace(plain, headers={"set-cookie": cookie}) for cookie in cookies], plain)
    provider = chat_model(server)
    await ask_sequentially(provider, 5)
    assert [request.headers.get("cookie") for request in server.requests] == [None, "a=1", "a=1", "a=3", "a=3"]
    server.requests.clear()
    mine = chat_model(server, headers={"Cookie": "mine=1"})
    await ask_sequentially(mine, 2)
    assert [request.headers.get("cookie") for request in server.requests] == ["mine=1", "mine=1"]


async def test_request_has_the_headers_of_its_own_call(server: Server) -> None:
    server.answer(text_reply("Hello"))
    provider = chat_model(server)
    for number in (1, 1, 2, 10_000):
        settings = ModelSettings(headers={"X-Number": str(number)})
        message = Message.user("x" * number)
        await collect(provider.call(ModelRequest(messages=[message], settings=settings)))
    sent = [(request.headers["x-number"], request.body["messages"][0]["content"]) for request in server.requests]
    assert sent == [("1", "x"), ("1", "x"), ("2", "xx"), ("10000", "x" * 10_000)]
    await provider.aclose()


async def test_connection_closed_by_the_server_is_not_reused(server: Server) -> None:
    server.answer(text_reply("Hello"))
    provider = chat_model(server)
    assert streamed_text(await collect(provider.call(REQUEST))) == "Hello"
    for task in server.tasks:
        task.cancel()
    async with asyncio.timeout(1):
        await server.all_closed.wait()
    await asyncio.sleep(0.01)
    assert streamed_text(await collect(provider.call(REQUEST))) == "Hello"
    assert server.connections == 2
    await provider.aclose()


async def test_call_can_be_disposed_during_a_flood(server: Server) -> None:
    server.answer(text_reply(*["word"] * 20_000))
    provider = chat_model(server)
    seen = 0
    ended = asyncio.Event()

    def on_next(_: object) -> None:
        nonlocal seen
        seen += 1
        if seen == 100:
            subscription.dispose()

    async with asyncio.timeout(5):
        subscription = provider.call(REQUEST).subscribe(on_next, on_completed=ended.set)
        await server.requested.wait()
        await server.all_closed.wait()
    assert seen == 100
    assert not ended.is_set()
    assert active_connections(provider) == []
    await provider.aclose()
