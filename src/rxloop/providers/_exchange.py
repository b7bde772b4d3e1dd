"""One request to a model and its answer, over httpx. Nothing imports this file before a model is called."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING

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


async def exchange(
    client: httpx.AsyncClient,
    where: _errors.Endpoint,
    headers: dict[str, str],
    body: bytes,
    answer: ChatAccumulator,
    gate: Gate | None,
    timeouts: Timeouts,
    streamed: bool,
) -> None:
    """Send one request and read its answer to the end.

    Args:
        client: The client to use.
        where: Whom the request goes to.
        headers: Those of the request.
        body: That of the request.
        answer: Takes what comes.
        gate: Holds the reading back while it is closed.
        timeouts: How long it may take.
        streamed: Whether a stream was asked for.

    Raises:
        ProviderError: There is no answer, or only a part of one.
    """
    idle = timeouts.idle if streamed else timeouts.answer
    limits = httpx.Timeout(connect=timeouts.connect, read=idle, write=idle, pool=timeouts.connect)
    response = await _send(client, where, headers, body, limits)
    try:
        if _is_stream(response, streamed):
            await _read_stream(response, answer, where, gate)
        else:
            answer.whole(await _read_whole(response, where))
            answer.complete()
    finally:
        await response.aclose()


async def _send(
    client: httpx.AsyncClient, where: _errors.Endpoint, headers: dict[str, str], body: bytes, limits: httpx.Timeout
) -> httpx.Response:
    """Send the request; the response of a success, its body not yet read."""
    try:
        request = client.build_request("POST", where.url, content=body, headers=headers, timeout=limits)
        # A client of the user's that follows redirects would take the key to another host, where it is in a header that
        # httpx does not know for one.
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


def _is_stream(response: httpx.Response, asked: bool) -> bool:
    """What came, whatever was asked for: some endpoints send the other."""
    kind = response.headers.get("content-type", "")
    return "event-stream" in kind or (asked and "json" not in kind and "html" not in kind)


def _bytes(response: httpx.Response) -> AsyncIterator[bytes]:
    return response.aiter_bytes() if "content-encoding" in response.headers else response.aiter_raw()


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
                data = await before_waiting(anext(source), batches.hand_on)
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
        if self.over:
            self._reading.deadline = anyio.current_time() + DRAIN_SECONDS

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
