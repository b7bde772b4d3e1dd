"""HTTP exchange with batched response parsing, imported lazily."""

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
from rxloop.providers.transport.stream_decoders import SSEDecoder
from rxloop.stream.back_pressure import Gate

DRAIN_SECONDS = 1.0
"""Seconds to wait for the body to end after the answer, which allows reusing the connection."""

ERROR_SECONDS = 2.0

ERROR_BYTES = 65_536

AWS_STREAM = "vnd.amazon.eventstream"
"""Content type of AWS event streams."""


class Answer(Protocol):
    """Response with an unread body."""

    status: int
    headers: Mapping[str, str]
    """Response headers; names are case-insensitive."""

    async def read(self, batches: Batches) -> None:
        """Add the body to the batches as it arrives. After the end of the answer, reading continues only briefly.

        Raises:
            httpx.HTTPError: The connection failed or timed out.
        """
        ...

    async def collect(self, body: bytearray, max_bytes: int) -> None:
        """Append the body to `body`, stopping after `max_bytes` bytes.

        Raises:
            httpx.HTTPError: The connection failed or timed out.
        """
        ...

    async def aclose(self) -> None:
        """Release the connection, or close it if the body was not read completely."""
        ...


class Decoder(Protocol):
    """Decoder that splits a byte stream into event payloads."""

    def feed(self, data: bytes) -> list[bytes]:
        """Return completed payloads in order.

        Raises:
            Unreadable: The data is too long or invalid.
        """
        ...

    def flush(self) -> list[bytes]:
        """Return remaining payloads. Raises the same errors as `feed`."""
        ...


class Client(Protocol):
    """Transport-independent HTTP client."""

    @property
    def streams(self) -> int | None:
        """Recommended number of concurrent streams; None means unlimited."""
        ...

    @property
    def is_closed(self) -> bool:
        """True if no more requests can be sent."""
        ...

    async def post(self, endpoint: failures.Endpoint, headers: dict[str, str], body: bytes) -> Answer:
        """Send a request. The response body is not read yet.

        Args:
            endpoint: Target endpoint.
            headers: Request headers with lower-case names.
            body: Request body.

        Raises:
            httpx.HTTPError: The request failed.
            httpx.InvalidURL: The URL is invalid.
            ProviderConnectionError: The client is closed.
        """
        ...

    async def aclose(self) -> None:
        """Close all connections."""
        ...


async def send(client: Client, endpoint: failures.Endpoint, headers: dict[str, str], body: bytes) -> Answer:
    """Send a request.

    Args:
        client: HTTP client.
        endpoint: Target endpoint.
        headers: Request headers.
        body: Request body.

    Raises:
        ProviderError: The request failed.
    """
    try:
        return await client.post(endpoint, headers, body)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise failures.error_from_httpx(error, endpoint) from error


async def receive(
    response: Answer,
    endpoint: failures.Endpoint,
    reader: ResponseReader,
    streamed: bool,
    gate: Gate,
    watch: Watch,
    bounds: Bounds,
) -> None:
    """Read a response completely.

    Args:
        response: Unread response.
        endpoint: Target endpoint.
        reader: Response parser.
        streamed: Whether a stream was requested.
        gate: Pauses reading while closed.
        watch: Notified on each event.
        bounds: Response limits.

    Raises:
        ProviderError: The response is an error, invalid, or incomplete.
        OutOfBounds: The response is too large.
    """
    try:
        if not 200 <= response.status < 300:
            watch.stop()
            raise reader.make_error(response.status, response.headers, await _read_error(response))
        kind = response.headers.get("content-type", "")
        if _is_stream(kind, streamed, reader.accepts_arrays):
            await _read_stream(response, Batches(reader, gate, watch, bounds, _decoder(kind, bounds)), endpoint)
        else:
            reader.read_body(await _read_whole(response, endpoint, bounds))
            reader.complete()
    except ProviderError as error:
        name_request(error, response.headers)
        raise
    finally:
        await response.aclose()


def _is_stream(kind: str, requested: bool, arrays: bool) -> bool:
    """Return True if the response is a stream, by its content type. Some endpoints send another kind than requested."""
    if "event-stream" in kind or AWS_STREAM in kind:
        return True
    return requested and (arrays or "json" not in kind) and "html" not in kind


def _decoder(kind: str, bounds: Bounds) -> Decoder:
    """Create the decoder for a stream with this content type."""
    if AWS_STREAM not in kind:
        return SSEDecoder(bounds.document)
    # Imported here because most streams are server-sent events.
    from rxloop.providers.transport.stream_decoders import AWSDecoder

    return AWSDecoder(bounds)


async def _read_stream(response: Answer, batches: Batches, endpoint: failures.Endpoint) -> None:
    try:
        await response.read(batches)
        batches.end()
    except httpx.HTTPError as error:
        batches.hand_on()
        if batches.failure is None and not batches.is_complete:
            raise failures.error_from_httpx(error, endpoint) from error
    if batches.failure is not None:
        raise batches.failure
    batches.complete()


class Batches:
    """Parses everything received in a single socket read as one batch.

    Args:
        reader: Response parser.
        gate: Pauses reading while closed.
        watch: Notified on each batch with events.
        bounds: Response limits.
        decoder: Stream decoder, ignored if the data turns out to be a JSON document or array.
    """

    __slots__ = (
        "_body",
        "_bounds",
        "_bytes",
        "_decoder",
        "_reader",
        "_started",
        "_time",
        "_watch",
        "failure",
        "gate",
        "held",
        "over",
    )

    def __init__(self, reader: ResponseReader, gate: Gate, watch: Watch, bounds: Bounds, decoder: Decoder) -> None:
        self.failure: Exception | None = None
        """Exception raised while parsing."""
        self.over = False
        """True if the answer has ended or failed. Later data is ignored."""
        self.gate = gate
        """Call `wait` before adding data while the gate is closed and the answer is not over."""
        self.held: list[bytes] = []
        """Received chunks. A transport appends chunks and then calls `hand_on`."""
        self._reader = reader
        self._watch = watch
        self._time = asyncio.get_running_loop().time
        self._bounds = bounds
        self._decoder = decoder
        self._bytes = 0
        self._started = False
        self._body: bytearray | None = None
        """Received data if it is not an event stream but a JSON document or an HTML page with a wrong content type."""

    @property
    def drain(self) -> float:
        """Seconds to continue reading after the end of the answer, so that the connection can be reused."""
        return 0 if isinstance(self.failure, Unreadable) else DRAIN_SECONDS

    @property
    def is_complete(self) -> bool:
        """True if a complete answer was read."""
        return self._reader.is_complete

    async def wait(self) -> None:
        """Wait until reading can continue."""
        self._watch.hold()
        await self.gate.wait()
        self._watch.go_on()

    def hand_on(self) -> None:
        """Parse the collected data. A failure is stored in `failure` and raised at the end."""
        held = self.held
        if not held:
            return
        data = held[0] if len(held) == 1 else b"".join(held)
        held.clear()
        if self.over:
            return
        if not self._started and (start := data.lstrip()[:1]):
            self._begin(start)
        try:
            self._read(data)
        except Exception as error:
            self.failure = error
        self.over = self._reader.done or self.failure is not None
        if self.over:
            self._watch.stop()

    def _begin(self, start: bytes) -> None:
        """Detect the format from the first byte."""
        self._started = True
        if start == b"[" and self._reader.accepts_arrays:
            from rxloop.providers.transport.stream_decoders import ArrayDecoder

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
        """Parse the remaining data at the end."""
        self.hand_on()
        if self.failure is not None:
            return
        if self._body is not None:
            self._reader.read_body(bytes(self._body))
        elif not self.over:
            self._reader.feed_last(self._decoder.flush())

    def complete(self) -> None:
        """Complete the answer if it is not complete."""
        if not self.over:
            self._reader.complete()


async def _read_error(response: Answer) -> bytes:
    """Read an error body, limiting time and size."""
    body = bytearray()
    with anyio.move_on_after(ERROR_SECONDS), suppress(httpx.HTTPError):
        await response.collect(body, ERROR_BYTES)
    return bytes(body)


async def _read_whole(response: Answer, endpoint: failures.Endpoint, bounds: Bounds) -> bytes:
    body = bytearray()
    try:
        await response.collect(body, bounds.document)
    except httpx.HTTPError as error:
        raise failures.error_from_httpx(error, endpoint) from error
    if len(body) > bounds.document:
        raise OutOfBounds("document", bounds.document)
    return bytes(body)
