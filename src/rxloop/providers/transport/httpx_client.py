"""httpx client, imported lazily."""

from __future__ import annotations

import asyncio
import math
import types
from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import httpcore
import httpx

from rxloop.errors import ProviderConnectionError
from rxloop.providers.transport.exchange import Batches
from rxloop.providers.transport.httpcore_backend import Backend, PoolTransport
from rxloop.support.decompression import end_pieces, iterate_pieces
from rxloop.support.http_environment import has_proxy

if TYPE_CHECKING:
    from ssl import SSLContext

    from rxloop.providers.bounds import Timeouts
    from rxloop.providers.failures import Endpoint

T = TypeVar("T")

AT_ONCE = 256
"""Number of pieces read before yielding to other tasks. Parsing takes about 20 microseconds per piece."""

STREAMS = 4
"""Streams per client. httpcore scans all connections of a pool for each request, so small pools are faster."""


class _Cookies(httpx.Cookies):
    """Cookies of one endpoint."""

    def extract_cookies(self, response: httpx.Response) -> None:
        """Store cookies from a response."""
        # Skip responses without cookies, because httpx would convert all headers for `http.cookiejar`. This conversion
        # takes as long as sending the request.
        if "set-cookie" in response.headers:
            super().extract_cookies(response)


class _AsyncClient(httpx.AsyncClient):
    """httpx client with optimized cookie handling for a single endpoint."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, timeout=None)
        self._endpoint_cookies = _Cookies()

    @property
    def cookies(self) -> httpx.Cookies:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Cookies from earlier responses."""
        return self._endpoint_cookies


class HttpxClient:
    """Client of one provider over an httpx client.

    Args:
        http: The httpx client.
        timeouts: Time limits of a request.
        streamed: True if requests ask for streams.
        owned: True if rxloop created the httpx client. It never changes then, and common parts of requests are
            cached.
    """

    streams: int | None = STREAMS

    def __init__(self, http: httpx.AsyncClient, timeouts: Timeouts, streamed: bool, owned: bool) -> None:
        idle = timeouts.idle if streamed else timeouts.answer
        self.http = http
        self._limits = httpx.Timeout(connect=timeouts.connect, read=idle, write=idle, pool=timeouts.connect)
        self._owned = owned
        self._made: tuple[str, dict[str, str], httpx.Request] | None = None
        self._url: tuple[str, httpx.URL] | None = None
        """Newest URL and its parsed form, because parsing it takes longer than creating the rest of a request."""

    @classmethod
    def own(cls, timeouts: Timeouts, streamed: bool, certificates: SSLContext, keep_seconds: float) -> HttpxClient:
        """Create a client including its httpx client."""
        # The pool limits the number of streams, so another limit is not needed.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=STREAMS, keepalive_expiry=keep_seconds)
        if has_proxy():
            # httpx ignores the proxy variables if a transport is passed.
            http = _AsyncClient(verify=certificates, limits=limits)
        else:
            pool = httpcore.AsyncConnectionPool(
                certificates,
                max_connections=limits.max_connections,
                max_keepalive_connections=limits.max_keepalive_connections,
                keepalive_expiry=limits.keepalive_expiry,
                network_backend=Backend(),
            )
            http = _AsyncClient(transport=PoolTransport(pool))
        return cls(http, timeouts, streamed, owned=True)

    @property
    def is_closed(self) -> bool:
        """True if no more requests can be sent."""
        return self.http.is_closed

    async def post(self, endpoint: Endpoint, headers: dict[str, str], body: bytes) -> HttpxAnswer:
        """Send a request. The response body is not read yet.

        Raises:
            httpx.HTTPError: The request failed.
            httpx.InvalidURL: The URL is invalid.
            ProviderConnectionError: The client is closed.
        """
        try:
            request = self._request(endpoint.url, headers, body)
            # If a user's client followed redirects, it would send the key to another host in a header that httpx does
            # not strip.
            return HttpxAnswer(await self.http.send(request, stream=True, follow_redirects=False))
        except RuntimeError as error:
            if self.http.is_closed:
                raise ProviderConnectionError(f"the HTTP client for {endpoint} is closed") from error
            raise

    async def aclose(self) -> None:
        """Close all connections."""
        await self.http.aclose()

    def _request(self, url: str, headers: dict[str, str], body: bytes) -> httpx.Request:
        client = self.http
        if not self._owned:
            if self._url is None or self._url[0] != url:
                self._url = url, httpx.URL(url)
            return client.build_request("POST", self._url[1], content=body, headers=headers, timeout=self._limits)
        cached = self._made
        if cached is None or cached[0] != url or (cached[1] is not headers and cached[1] != headers):
            # Parsing the URL and merging headers take most of the time of creating a request.
            first = client.build_request("POST", url, headers=headers, timeout=self._limits)
            if "cookie" not in headers:
                first.headers.pop("cookie", None)
            self._made = cached = (url, headers, first)
        first = cached[2]
        lengthened = first.headers.copy()
        lengthened["content-length"] = str(len(body))
        request = httpx.Request(
            "POST", first.url, headers=lengthened, stream=httpx.ByteStream(body), extensions=first.extensions
        )
        request.read()
        if client.cookies:
            # Gateways use cookies for sticky sessions.
            client.cookies.set_cookie_header(request)
        return request


class HttpxAnswer:
    """Response whose body is read incrementally."""

    def __init__(self, response: httpx.Response) -> None:
        self.status: int = response.status_code
        self.headers: Mapping[str, str] = response.headers
        self._response = response

    async def read(self, batches: Batches) -> None:
        """Add the body to the batches as it arrives. After the end of the answer, reading continues only briefly."""
        source = iterate_pieces(self._response)
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
                    # Checking after the read holds at most one chunk; later data stays in the socket.
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
                await end_pieces(source)
                raise

    async def collect(self, body: bytearray, max_bytes: int) -> None:
        """Append the body to `body`, stopping after `max_bytes` bytes."""
        source = iterate_pieces(self._response)
        pieces = 0
        try:
            async for data in source:
                body += data
                if len(body) > max_bytes:
                    break
                pieces += 1
                if not pieces % AT_ONCE:
                    await asyncio.sleep(0)
        finally:
            await end_pieces(source)

    async def aclose(self) -> None:
        """Release the connection, or close it if the body was not read completely."""
        await self._response.aclose()


@types.coroutine
def before_waiting(awaitable: Awaitable[T], call: Callable[[], None]) -> Generator[Any, Any, T]:
    """Await an object, calling a function first if it is not ready immediately.

    HTTP libraries return chunks from a single socket read one by one without waiting. Readers use this function to
    collect them, and to parse everything together before waiting for more data. This keeps parser code in the CPU
    cache, which halves the cost per token.

    Args:
        awaitable: Object to await.
        call: Called at most once, before waiting. It must not raise, because the awaitable may be cleaning up.

    Returns:
        Result of the awaitable.
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
