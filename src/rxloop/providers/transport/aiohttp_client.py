"""aiohttp client. No other module should import aiohttp, since it is an optional dependency.

aiohttp is faster because its parser is written in C. Exceptions are converted to httpx types to share error handling.
"""

from __future__ import annotations

import asyncio
import math
import warnings
from collections.abc import AsyncIterator, Mapping
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

import aiohttp
import httpx
from aiohttp.http_exceptions import BadHttpMessage, ContentEncodingError, HttpProcessingError
from multidict import CIMultiDict
from typing_extensions import override
from yarl import URL

from rxloop.errors import ProviderConnectionError
from rxloop.providers.bounds import OutOfBounds
from rxloop.providers.transport.exchange import Batches
from rxloop.support.decompression import Inflater, inflater

if TYPE_CHECKING:
    from ssl import SSLContext

    from rxloop.providers.bounds import Bounds, Timeouts
    from rxloop.providers.failures import Endpoint

LARGEST_BODY = 2**20
"""Size in bytes above which aiohttp warns, because sending the body in one piece would block the event loop."""

PIECE = 2**16
"""Bytes processed before yielding to other tasks."""

HEAD_PIECE = 2**12
"""Bytes read at once before the response head. A larger read may contain thousands of interim responses."""

MOST_HEADERS = 256

BUFFERED = 60_000
"""Body size that fits into asyncio's socket buffer."""

# The first matching entry is used.
_KINDS: tuple[tuple[type[Exception], type[httpx.TransportError]], ...] = (
    (aiohttp.ConnectionTimeoutError, httpx.ConnectTimeout),
    (aiohttp.ServerTimeoutError, httpx.ReadTimeout),
    (aiohttp.ClientConnectorError, httpx.ConnectError),
    (aiohttp.ServerDisconnectedError, httpx.RemoteProtocolError),
    (aiohttp.ClientConnectionError, httpx.ReadError),
    (aiohttp.InvalidURL, httpx.UnsupportedProtocol),
    (aiohttp.NonHttpUrlClientError, httpx.UnsupportedProtocol),
)


class _Connector(aiohttp.TCPConnector):
    """Connector that limits reads, and closes forgotten connections without a warning, like httpx."""

    @override
    async def connect(self, *args: Any, **kwargs: Any) -> Any:
        connection = await super().connect(*args, **kwargs)
        _limit_reads(connection.transport, HEAD_PIECE)
        return connection

    @override
    async def _get(self, key: Any, traces: Any) -> Any:
        # Unsolicited data on an idle connection would be mistaken for the next response:
        # https://github.com/aio-libs/aiohttp/issues/13656
        for protocol, _ in self._conns.get(key, ()):
            if protocol.should_close:
                protocol.close()
        return await super()._get(key, traces)

    @override
    def __del__(self, _warnings: Any = None) -> None:
        # Closing fails if the event loop runs in another thread.
        with suppress(RuntimeError):
            self._close()


with warnings.catch_warnings():
    # Subclassing is discouraged, but needed to suppress warnings when collecting unclosed sessions. See
    # https://github.com/aio-libs/aiohttp/issues/1175
    warnings.simplefilter("ignore", DeprecationWarning)

    class _Session(aiohttp.ClientSession):
        @override
        def __del__(self, _warnings: Any = None) -> None:
            """Leave open connections to the connector."""


class AiohttpClient:
    """Client using an aiohttp session. It must only be used in the event loop that created it.

    Args:
        timeouts: Time limits.
        streamed: Whether requests ask for streams.
        certificates: TLS context.
        keep_seconds: Keep-alive time for idle connections.
        bounds: Response limits.
    """

    streams: int | None = None
    """No limit, because aiohttp finds an idle connection in constant time."""

    def __init__(
        self, timeouts: Timeouts, streamed: bool, certificates: SSLContext, keep_seconds: float, bounds: Bounds
    ) -> None:
        idle = self._idle = timeouts.idle if streamed else timeouts.answer
        connect = timeouts.connect
        # aiohttp has no write timeout, and only starts its read timeout after sending.
        self._longest = None if connect is None or idle is None else connect + 2 * idle
        self.session = _Session(
            connector=_Connector(limit=0, keepalive_timeout=keep_seconds, ssl=certificates),
            timeout=aiohttp.ClientTimeout(total=None, connect=connect, sock_connect=connect, sock_read=idle),
            cookie_jar=aiohttp.DummyCookieJar(),
            max_line_size=bounds.head,
            max_field_size=bounds.head,
            max_headers=MOST_HEADERS,
            # We decompress in bounded pieces ourselves, because a few bytes may expand to many.
            auto_decompress=False,
        )
        self._bounds = bounds
        # Gateways use cookies for sticky sessions, also on IP addresses. A cookie jar of the session would merge its
        # cookies with a cookie header of the user.
        self._cookies = aiohttp.CookieJar(unsafe=True)
        self._made: tuple[str, dict[str, str], URL, CIMultiDict[str]] | None = None

    @property
    def is_closed(self) -> bool:
        """True if no more requests can be sent."""
        return self.session.closed

    async def post(self, endpoint: Endpoint, headers: dict[str, str], body: bytes) -> AiohttpAnswer:
        """Send a request. The response body is not read yet.

        Raises:
            httpx.HTTPError: The request failed.
            ProviderConnectionError: The client is closed.
            OutOfBounds: The response head is too long.
        """
        if self.session.closed:
            raise ProviderConnectionError(f"the HTTP client for {endpoint} is closed")
        cached = self._made
        if cached is None or cached[0] != endpoint.url or cached[1] != headers:
            try:
                self._made = cached = (endpoint.url, headers, URL(endpoint.url), CIMultiDict(headers))
            except ValueError as error:
                raise httpx.UnsupportedProtocol(str(error)) from error
        _, _, url, sent = cached
        cookies = self._cookies.filter_cookies(url) if len(self._cookies) and "cookie" not in headers else None
        data: bytes | AsyncIterator[bytes] = body
        if len(body) > LARGEST_BODY:
            data = _pieces(body)
            sent = sent.copy()
            sent["content-length"] = str(len(body))
        try:
            # The rest of a small request stays in the socket's write buffer without blocking anyone.
            async with asyncio.timeout(self._longest) if len(body) > BUFFERED else nullcontext():
                response = await self.session.post(url, headers=sent, cookies=cookies, data=data, allow_redirects=False)
        except aiohttp.ClientError as error:
            if _is_too_long(error):
                raise OutOfBounds("head", self._bounds.head) from error
            raise _error_of_httpx(error) from error
        except TimeoutError as error:
            raise httpx.WriteTimeout("the server did not read the request") from error
        except ValueError as error:
            raise httpx.LocalProtocolError(str(error)) from error
        connection = response.connection
        if connection is not None:
            _limit_reads(connection.transport, PIECE)
        if "set-cookie" in response.headers:
            self._cookies.update_cookies(response.cookies, url)
        return AiohttpAnswer(response, self._idle)

    async def aclose(self) -> None:
        """Close all connections."""
        await self.session.close()


class AiohttpAnswer:
    """Response whose body is read incrementally."""

    def __init__(self, response: aiohttp.ClientResponse, idle: float | None) -> None:
        self.status: int = response.status
        self.headers: Mapping[str, str] = response.headers
        self._response = response
        # The read timeout of aiohttp is not reported if the parser or the session has already dropped the connection.
        # This limit ends the wait in that case.
        self._longest = None if idle is None else 2 * idle
        self._undo: Inflater | None = None
        self._rest = b""
        """Received data not yet returned."""

    async def read(self, batches: Batches) -> None:
        """Add the body to the batches as it arrives. After the end of the answer, reading continues only briefly."""
        self._undo = inflater(self.headers.get("content-encoding"))
        content = self._response.content
        ended = False
        while not ended:
            try:
                async with asyncio.timeout(self._longest) as limit:
                    await self._read_on(batches, limit)
                    ended = True
            except TimeoutError as error:
                # If the event loop was blocked for that long, data may have arrived in the meantime.
                data = self._buffered()
                if not data and not content.is_eof():
                    raise httpx.ReadTimeout("no more data was received") from error
                batches.held.append(data)
        if not content.at_eof() and batches.drain:
            with suppress(TimeoutError, httpx.HTTPError):
                async with asyncio.timeout(batches.drain):
                    while data := await self._read_raw():
                        if len(data) == PIECE:
                            await asyncio.sleep(0)

    async def _read_on(self, batches: Batches, limit: asyncio.Timeout) -> None:
        """Read to the end of the answer. Each batch extends the time limit."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        gate = batches.gate
        while not batches.over:
            data = await self._read_piece()
            if not data:
                return
            if gate.closed:
                limit.reschedule(None)
                await batches.wait()
                started = -math.inf
            full = len(data) == PIECE
            batches.held.append(data)
            # Free memory before waiting.
            del data
            # aiohttp returned all available data, so the batch is complete.
            batches.hand_on()
            if full:
                await asyncio.sleep(0)
            now = loop.time()
            if self._longest is not None and now - started > self._longest / 4:
                limit.reschedule(now + self._longest)
                started = now

    async def collect(self, body: bytearray, max_bytes: int) -> None:
        """Append the body to `body`, stopping after `max_bytes` bytes."""
        self._undo = inflater(self.headers.get("content-encoding"))
        try:
            while len(body) <= max_bytes:
                async with asyncio.timeout(self._longest):
                    data = await self._read_piece()
                if not data:
                    return
                body += data
                if len(data) == PIECE:
                    await asyncio.sleep(0)
        except TimeoutError as error:
            raise httpx.ReadTimeout("no more data was received") from error

    async def aclose(self) -> None:
        """Release the connection, or close it if the body was not read completely."""
        if self._response.content.at_eof():
            self._response.release()
        else:
            self._response.close()

    async def _read_piece(self) -> bytes:
        """Return the next decompressed piece, empty at the end."""
        undo = self._undo
        if undo is None:
            return await self._read_raw()
        # Small inputs can be very large when decompressed.
        await asyncio.sleep(0)
        while not (piece := undo.take()):
            data = await self._read_raw()
            if not data:
                return b""
            undo.feed(data)
        return piece

    async def _read_raw(self) -> bytes:
        """Return the next raw piece, empty at the end."""
        data = self._rest
        if not data:
            try:
                data = await self._response.content.readany()
            except aiohttp.ClientError as error:
                raise _error_of_httpx(error) from error
        if len(data) > PIECE or self._rest:
            data, self._rest = data[:PIECE], data[PIECE:]
        return data

    def _buffered(self) -> bytes:
        """Return already received data."""
        data, self._rest = self._rest, b""
        try:
            data = data or self._response.content.read_nowait(PIECE)
        except aiohttp.ClientError as error:
            raise _error_of_httpx(error) from error
        if self._undo is None or not data:
            return data
        self._undo.feed(data)
        return self._undo.take()


def _limit_reads(transport: Any, max_bytes: int) -> None:
    """Limit the size of a read, because the parser handles all data of one read at once."""
    # Some event loops have no such limit.
    if hasattr(transport, "max_size"):
        transport.max_size = max_bytes


def _is_too_long(error: aiohttp.ClientError) -> bool:
    """Return True if the head of the response is too long. Only the message of the exception shows that."""
    cause = error.__cause__
    words = ("Got more than", "Too many headers")
    return isinstance(cause, HttpProcessingError) and cause.message.startswith(words)


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), PIECE):
        yield body[start : start + PIECE]


def _error_of_httpx(error: aiohttp.ClientError) -> httpx.RequestError:
    cause = error.__cause__
    if isinstance(cause, BadHttpMessage):
        kind = httpx.DecodingError if isinstance(cause, ContentEncodingError) else httpx.RemoteProtocolError
        return kind(cause.message)
    kind = next((named for kind, named in _KINDS if isinstance(error, kind)), httpx.RemoteProtocolError)
    return kind(str(error))
