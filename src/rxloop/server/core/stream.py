"""Delivery of event streams to clients over any transport."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing, asynccontextmanager, closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, Literal, TypeVar

import anyio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect
from typing_extensions import override

from rxloop.errors import RxloopError
from rxloop.protocol.events import Event
from rxloop.server.core.gateway import StreamSlot
from rxloop.stream.back_pressure import ReadTimeout
from rxloop.stream.readers import HEARTBEAT, encode_frame, make_frame
from rxloop.stream.stream import Reader, Stream
from rxloop.support.tasks import wait_all

log = logging.getLogger("rxloop")

T = TypeVar("T")

_MAX_CHUNK = 1 << 16
"""Chunk size in bytes after which no more frames are added."""

StreamEnd = Literal["complete", "disconnected", "stalled", "draining", "broken"]
"""Reason for the end of a stream.

The stream completed, the client disconnected or stalled, the server is draining, or the log failed.
"""
SendBytes = Callable[[bytes], Awaitable[None]]
Disconnected = Callable[[], Awaitable[object]]
"""Callback that waits for a client disconnect."""


# Without slots: Python 3.11 cannot create instances of a generic frozen class with slots by `FrameWriter[T](...)`.
@dataclass(frozen=True)
class FrameWriter(Generic[T]):
    """Encoder for the items of a stream.

    Attributes:
        media_type: `content-type` of an HTTP response.
        encode: Encodes an item.
        opening: Sent before the first item.
        heartbeat: Sent on an idle stream, to keep connections through proxies open.
        closing: Sent after the last item of a completed stream.
        draining: Sent during shutdown, so that the client reconnects.
        broken: Sent if the log fails, for clients that would otherwise mistake the end of the stream for the end of the
            run.
    """

    media_type: str
    encode: Callable[[T], bytes]
    opening: bytes = b""
    heartbeat: bytes = HEARTBEAT
    closing: bytes = b""
    draining: bytes = b""
    broken: bytes = b""


def _encode_line(event: Event) -> bytes:
    # The encoded frame is shared by all readers. Its data is a single line of JSON.
    encoded = encode_frame(event)
    return encoded[encoded.index(b"\ndata: ") + 7 : -1]


_RECONNECT = b": the server is shutting down, reconnect with the last id\n\n"
SSE = FrameWriter[Event]("text/event-stream", encode_frame, b"retry: 2000\n\n", draining=_RECONNECT)
NDJSON = FrameWriter[Event]("application/x-ndjson", _encode_line, heartbeat=b"\n")


def _encode_internal(event: Event) -> bytes:
    return make_frame(event, event.to_json())


def _encode_internal_line(event: Event) -> bytes:
    return event.to_json() + b"\n"


INTERNAL = {
    SSE.media_type: replace(SSE, encode=_encode_internal),
    NDJSON.media_type: replace(NDJSON, encode=_encode_internal_line),
}
"""Writers for principals with the `internal` scope, which include internal fields. Encoded per reader."""


async def deliver(
    slot: StreamSlot,
    events: Stream[T],
    send: SendBytes,
    writer: FrameWriter[T],
    *,
    heartbeat: float | None,
    disconnected: Disconnected,
    max_chunk: int | None = None,
) -> StreamEnd:
    """Send a stream to a client until the stream ends, the client disconnects, or the server drains.

    Args:
        slot: Reserved with `Gateway.reserve_stream` and entered by the caller, who exits it after the closing frame.
        events: Events, or the output of a view. This function subscribes to the stream.
        send: Sends a chunk. It consists of whole frames unless `max_chunk` is set.
        writer: Encodes the items.
        heartbeat: Idle seconds before a heartbeat is sent; None disables heartbeats.
        disconnected: Returns after the client has disconnected.
        max_chunk: Maximum chunk size. Larger frames are split, because servers buffer a whole chunk.

    Returns:
        The reason why the stream ended.
    """
    end: StreamEnd | None = None
    stalled_after = slot.gateway.limits.stalled
    with slot.scope, anyio.CancelScope() as scope:

        def stop(reason: StreamEnd) -> None:
            nonlocal end
            end = reason
            scope.cancel()

        async with _watch(disconnected, partial(stop, "disconnected")):
            with closing(_LimitedSend(send, stalled_after, partial(stop, "stalled"))) as send_in_time:
                send_chunk = send_in_time if max_chunk is None else partial(_send_slices, send_in_time, max_chunk)
                end = await _send_all(events, send_chunk, writer, heartbeat)
    end = end or "draining"
    final_frame = {"complete": writer.closing, "draining": writer.draining, "broken": writer.broken}.get(end)
    if final_frame:
        await _send_last(send, final_frame, stalled_after)
    return end


async def _send_all(events: Stream[T], send: SendBytes, writer: FrameWriter[T], heartbeat: float | None) -> StreamEnd:
    async with aclosing(_read_chunks(aiter(events), heartbeat, writer)) as chunks:
        try:
            if writer.opening:
                await send(writer.opening)
            async for chunk in chunks:
                await send(chunk)
        except (OSError, WebSocketDisconnect):
            return "disconnected"
        except RxloopError as error:
            # The log failed after the response started. The client receives the error when it reconnects.
            log.warning("Stream failed: %s", error)
            return "broken"
    return "complete"


async def _send_slices(send: SendBytes, size: int, chunk: bytes) -> None:
    if len(chunk) <= size:
        await send(chunk)
        return
    view = memoryview(chunk)
    for start in range(0, len(chunk), size):
        await send(bytes(view[start : start + size]))


async def _send_last(send: SendBytes, final_frame: bytes, seconds: float) -> None:
    with suppress(TimeoutError, OSError, WebSocketDisconnect):
        async with asyncio.timeout(seconds):
            await send(final_frame)


async def read_to_end(slot: StreamSlot, events: AsyncIterable[Any], *, disconnected: Disconnected) -> StreamEnd:
    """Read a stream to its end for a response without streaming, unless the client disconnects.

    Args:
        slot: As for `deliver`.
        events: Stream with a fold that collects the response.
        disconnected: Returns after the client has disconnected.

    Returns:
        Reason for the end of the stream.

    Raises:
        RxloopError: If the stream fails.
    """
    end: StreamEnd = "draining"
    with slot.scope, anyio.CancelScope() as scope:

        def stop() -> None:
            nonlocal end
            end = "disconnected"
            scope.cancel()

        async with _watch(disconnected, stop):
            async for _ in events:
                pass
            end = "complete"
    return end


@asynccontextmanager
async def _watch(disconnected: Disconnected, stop: Callable[[], None]) -> AsyncGenerator[None]:
    """Call `stop` if the client disconnects during the block."""

    async def watch() -> None:
        await disconnected()
        stop()

    # A task group would leave a reference cycle for each request, which only the garbage collector removes.
    watcher = asyncio.create_task(watch(), name="rxloop-disconnect")
    try:
        yield
    finally:
        watcher.cancel()
        await wait_all([watcher])


async def wait_disconnected(receive: Receive) -> None:
    """Wait for an HTTP client to disconnect."""
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Streaming HTTP response. It ends when the client disconnects or the server drains."""

    def __init__(
        self,
        slot: StreamSlot,
        events: Stream[T],
        writer: FrameWriter[T],
        *,
        heartbeat: float | None,
        on_disconnect: Callable[[], Coroutine[Any, Any, None]] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Initialize the response. The stream is subscribed to when the response is sent.

        Args:
            slot: Reserved with `Gateway.reserve_stream`.
            events: As for `deliver`, like `writer` and `heartbeat`.
            writer: Encodes the items.
            heartbeat: Idle seconds before a heartbeat is sent.
            on_disconnect: Called if the client disconnects before the end.
            headers: Additional headers.
        """
        always = {"cache-control": "no-store", "x-accel-buffering": "no", "content-type": writer.media_type}
        self.status_code, self.background = 200, None
        self.init_headers({**always, **(headers or {})})
        del self.headers["content-length"]
        self._slot, self._events, self._writer = slot, events, writer
        self._heartbeat, self._on_disconnect = heartbeat, on_disconnect

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_body(chunk: bytes, *, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": chunk, "more_body": more})

        with self._slot as slot:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            end: StreamEnd = "complete"
            if scope["method"] != "HEAD":
                # Some servers only send headers together with the first chunk.
                await send_body(b"")
                end = await deliver(
                    slot,
                    self._events,
                    send_body,
                    self._writer,
                    heartbeat=self._heartbeat,
                    disconnected=partial(wait_disconnected, receive),
                    max_chunk=_MAX_CHUNK,
                )
            if end not in ("disconnected", "stalled"):
                await _send_last(partial(send_body, more=False), b"", slot.gateway.limits.stalled)
            elif self._on_disconnect is not None:
                slot.gateway.spawn(self._on_disconnect())


async def _read_chunks(events: Reader[T], heartbeat: float | None, writer: FrameWriter[T]) -> AsyncGenerator[bytes]:
    """Join all available items into a single chunk, because sending is slower than encoding."""
    encode = writer.encode
    try:
        while True:
            try:
                first = encode(await events.read(heartbeat))
            except StopAsyncIteration:
                return
            except ReadTimeout:
                yield writer.heartbeat
                continue
            frames = [first]
            size = len(first)
            for event in events.drain():
                frames.append(encode(event))
                size += len(frames[-1])
                if size > _MAX_CHUNK:
                    break
            # Joining would copy a large frame.
            large = frames.pop() if len(frames[-1]) > _MAX_CHUNK else None
            if frames:
                yield b"".join(frames)
            if large is not None:
                frames.clear()
                yield large
    finally:
        await events.aclose()


class _LimitedSend:
    """Function `send` with a timeout, calling `stop` if it expires.

    A single timer checks at intervals, because starting a timer per call would cost more than most calls.
    """

    def __init__(self, send: SendBytes, seconds: float, stop: Callable[[], None]) -> None:
        self._send, self._seconds, self._stop = send, seconds, stop
        self._loop = asyncio.get_running_loop()
        self._started: float | None = None
        self._timer = self._loop.call_later(seconds, self._check)

    async def __call__(self, chunk: bytes) -> None:
        self._started = self._loop.time()
        await self._send(chunk)
        self._started = None

    def _check(self) -> None:
        deadline = (self._loop.time() if self._started is None else self._started) + self._seconds
        if self._started is not None and deadline <= self._loop.time():
            log.info("Disconnecting a client that stalled for %g s", self._seconds)
            self._stop()
        else:
            self._timer = self._loop.call_at(deadline, self._check)

    def close(self) -> None:
        """Stop the timer."""
        self._timer.cancel()
