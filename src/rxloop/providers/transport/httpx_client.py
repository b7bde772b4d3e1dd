"""Requests over httpx; imported at the first model call."""

from __future__ import annotations

import asyncio
import math
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar, cast

import anyio
import httpcore
import httpx

from rxloop.errors import ProviderConnectionError
from rxloop.providers.transport.decompression import Inflater, inflater
from rxloop.providers.transport.exchange import Batches
from rxloop.providers.transport.httpcore_backend import Backend, PoolTransport
from rxloop.support.http_environment import has_proxy

if TYPE_CHECKING:
    from ssl import SSLContext

    from rxloop.providers.bounds import Timeouts
    from rxloop.providers.failures import Endpoint

T = TypeVar("T")

AT_ONCE = 256
"""Pieces that are read without a turn of the event loop: each takes the parser some twenty microseconds."""

STREAMS = 4
"""httpcore looks at every connection of a pool for every request: many small pools cost far less than one large one."""


class HttpxClient:
    """Sends the requests of one provider over a client of httpx.

    Args:
        http: The client.
        timeouts: How long a request may take.
        streamed: Whether streams are asked for.
        lasting: Whether the client is the library's own. Nobody changes that one, so that what all requests have in
            common is made once; a client of the user's makes each request itself.
    """

    streams: int | None = STREAMS

    def __init__(self, http: httpx.AsyncClient, timeouts: Timeouts, streamed: bool, lasting: bool) -> None:
        idle = timeouts.idle if streamed else timeouts.answer
        self.http = http
        self._limits = httpx.Timeout(connect=timeouts.connect, read=idle, write=idle, pool=timeouts.connect)
        self._lasting = lasting
        self._made: tuple[str, dict[str, str], httpx.Request] | None = None

    @classmethod
    def own(cls, timeouts: Timeouts, streamed: bool, certificates: SSLContext, keep_seconds: float) -> HttpxClient:
        """A client that is made here, and closed here."""
        # No more than that many streams are lent at a time, so that a limit would only count them once more.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=STREAMS, keepalive_expiry=keep_seconds)
        if has_proxy():
            # httpx ignores the proxy variables if it is given a transport.
            http = httpx.AsyncClient(verify=certificates, limits=limits, timeout=None)
        else:
            pool = httpcore.AsyncConnectionPool(
                certificates,
                max_connections=limits.max_connections,
                max_keepalive_connections=limits.max_keepalive_connections,
                keepalive_expiry=limits.keepalive_expiry,
                network_backend=Backend(),
            )
            http = httpx.AsyncClient(transport=PoolTransport(pool), timeout=None)
        return cls(http, timeouts, streamed, lasting=True)

    @property
    def is_closed(self) -> bool:
        """Whether no request can be sent any more."""
        return self.http.is_closed

    async def post(self, where: Endpoint, headers: dict[str, str], body: bytes) -> HttpxAnswer:
        """Send a request; the answer, its body not yet read.

        Raises:
            httpx.HTTPError: There is no answer.
            httpx.InvalidURL: The address is none.
            ProviderConnectionError: The client is closed.
        """
        try:
            request = self._request(where.url, headers, body)
            # A client of the user's that follows redirects would take the key to another host, where it is in a header
            # that httpx does not know for one.
            return HttpxAnswer(await self.http.send(request, stream=True, follow_redirects=False))
        except RuntimeError as error:
            if self.http.is_closed:
                raise ProviderConnectionError(f"the HTTP client for {where} is closed") from error
            raise

    async def aclose(self) -> None:
        """Close all connections."""
        await self.http.aclose()

    def _request(self, url: str, headers: dict[str, str], body: bytes) -> httpx.Request:
        client = self.http
        if not self._lasting:
            return client.build_request("POST", url, content=body, headers=headers, timeout=self._limits)
        made = self._made
        if made is None or made[0] != url or (made[1] is not headers and made[1] != headers):
            # Reading an address and merging headers takes longer than all else in making a request.
            first = client.build_request("POST", url, headers=headers, timeout=self._limits)
            if "cookie" not in headers:
                first.headers.pop("cookie", None)
            self._made = made = (url, headers, first)
        first = made[2]
        lengthened = first.headers.copy()
        lengthened["content-length"] = str(len(body))
        request = httpx.Request(
            "POST", first.url, headers=lengthened, stream=httpx.ByteStream(body), extensions=first.extensions
        )
        request.read()
        if client.cookies:
            # Gateways send their clients back to the same machine by one.
            client.cookies.set_cookie_header(request)
        return request


class HttpxAnswer:
    """An answer, as it comes."""

    def __init__(self, response: httpx.Response) -> None:
        self.status: int = response.status_code
        self.headers: Mapping[str, str] = response.headers
        self._response = response

    async def read(self, batches: Batches) -> None:
        """Give the body to those batches as it comes. Behind the end of the answer it is read for a while only."""
        source = self._pieces()
        reading = anyio.CancelScope()
        gate, held = batches.gate, batches.held

        def before_wait() -> None:
            batches.hand_on()
            if batches.over and reading.deadline == math.inf:
                reading.deadline = anyio.current_time() + batches.drain

        with reading:
            try:
                while True:
                    data = await before_waiting(anext(source), before_wait)
                    # Behind the read: this one read waits here, and what comes after it in the socket.
                    if gate.closed and not batches.over:
                        await batches.wait()
                    held.append(data)
                    if len(held) >= AT_ONCE:
                        before_wait()
                        await asyncio.sleep(0)
            except StopAsyncIteration:
                return
            except httpx.HTTPError:
                raise
            except BaseException:
                await _end(source)
                raise

    async def collect(self, found: bytearray, most: int) -> None:
        """Add the body to `found`, until that has more bytes than `most`."""
        source = self._pieces()
        pieces = 0
        try:
            async for data in source:
                found += data
                if len(found) > most:
                    break
                pieces += 1
                if not pieces % AT_ONCE:
                    await asyncio.sleep(0)
        finally:
            await _end(source)

    async def aclose(self) -> None:
        """Give the connection back; one with an answer that was not read to its end is closed."""
        await self._response.aclose()

    def _pieces(self) -> AsyncIterator[bytes]:
        response = self._response
        if response.is_stream_consumed:
            # An event hook of the user's client has read it.
            return response.aiter_bytes()
        # What `aiter_raw` reads from: it would do no more here than hand each piece on.
        source = aiter(cast("httpx.AsyncByteStream", response.stream))
        undo = inflater(response.headers.get("content-encoding"))
        return source if undo is None else _inflated(source, undo)


async def _inflated(source: AsyncIterator[bytes], undo: Inflater) -> AsyncIterator[bytes]:
    try:
        async for data in source:
            undo.feed(data)
            while piece := undo.take():
                yield piece
                # Few bytes may be many pieces.
                await asyncio.sleep(0)
    finally:
        await _end(source)


async def _end(source: AsyncIterator[bytes]) -> None:
    """End the generators of httpx inside this task. Left suspended, each would be closed by the event loop some day."""
    with anyio.move_on_after(0), suppress(httpx.HTTPError):
        async for _ in source:
            pass


@types.coroutine
def before_waiting(awaitable: Awaitable[T], call: Callable[[], None]) -> Generator[Any, Any, T]:
    """Await something, but call a function first if it is not ready at once.

    An HTTP library gives the chunks of one socket read one by one, and does not wait between them. With this the reader
    collects them, and handles them together when the next one is not there yet: the code that it runs for each event
    stays in the cache of the processor, which halves what a token costs.

    Args:
        awaitable: What to await.
        call: Called at most once, before the wait. It must not raise: the awaitable may be in the middle of a clean-up,
            which nothing but its own cancellation may disturb.

    Returns:
        What the awaitable gives.
    """
    steps: Any = awaitable.__await__()
    try:
        signal = next(steps)
        call()
        while True:
            try:
                reply = yield signal
            except GeneratorExit:
                steps.close()
                raise
            except BaseException as error:
                signal = steps.throw(error)
            else:
                signal = steps.send(reply)
    except StopIteration as end:
        return end.value
