"""Requests to a model and their answers, over httpx. Nothing imports this file before a model is called."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING, cast

import anyio
import httpx

from rxloop.errors import ProviderConnectionError
from rxloop.providers import _errors
from rxloop.providers._chunks import ChatAccumulator
from rxloop.providers._ready import before_waiting
from rxloop.providers._sse import SSEDecoder
from rxloop.stream.scope import Gate

if TYPE_CHECKING:
    from rxloop.providers.openai_chat import Timeouts

DRAIN_SECONDS = 1.0
"""How long the end of a connection is waited for, once the answer has come to its end, good or bad."""
MOST_CHUNKS = 1024
ERROR_SECONDS = 2.0
ERROR_BYTES = 65_536


class Exchange:
    """Sends the requests of one provider, and reads their answers to the end.

    Args:
        timeouts: How long a request may take.
        streamed: Whether streams are asked for.
        lasting: Whether the clients are the library's own. Nobody changes those, so that what all requests have in
            common is made once; a client of the user's makes each request itself.
    """

    def __init__(self, timeouts: Timeouts, streamed: bool, lasting: bool) -> None:
        idle = timeouts.idle if streamed else timeouts.answer
        self._limits = httpx.Timeout(connect=timeouts.connect, read=idle, write=idle, pool=timeouts.connect)
        self._streamed = streamed
        self._lasting = lasting
        self._made: tuple[str, dict[str, str], httpx.Request] | None = None

    async def run(
        self,
        client: httpx.AsyncClient,
        where: _errors.Endpoint,
        headers: dict[str, str],
        body: bytes,
        answer: ChatAccumulator,
        gate: Gate | None,
    ) -> None:
        """Send one request and read its answer.

        Args:
            client: The client to use.
            where: Whom the request goes to.
            headers: Those of the request.
            body: That of the request.
            answer: Takes what comes.
            gate: Holds the reading back while it is closed.

        Raises:
            ProviderError: There is no answer, or only a part of one.
        """
        response = await self._send(client, where, headers, body)
        try:
            if _is_stream(response, self._streamed):
                await _read_stream(response, answer, where, gate)
            else:
                answer.whole(await _read_whole(response, where))
                answer.complete()
        finally:
            await response.aclose()

    async def _send(
        self, client: httpx.AsyncClient, where: _errors.Endpoint, headers: dict[str, str], body: bytes
    ) -> httpx.Response:
        """Send the request; the response of a success, its body not yet read."""
        try:
            request = self._request(client, where.url, headers, body)
            # A client of the user's that follows redirects would take the key to another host, where it is in a header
            # that httpx does not know for one.
            response = await client.send(request, stream=True, follow_redirects=False)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise _errors.from_httpx(error, where) from error
        except RuntimeError as error:
            if client.is_closed:
                raise ProviderConnectionError(f"the HTTP client for {where} is closed") from error
            raise
        if response.is_success:
            return response
        try:
            found = await _read_error(response)
        finally:
            await response.aclose()
        raise _errors.from_response(response.status_code, response.headers, found, where)

    def _request(self, client: httpx.AsyncClient, url: str, headers: dict[str, str], body: bytes) -> httpx.Request:
        if not self._lasting:
            return client.build_request("POST", url, content=body, headers=headers, timeout=self._limits)
        made = self._made
        if made is None or made[0] != url or made[1] != headers:
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


def _is_stream(response: httpx.Response, asked: bool) -> bool:
    """What came, whatever was asked for: some endpoints send the other."""
    kind = response.headers.get("content-type", "")
    return "event-stream" in kind or (asked and "json" not in kind and "html" not in kind)


def _bytes(response: httpx.Response) -> AsyncIterator[bytes]:
    if "content-encoding" in response.headers or response.is_stream_consumed:
        # Consumed, where an event hook of the user's client has read it.
        return response.aiter_bytes()
    # What `aiter_raw` reads from: it would do no more here than hand each piece on.
    return aiter(cast("httpx.AsyncByteStream", response.stream))


async def _read_stream(
    response: httpx.Response, answer: ChatAccumulator, where: _errors.Endpoint, gate: Gate | None
) -> None:
    source = _bytes(response)
    reading = anyio.CancelScope()
    batches = _Batches(answer, reading)
    # What comes behind the answer is read as well, for a while, so that the connection can be used again.
    with reading:
        try:
            while True:
                data = await before_waiting(anext(source), batches.before_waiting)
                # Behind the read: this one read waits here, and what comes after it in the socket.
                if gate is not None and gate.closed and not batches.over:
                    await gate.wait()
                batches.add(data)
        except StopAsyncIteration:
            batches.end()
        except httpx.HTTPError as error:
            batches.hand_on()
            if batches.failure is None and not answer.ended:
                raise _errors.from_httpx(error, where) from error
        except BaseException:
            await _end(source)
            raise
    if batches.failure is not None:
        raise batches.failure
    if not batches.over:
        answer.complete()


class _Batches:
    """Collects what one read of the socket brings, and hands it on together."""

    def __init__(self, answer: ChatAccumulator, reading: anyio.CancelScope) -> None:
        self.failure: Exception | None = None
        """What was wrong with the answer."""
        self.over = False
        """Whether the answer has come to its end, good or bad; what comes then is left out."""
        self._answer = answer
        self._reading = reading
        self._decoder = SSEDecoder()
        self._held: list[bytes] = []
        self._begun = False
        self._body: bytearray | None = None
        """All that came, where it is no stream of events: a whole answer, or a page, under a wrong name."""

    def add(self, data: bytes) -> None:
        """Take a chunk."""
        if self.over:
            return
        self._held.append(data)
        if len(self._held) == MOST_CHUNKS:
            self.hand_on()

    def before_waiting(self) -> None:
        """Read what has been collected; if it was all, what is left in the socket is not waited for much longer."""
        self.hand_on()
        if self.over and self._reading.deadline == math.inf:
            self._reading.deadline = anyio.current_time() + DRAIN_SECONDS

    def hand_on(self) -> None:
        """Read what has been collected; a failure is kept until the reading has ended."""
        if not self._held:
            return
        data = self._held[0] if len(self._held) == 1 else b"".join(self._held)
        self._held.clear()
        if not self._begun and (start := data.lstrip()[:1]):
            self._begun = True
            self._body = bytearray() if start in b"{[<" else None
        if self._body is not None:
            self._body += data
            return
        try:
            self._answer.feed(self._decoder.feed(data))
            if self._answer.done:
                self._answer.complete()
        except Exception as error:
            self.failure = error
        self.over = self._answer.done or self.failure is not None

    def end(self) -> None:
        """Read what is left: there is no more."""
        self.hand_on()
        if self._body is not None:
            self._answer.whole(bytes(self._body))
        elif not self.over:
            self._answer.last(self._decoder.flush())


async def _end(source: AsyncIterator[bytes]) -> None:
    """End the generators of httpx inside this task. Left suspended, each would be closed by the event loop some day."""
    with anyio.move_on_after(0), suppress(httpx.HTTPError):
        async for _ in source:
            pass


async def _read_error(response: httpx.Response) -> bytes:
    """What a vendor says about a failure; not all of it, if it does not come to an end."""
    found = bytearray()
    source = _bytes(response)
    with anyio.move_on_after(ERROR_SECONDS), suppress(httpx.HTTPError):
        async for data in source:
            found += data
            if len(found) > ERROR_BYTES:
                break
    await _end(source)
    return bytes(found)


async def _read_whole(response: httpx.Response, where: _errors.Endpoint) -> bytes:
    try:
        return await response.aread()
    except httpx.HTTPError as error:
        raise _errors.from_httpx(error, where) from error
