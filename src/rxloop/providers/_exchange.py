"""Requests to a model and their answers. Nothing imports this file before a model is called."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol

import anyio
import httpx

from rxloop.providers import _errors
from rxloop.providers._chunks import ChatAccumulator
from rxloop.providers._sse import SSEDecoder
from rxloop.stream.scope import Gate

DRAIN_SECONDS = 1.0
"""How long the end of a connection is waited for, once the answer has come to its end, good or bad."""
MOST_CHUNKS = 1024
ERROR_SECONDS = 2.0
ERROR_BYTES = 65_536


class Answer(Protocol):
    """The answer to a request, its body not yet read."""

    status: int
    headers: Mapping[str, str]
    """By name, whatever its case."""

    async def read(self, batches: Batches) -> None:
        """Give the body to those batches as it comes. Behind the end of the answer it is read for a while only.

        Raises:
            httpx.HTTPError: The connection broke, or took too long.
        """
        ...

    async def collect(self, found: bytearray, most: float = math.inf) -> None:
        """Add the body to `found`, until that has more bytes than `most`.

        Raises:
            httpx.HTTPError: The connection broke, or took too long.
        """
        ...

    async def aclose(self) -> None:
        """Give the connection back; one with an answer that was not read to its end is closed."""
        ...


class Client(Protocol):
    """Sends requests to a model, over whatever transport."""

    @property
    def streams(self) -> int | None:
        """How many streams at a time are good for it; None is any number."""
        ...

    @property
    def is_closed(self) -> bool:
        """Whether no request can be sent any more."""
        ...

    async def post(self, where: _errors.Endpoint, headers: dict[str, str], body: bytes) -> Answer:
        """Send a request; the answer, its body not yet read.

        Args:
            where: Whom the request goes to.
            headers: Those of the request, their names in lower case.
            body: That of the request.

        Raises:
            httpx.HTTPError: There is no answer.
            httpx.InvalidURL: The address is none.
            ProviderConnectionError: The client is closed.
        """
        ...

    async def aclose(self) -> None:
        """Close all connections."""
        ...


async def send(client: Client, where: _errors.Endpoint, headers: dict[str, str], body: bytes) -> Answer:
    """Send one request.

    Args:
        client: What to send it with.
        where: Whom the request goes to.
        headers: Those of the request.
        body: That of the request.

    Raises:
        ProviderError: There is no answer.
    """
    try:
        return await client.post(where, headers, body)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise _errors.from_httpx(error, where) from error


async def receive(
    response: Answer, where: _errors.Endpoint, answer: ChatAccumulator, gate: Gate | None, streamed: bool
) -> None:
    """Read an answer to its end.

    Args:
        response: What came.
        where: Whom the request went to.
        answer: Takes what comes.
        gate: Holds the reading back while it is closed.
        streamed: Whether a stream was asked for.

    Raises:
        ProviderError: It is no answer, or only a part of one.
    """
    try:
        if not 200 <= response.status < 300:
            raise _errors.from_response(response.status, response.headers, await _read_error(response), where)
        if _is_stream(response, streamed):
            await _read_stream(response, answer, where, gate)
        else:
            answer.whole(await _read_whole(response, where))
            answer.complete()
    finally:
        await response.aclose()


def _is_stream(response: Answer, asked: bool) -> bool:
    """What came, whatever was asked for: some endpoints send the other."""
    kind = response.headers.get("content-type", "")
    return "event-stream" in kind or (asked and "json" not in kind and "html" not in kind)


async def _read_stream(response: Answer, answer: ChatAccumulator, where: _errors.Endpoint, gate: Gate | None) -> None:
    batches = Batches(answer, gate)
    try:
        await response.read(batches)
        batches.end()
    except httpx.HTTPError as error:
        batches.hand_on()
        if batches.failure is None and not answer.ended:
            raise _errors.from_httpx(error, where) from error
    if batches.failure is not None:
        raise batches.failure
    if not batches.over:
        answer.complete()


class Batches:
    """Collects what one read of the socket brings, and hands it on together.

    Args:
        answer: Takes it.
        gate: Holds the reading back while it is closed.
    """

    def __init__(self, answer: ChatAccumulator, gate: Gate | None) -> None:
        self.failure: Exception | None = None
        """What was wrong with the answer."""
        self.over = False
        """Whether the answer has come to its end, good or bad; what comes then is left out."""
        self._answer = answer
        self._gate = gate
        self._decoder = SSEDecoder()
        self._held: list[bytes] = []
        self._begun = False
        self._body: bytearray | None = None
        """All that came, where it is no stream of events: a whole answer, or a page, under a wrong name."""

    @property
    def closed_gate(self) -> Gate | None:
        """What to wait for before more is added, if there is something."""
        return self._gate if self._gate is not None and self._gate.closed and not self.over else None

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

    def end(self) -> None:
        """Read what is left: there is no more."""
        self.hand_on()
        if self._body is not None:
            self._answer.whole(bytes(self._body))
        elif not self.over:
            self._answer.last(self._decoder.flush())


async def _read_error(response: Answer) -> bytes:
    """What a vendor says about a failure; not all of it, if it does not come to an end."""
    found = bytearray()
    with anyio.move_on_after(ERROR_SECONDS), suppress(httpx.HTTPError):
        await response.collect(found, ERROR_BYTES)
    return bytes(found)


async def _read_whole(response: Answer, where: _errors.Endpoint) -> bytes:
    found = bytearray()
    try:
        await response.collect(found)
    except httpx.HTTPError as error:
        raise _errors.from_httpx(error, where) from error
    return bytes(found)
