"""One request and its answer, read in batches; imported at the first model call."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol

import anyio
import httpx

from rxloop.errors import ProviderError
from rxloop.providers import failures
from rxloop.providers.bounds import Bounds, OutOfBounds, Unreadable
from rxloop.providers.codecs import ResponseReader
from rxloop.providers.error_responses import name_request
from rxloop.providers.transport.progress_watch import Watch
from rxloop.providers.transport.sse import SSEDecoder
from rxloop.stream.back_pressure import Gate

DRAIN_SECONDS = 1.0
"""How long to wait for the end of a connection after the end of its answer, good or bad."""

ERROR_SECONDS = 2.0

ERROR_BYTES = 65_536

AWS_STREAM = "vnd.amazon.eventstream"
"""What AWS's own kind of stream is called in the content type."""


class Answer(Protocol):
    """The answer to a request, its body not yet read."""

    status: int
    headers: Mapping[str, str]
    """By name, whatever its case."""

    async def read(self, batches: Batches) -> None:
        """Give the body to the batches as it comes. After the end of the answer, read on for a moment only.

        Raises:
            httpx.HTTPError: The connection broke, or took too long.
        """
        ...

    async def collect(self, found: bytearray, most: int) -> None:
        """Add the body to `found`, until that has more bytes than `most`.

        Raises:
            httpx.HTTPError: The connection broke, or took too long.
        """
        ...

    async def aclose(self) -> None:
        """Give the connection back, or close it if the answer was not read to its end."""
        ...


class Decoder(Protocol):
    """Cuts the bytes of a stream into the payloads of its events."""

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads that these bytes complete, in order.

        Raises:
            Unreadable: What came is too long, or no such stream.
        """
        ...

    def flush(self) -> list[bytes]:
        """What may be left at the end of the bytes; raises as `feed` does."""
        ...


class Client(Protocol):
    """Sends requests to a model, over one of the transports."""

    @property
    def streams(self) -> int | None:
        """How many streams it should carry at a time; None is any number."""
        ...

    @property
    def is_closed(self) -> bool:
        """Whether no request can be sent any more."""
        ...

    async def post(self, where: failures.Endpoint, headers: dict[str, str], body: bytes) -> Answer:
        """Send a request and return its answer, whose body is not yet read.

        Args:
            where: The endpoint.
            headers: The headers of the request, with names in lower case.
            body: The body of the request.

        Raises:
            httpx.HTTPError: No answer came.
            httpx.InvalidURL: The address is not one.
            ProviderConnectionError: The client is closed.
        """
        ...

    async def aclose(self) -> None:
        """Close all connections."""
        ...


async def send(client: Client, where: failures.Endpoint, headers: dict[str, str], body: bytes) -> Answer:
    """Send one request.

    Args:
        client: What to send it with.
        where: The endpoint.
        headers: The headers of the request.
        body: The body of the request.

    Raises:
        ProviderError: No answer came.
    """
    try:
        return await client.post(where, headers, body)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise failures.error_from_httpx(error, where) from error


async def receive(
    response: Answer,
    where: failures.Endpoint,
    reader: ResponseReader,
    streamed: bool,
    gate: Gate,
    watch: Watch,
    bounds: Bounds,
) -> None:
    """Read an answer to its end.

    Args:
        response: The answer, its body not yet read.
        where: The endpoint.
        reader: Reads what comes.
        streamed: Whether a stream was asked for.
        gate: Holds reading back while it is closed.
        watch: Is notified of each event.
        bounds: How large the answer may be.

    Raises:
        ProviderError: What came is not an answer, or only a part of one.
        OutOfBounds: The answer is too large.
    """
    try:
        if not 200 <= response.status < 300:
            watch.stop()
            raise reader.refusal(response.status, response.headers, await _read_error(response))
        kind = response.headers.get("content-type", "")
        if _is_stream(kind, streamed, reader.arrays):
            await _read_stream(response, Batches(reader, gate, watch, bounds, _decoder(kind, bounds)), where)
        else:
            reader.whole(await _read_whole(response, where, bounds))
            reader.complete()
    except ProviderError as error:
        name_request(error, response.headers)
        raise
    finally:
        await response.aclose()


def _is_stream(kind: str, asked: bool, arrays: bool) -> bool:
    """Whether a stream came, by its content type: some endpoints send the other kind than was asked for."""
    if "event-stream" in kind or AWS_STREAM in kind:
        return True
    return asked and (arrays or "json" not in kind) and "html" not in kind


def _decoder(kind: str, bounds: Bounds) -> Decoder:
    """What cuts a stream of that content type."""
    if AWS_STREAM not in kind:
        return SSEDecoder(bounds.document)
    # Imported where it is needed: streams of other kinds than server-sent events are rare.
    from rxloop.providers.transport.other_streams import AWSDecoder

    return AWSDecoder(bounds)


async def _read_stream(response: Answer, batches: Batches, where: failures.Endpoint) -> None:
    try:
        await response.read(batches)
        batches.end()
    except httpx.HTTPError as error:
        batches.hand_on()
        if batches.failure is None and not batches.ended:
            raise failures.error_from_httpx(error, where) from error
    if batches.failure is not None:
        raise batches.failure
    batches.complete()


class Batches:
    """Collects what one read of the socket brings, and hands it on at once.

    Args:
        reader: Reads it.
        gate: Holds reading back while it is closed.
        watch: Is notified of each batch that has an event.
        bounds: How large the answer may be.
        decoder: Cuts what comes into payloads, unless it turns out to be a whole answer or an array.
    """

    __slots__ = (
        "_begun",
        "_body",
        "_bounds",
        "_bytes",
        "_decoder",
        "_reader",
        "_time",
        "_watch",
        "failure",
        "gate",
        "held",
        "over",
    )

    def __init__(self, reader: ResponseReader, gate: Gate, watch: Watch, bounds: Bounds, decoder: Decoder) -> None:
        self.failure: Exception | None = None
        """What was wrong with the answer."""
        self.over = False
        """Whether the answer has ended, well or badly; what comes after that is ignored."""
        self.gate = gate
        """While it is closed and the answer is not over, call `wait` before adding more."""
        self.held: list[bytes] = []
        """The chunks that have come: a transport adds them here and then calls `hand_on`."""
        self._reader = reader
        self._watch = watch
        self._time = asyncio.get_running_loop().time
        self._bounds = bounds
        self._decoder = decoder
        self._bytes = 0
        self._begun = False
        self._body: bytearray | None = None
        """All that came, if it is not a stream of events: a whole answer, or a page, with a wrong content type."""

    @property
    def drain(self) -> float:
        """How many seconds to read on after the end of the answer, so that the connection can be used again."""
        return 0 if isinstance(self.failure, Unreadable) else DRAIN_SECONDS

    @property
    def ended(self) -> bool:
        """Whether what has been read is a whole answer."""
        return self._reader.ended

    async def wait(self) -> None:
        """Wait until more may be added."""
        self._watch.hold()
        await self.gate.wait()
        self._watch.go_on()

    def hand_on(self) -> None:
        """Read what has been collected; a failure is kept until the reading has ended."""
        held = self.held
        if not held:
            return
        data = held[0] if len(held) == 1 else b"".join(held)
        held.clear()
        if self.over:
            return
        if not self._begun and (start := data.lstrip()[:1]):
            self._begin(start)
        try:
            self._read(data)
        except Exception as error:
            self.failure = error
        self.over = self._reader.done or self.failure is not None
        if self.over:
            self._watch.stop()

    def _begin(self, start: bytes) -> None:
        """See by the first byte of the answer what comes."""
        self._begun = True
        if start == b"[" and self._reader.arrays:
            from rxloop.providers.transport.other_streams import ArrayDecoder

            self._decoder = ArrayDecoder(self._bounds)
        elif start in b"{[<":
            self._body = bytearray()

    def _read(self, data: bytes) -> None:
        self._bytes += len(data)
        bounds = self._bounds
        if self._body is not None:
            self._body += data
            if len(self._body) > bounds.document:
                raise OutOfBounds("document", bounds.document)
            return
        payloads = self._decoder.feed(data)
        if payloads:
            self._watch.last = self._time()
            self._reader.feed(payloads)
            if self._reader.done:
                self._reader.complete()
        if self._bytes > bounds.answer and not self._reader.done:
            raise OutOfBounds("answer", bounds.answer)

    def end(self) -> None:
        """Read what is left at the end of the bytes."""
        self.hand_on()
        if self.failure is not None:
            return
        if self._body is not None:
            self._reader.whole(bytes(self._body))
        elif not self.over:
            self._reader.last(self._decoder.flush())

    def complete(self) -> None:
        """Complete the answer, unless that is done."""
        if not self.over:
            self._reader.complete()


async def _read_error(response: Answer) -> bytes:
    """What a vendor says about a failure, up to a bound in time and size."""
    found = bytearray()
    with anyio.move_on_after(ERROR_SECONDS), suppress(httpx.HTTPError):
        await response.collect(found, ERROR_BYTES)
    return bytes(found)


async def _read_whole(response: Answer, where: failures.Endpoint, bounds: Bounds) -> bytes:
    found = bytearray()
    try:
        await response.collect(found, bounds.document)
    except httpx.HTTPError as error:
        raise failures.error_from_httpx(error, where) from error
    if len(found) > bounds.document:
        raise OutOfBounds("document", bounds.document)
    return bytes(found)
