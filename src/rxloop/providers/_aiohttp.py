"""httpx over aiohttp, whose parser is written in C. Nothing else imports aiohttp, which is an extra."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager, suppress
from typing import Any

import aiohttp
import httpx
from anyio.lowlevel import checkpoint_if_cancelled
from httpx_aiohttp import AiohttpTransport, HttpxAiohttpClient
from typing_extensions import override

LARGEST_BODY = 2**20
"""aiohttp takes no more in one piece without a warning: sending it would hold up the event loop."""
PIECE = 2**16

# The first that fits. httpx-aiohttp takes a connection that breaks for a timeout, and lets bad HTTP through as it is.
_KINDS: tuple[tuple[type[Exception], type[httpx.TransportError]], ...] = (
    (aiohttp.ConnectionTimeoutError, httpx.ConnectTimeout),
    (aiohttp.ServerTimeoutError, httpx.ReadTimeout),
    (aiohttp.ClientConnectorError, httpx.ConnectError),
    (aiohttp.ServerDisconnectedError, httpx.RemoteProtocolError),
    (aiohttp.ClientConnectionError, httpx.ReadError),
    (aiohttp.InvalidURL, httpx.UnsupportedProtocol),
    (aiohttp.NonHttpUrlClientError, httpx.UnsupportedProtocol),
    (aiohttp.ClientError, httpx.RemoteProtocolError),
)


class AiohttpClient(HttpxAiohttpClient):
    """An httpx client over aiohttp, with the errors of httpx: what broke is told from what took too long.

    Requests that go through a proxy go over httpx's own transport.
    """

    @override
    def _init_transport(self, *args: Any, **options: Any) -> httpx.AsyncBaseTransport:
        return _Transport(_Inner(*args, **options))

    @override
    def _init_proxy_transport(self, *args: Any, **options: Any) -> httpx.AsyncBaseTransport:
        # A proxy is what the two differ most in: SOCKS, TLS inside TLS, how it is told who asks.
        return httpx.AsyncClient._init_proxy_transport(self, *args, **options)


class _Connector(aiohttp.TCPConnector):
    """Connections that go quietly when nobody has closed them, as those of httpx do."""

    @override
    def __del__(self, _warnings: Any = None) -> None:
        # Refused where the event loop is at work in another thread.
        with suppress(RuntimeError):
            self._close()


with warnings.catch_warnings():
    # aiohttp advises against subclasses, but there is no other way to a session that goes quietly: what holds it may be
    # collected after it.
    warnings.simplefilter("ignore", DeprecationWarning)

    class _Session(aiohttp.ClientSession):
        @override
        def __del__(self, _warnings: Any = None) -> None:
            """Leave the connections to the connector."""


class _Inner(AiohttpTransport):
    """The transport of httpx-aiohttp, with our connections."""

    @override
    def get_client(self) -> aiohttp.ClientSession:
        expiry = self.limits.keepalive_expiry
        connector = _Connector(limit=0, keepalive_timeout=expiry, ssl=self.ssl_context)
        # The cookies are kept by the client of httpx.
        return _Session(connector=connector, cookie_jar=aiohttp.DummyCookieJar())


class _Transport(httpx.AsyncBaseTransport):
    def __init__(self, inner: _Inner) -> None:
        self._inner = inner

    @override
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if len(content := request.content) > LARGEST_BODY:
            stream = _Pieces(content)
            request = httpx.Request(
                request.method, request.url, headers=request.headers, stream=stream, extensions=request.extensions
            )
        try:
            # aiohttp begins to count when the request is written, and would wait for ever for one who does not read it.
            async with asyncio.timeout(_longest(request)):
                with _errors_of_httpx():
                    response = await self._inner.handle_async_request(request)
        except TimeoutError as error:
            raise httpx.WriteTimeout("the request was not taken") from error
        except ValueError as error:
            raise httpx.LocalProtocolError(str(error)) from error
        response.stream = _Stream(response.stream)
        return response

    @override
    async def aclose(self) -> None:
        await self._inner.aclose()


class _Pieces(httpx.AsyncByteStream):
    """A body that is written piece by piece."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self._content), PIECE):
            yield self._content[start : start + PIECE]


class _Stream(httpx.AsyncByteStream):
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _errors_of_httpx():
            async for data in self._inner:
                # anyio leaves a task alone whose wait is over, and that of a fast server's reader is over each time.
                await checkpoint_if_cancelled()
                yield data

    @override
    async def aclose(self) -> None:
        with _errors_of_httpx():
            await self._inner.aclose()


def _longest(request: httpx.Request) -> float | None:
    """The seconds that a request may take until its answer begins, or None."""
    limits: dict[str, float | None] = request.extensions.get("timeout", {})
    spans = [limits.get(name) for name in ("connect", "write", "read")]
    return None if None in spans else sum(span for span in spans if span is not None)


@contextmanager
def _errors_of_httpx() -> Generator[None]:
    try:
        yield
    except (httpx.TransportError, aiohttp.ClientError) as error:
        cause = error.__cause__ if isinstance(error, httpx.TransportError) else error
        for kind, named in _KINDS:
            if isinstance(cause, kind):
                raise named(str(cause)) from cause
        raise
