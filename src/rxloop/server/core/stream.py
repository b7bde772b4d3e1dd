"""Events on their way to a client: frames, heartbeats, and the end of a stream."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import anyio
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send
from typing_extensions import override

from rxloop.errors import RxloopError
from rxloop.protocol.events import Event
from rxloop.server.core.gateway import Host, Principal
from rxloop.stream.back_pressure import Silence
from rxloop.stream.readers import HEARTBEAT, frame, framed
from rxloop.stream.stream import Reader, Stream

log = logging.getLogger("rxloop")

_AT_ONCE = 1 << 16
"""Bytes after which no more is put into one piece."""


@dataclass(frozen=True, slots=True)
class Format:
    """How a stream is written."""

    media_type: str
    encode: Callable[[Any], bytes]
    first: bytes
    beat: bytes
    last: bytes
    """What a client reads before the server goes away: it may come back."""
    broken: bytes = b""
    """What a client reads last where the log fails, if it would take an end without a word for the end of the run."""


def _line(event: Event) -> bytes:
    # Out of the frame, which is written once for all readers, and which is one line of JSON behind its head.
    written = frame(event)
    return written[written.index(b"\ndata: ") + 7 : -1]


_GO_ON = b": the server goes away, come back with the last id\n\n"
SSE = Format("text/event-stream", frame, b"retry: 2000\n\n", HEARTBEAT, _GO_ON)
NDJSON = Format("application/x-ndjson", _line, b"", b"\n", b"")


def _whole(event: Event) -> bytes:
    return framed(event, event.to_json())


def _whole_line(event: Event) -> bytes:
    return event.to_json() + b"\n"


INTERNAL = {
    SSE.media_type: replace(SSE, encode=_whole),
    NDJSON.media_type: replace(NDJSON, encode=_whole_line),
}
"""The same with all of each event, for those who may see what is not for clients; written for each of them anew."""


class EventStream(Response):
    """A stream of events as an answer. A client that leaves ends its reading at once, and so does `drain`."""

    def __init__(
        self,
        host: Host,
        principal: Principal,
        events: Stream[Any],
        form: Format,
        *,
        heartbeat: float | None,
        on_disconnect: Callable[[], Coroutine[Any, Any, None]] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Take a stream for a principal.

        Args:
            host: Counts it, and ends it.
            principal: Who reads.
            events: What is read, events or what a view made of them; subscribed to once the answer begins.
            form: How it is written.
            heartbeat: Seconds of silence after which there is a sign of life; None for none.
            on_disconnect: What is done when the client has left before the end.
            headers: More of them.

        Raises:
            Refused: The principal reads too many already.
        """
        host.take_stream(principal)
        always = {"cache-control": "no-store", "x-accel-buffering": "no", "content-type": form.media_type}
        self.status_code, self.background = 200, None
        self.init_headers({**always, **(headers or {})})
        del self.headers["content-length"]
        self._host, self._principal, self._events, self._form = host, principal, events, form
        self._heartbeat, self._on_disconnect = heartbeat, on_disconnect
        self._told = False
        """Whether the client has been told all, but for the end."""

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        left = False
        cancelling = anyio.CancelScope()
        with self._host.streaming(self._principal, cancelling):
            with cancelling:
                async with anyio.create_task_group() as group:

                    def leave() -> None:
                        nonlocal left
                        # A server tells of the end of its answer as if the client had left.
                        left = not self._told
                        group.cancel_scope.cancel()

                    async def watch() -> None:
                        while (await receive())["type"] != "http.disconnect":
                            pass
                        leave()

                    group.start_soon(watch)
                    with _patient(send, self._host.limits.stalled, leave) as sending:
                        await self._write(scope, sending)
                        left = not self._told
                    group.cancel_scope.cancel()
            if left:
                if self._on_disconnect is not None:
                    self._host.later(self._on_disconnect())
            elif cancelling.cancel_called:
                await self._end(send, self._form.last)

    async def _write(self, scope: Scope, send: Send) -> None:
        """Write all of it."""
        form = self._form
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        if scope["method"] == "HEAD":
            await self._finish(send)
            return
        last = b""
        async with aclosing(_pieces(aiter(self._events), self._heartbeat, form)) as pieces:
            try:
                await send({"type": "http.response.body", "body": form.first, "more_body": True})
                async for piece in pieces:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            except OSError:
                return
            except RxloopError as error:
                # It was there when the answer began. What comes of it, the client learns when it comes back.
                log.warning("a stream breaks off: %s", error)
                last = form.broken
        await self._finish(send, last)

    async def _finish(self, send: Send, last: bytes = b"") -> None:
        self._told = True
        await self._end(send, last)

    async def _end(self, send: Send, last: bytes) -> None:
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(self._host.limits.stalled):
                await send({"type": "http.response.body", "body": last, "more_body": False})


async def _pieces(events: Reader[Any], heartbeat: float | None, form: Format) -> AsyncGenerator[bytes]:
    """Write what is there, all of it in one piece: to send one takes longer than to write it."""
    encode = form.encode
    try:
        while True:
            try:
                written = encode(await events.within(heartbeat))
            except StopAsyncIteration:
                return
            except Silence:
                yield form.beat
                continue
            more: list[bytes] = []
            size = len(written)
            for event in events.there():
                more.append(encode(event))
                size += len(more[-1])
                if size > _AT_ONCE:
                    break
            yield b"".join((written, *more)) if more else written
    finally:
        await events.aclose()


@contextmanager
def _patient(send: Send, seconds: float, leave: Callable[[], None]) -> Generator[Send]:
    """Send, and leave once a client has taken nothing for so long.

    One timer looks now and then: nearly every send is over at once, and a timer for each would cost more than it.
    """
    loop = asyncio.get_running_loop()
    since: float | None = None

    async def sending(message: Message) -> None:
        nonlocal since
        since = loop.time()
        await send(message)
        since = None

    def look() -> None:
        nonlocal timer
        until = (loop.time() if since is None else since) + seconds
        if since is not None and until <= loop.time():
            log.info("a client that took nothing for %g s is let go", seconds)
            leave()
        else:
            timer = loop.call_at(until, look)

    timer = loop.call_later(seconds, look)
    try:
        yield sending
    finally:
        timer.cancel()
