"""Requests over aiohttp, whose parser is written in C. Nothing else imports aiohttp, which is an extra.

The exceptions are those of httpx, so that a failure has the same meaning over both.
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
from rxloop.providers.transport.decompression import Inflater, inflater
from rxloop.providers.transport.exchange import Batches

if TYPE_CHECKING:
    from ssl import SSLContext

    from rxloop.providers.bounds import Bounds, Timeouts
    from rxloop.providers.failures import Endpoint

LARGEST_BODY = 2**20
"""aiohttp takes no more in one piece without a warning: sending it would hold up the event loop."""

PIECE = 2**16
"""Bytes that are written, or read, without a turn of the event loop."""

MOST_HEADERS = 256

BUFFERED = 60_000
"""asyncio holds somewhat more for a socket before it makes the writer wait."""

# The first that fits.
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
    """Connections that go quietly when nobody has closed them, as those of httpx do."""

    @override
    async def _get(self, key: Any, traces: Any) -> Any:
        # What a server says on an idle connection, such as that it is about to close it, would be taken for the answer
        # to the next request: https://github.com/aio-libs/aiohttp/issues/13656
        for protocol, _ in self._conns.get(key, ()):
            if protocol.should_close:
                protocol.close()
        return await super()._get(key, traces)

    @override
    def __del__(self, _warnings: Any = None) -> None:
        # Refused where the event loop is at work in another thread.
        with suppress(RuntimeError):
            self._close()


with warnings.catch_warnings():
    # aiohttp advises against subclasses, but a session has no other way to go quietly: what holds it may be collected
    # after it. See https://github.com/aio-libs/aiohttp/issues/1175
    warnings.simplefilter("ignore", DeprecationWarning)

    class _Session(aiohttp.ClientSession):
        @override
        def __del__(self, _warnings: Any = None) -> None:
            """Leave the connections to the connector."""


class AiohttpClient:
    """Sends the requests of one provider over a session of aiohttp, in the event loop that it is made in.

    Args:
        timeouts: How long a request may take.
        streamed: Whether streams are asked for.
        certificates: What vouches for servers.
        keep_seconds: How long a connection is kept that nobody uses.
        bounds: What an answer may be.
    """

    streams: int | None = None
    """aiohttp finds an idle connection at once, however many there are."""

    def __init__(
        self, timeouts: Timeouts, streamed: bool, certificates: SSLContext, keep_seconds: float, bounds: Bounds
    ) -> None:
        idle = self._idle = timeouts.idle if streamed else timeouts.answer
        connect = timeouts.connect
        # aiohttp begins to count when the request is written, and would wait for ever for one who does not read it.
        self._longest = None if connect is None or idle is None else connect + 2 * idle
        self.session = _Session(
            connector=_Connector(limit=0, keepalive_timeout=keep_seconds, ssl=certificates),
            timeout=aiohttp.ClientTimeout(total=None, connect=connect, sock_connect=connect, sock_read=idle),
            cookie_jar=aiohttp.DummyCookieJar(),
            max_line_size=bounds.head,
            max_field_size=bounds.head,
            max_headers=MOST_HEADERS,
            # Done here, in pieces: few bytes may become very many.
            auto_decompress=False,
        )
        self._bounds = bounds
        # Gateways send their clients back to the same machine by a cookie, those without a name too. That of the
        # session would put them beside one that the user sends.
        self._cookies = aiohttp.CookieJar(unsafe=True)
        self._made: tuple[str, dict[str, str], URL, CIMultiDict[str]] | None = None

    @property
    def is_closed(self) -> bool:
        """Whether no request can be sent any more."""
        return self.session.closed

    async def post(self, where: Endpoint, headers: dict[str, str], body: bytes) -> AiohttpAnswer:
        """Send a request and return its answer, whose body is not yet read.

        Raises:
            httpx.HTTPError: No answer came.
            ProviderConnectionError: The client is closed.
            OutOfBounds: The head of the answer is too long.
        """
        if self.session.closed:
            raise ProviderConnectionError(f"the HTTP client for {where} is closed")
        made = self._made
        if made is None or made[0] != where.url or made[1] != headers:
            try:
                self._made = made = (where.url, headers, URL(where.url), CIMultiDict(headers))
            except ValueError as error:
                raise httpx.UnsupportedProtocol(str(error)) from error
        _, _, url, sent = made
        cookies = self._cookies.filter_cookies(url) if len(self._cookies) and "cookie" not in headers else None
        data: bytes | AsyncIterator[bytes] = body
        if len(body) > LARGEST_BODY:
            data = _pieces(body)
            sent = sent.copy()
            sent["content-length"] = str(len(body))
        try:
            # What the system does not take at once of a small request waits in a buffer, and nobody for it.
            async with asyncio.timeout(self._longest) if len(body) > BUFFERED else nullcontext():
                response = await self.session.post(url, headers=sent, cookies=cookies, data=data, allow_redirects=False)
        except aiohttp.ClientError as error:
            if _is_too_long(error):
                raise OutOfBounds("head", self._bounds.head) from error
            raise _error_of_httpx(error) from error
        except TimeoutError as error:
            raise httpx.WriteTimeout("the request was not taken") from error
        except ValueError as error:
            raise httpx.LocalProtocolError(str(error)) from error
        connection = response.connection
        if connection is not None:
            transport: Any = connection.transport
            # The parser handles all that one read returns without a turn of the event loop. Not every event loop lets
            # its readers limit that.
            with suppress(AttributeError):
                transport.max_size = PIECE
        if "set-cookie" in response.headers:
            self._cookies.update_cookies(response.cookies, url)
        return AiohttpAnswer(response, self._idle)

    async def aclose(self) -> None:
        """Close all connections."""
        await self.session.close()


class AiohttpAnswer:
    """An answer, as it comes."""

    def __init__(self, response: aiohttp.ClientResponse, idle: float | None) -> None:
        self.status: int = response.status
        self.headers: Mapping[str, str] = response.headers
        self._response = response
        # aiohttp has a limit of its own for each read, but no reader hears of it where the parser, or the session, has
        # given the connection up: this one ends such a wait.
        self._longest = None if idle is None else 2 * idle
        self._undo: Inflater | None = None
        self._rest = b""
        """What came together with the last piece."""

    async def read(self, batches: Batches) -> None:
        """Give the body to the batches as it comes. After the end of the answer, read on for a moment only."""
        self._undo = inflater(self.headers.get("content-encoding"))
        content = self._response.content
        ended = False
        while not ended:
            try:
                async with asyncio.timeout(self._longest) as limit:
                    await self._read_on(batches, limit)
                    ended = True
            except TimeoutError as error:
                # Where somebody held the event loop for that long, what has come meanwhile lies here.
                data = self._buffered()
                if not data and not content.is_eof():
                    raise httpx.ReadTimeout("nothing more came") from error
                batches.held.append(data)
        if not content.at_eof() and batches.drain:
            with suppress(TimeoutError, httpx.HTTPError):
                async with asyncio.timeout(batches.drain):
                    while data := await self._read_raw():
                        if len(data) == PIECE:
                            await asyncio.sleep(0)

    async def _read_on(self, batches: Batches, limit: asyncio.Timeout) -> None:
        """Read to the end of the answer, and put the limit off while more comes."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        gate = batches.gate
        while not batches.over:
            data = await self._read_piece()
            if not data:
                return
            if gate.closed:
                limit.reschedule(None)
                await batches.wait()
                begun = -math.inf
            full = len(data) == PIECE
            batches.held.append(data)
            # All that has come would else be held until more comes.
            del data
            # Nothing more is there now: aiohttp gives all of it at once.
            batches.hand_on()
            if full:
                await asyncio.sleep(0)
            now = loop.time()
            if self._longest is not None and now - begun > self._longest / 4:
                limit.reschedule(now + self._longest)
                begun = now

    async def collect(self, found: bytearray, most: int) -> None:
        """Add the body to `found`, until that has more bytes than `most`."""
        self._undo = inflater(self.headers.get("content-encoding"))
        try:
            while len(found) <= most:
                async with asyncio.timeout(self._longest):
                    data = await self._read_piece()
                if not data:
                    return
                found += data
                if len(data) == PIECE:
                    await asyncio.sleep(0)
        except TimeoutError as error:
            raise httpx.ReadTimeout("nothing more came") from error

    async def aclose(self) -> None:
        """Give the connection back, or close it if the answer was not read to its end."""
        if self._response.content.at_eof():
            self._response.release()
        else:
            self._response.close()

    async def _read_piece(self) -> bytes:
        """The next piece; nothing at the end."""
        undo = self._undo
        if undo is None:
            return await self._read_raw()
        # Few bytes may be many pieces.
        await asyncio.sleep(0)
        while not (piece := undo.take()):
            data = await self._read_raw()
            if not data:
                return b""
            undo.feed(data)
        return piece

    async def _read_raw(self) -> bytes:
        """The next piece as it was sent; nothing at the end."""
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
        """What has come already."""
        data, self._rest = self._rest, b""
        try:
            data = data or self._response.content.read_nowait(PIECE)
        except aiohttp.ClientError as error:
            raise _error_of_httpx(error) from error
        if self._undo is None or not data:
            return data
        self._undo.feed(data)
        return self._undo.take()


def _is_too_long(error: aiohttp.ClientError) -> bool:
    """Whether the parser has given up since the head has no end; its words are all that tells."""
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
