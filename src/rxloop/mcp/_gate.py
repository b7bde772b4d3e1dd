"""The gate of the HTTP server: whom it lets in, how much, and how long it waits."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from rxloop.mcp import Message, Receive, with_body

Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

LONGEST = 16 * 1024 * 1024
"""Bytes of a request: a million characters, as long as JSON can make them."""
AT_ONCE = 4 * LONGEST
"""Bytes of all requests that are there at a time."""
PATIENCE = 30.0
"""Seconds that the head of a request may take, and then its body."""
HALF_OPEN = 100
"""How many heads, and how many bodies, may be incomplete at a time: with one more, the oldest is given up."""

_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[^\s:@/?#\[\]\\]+)(:[0-9]{1,5})?", re.IGNORECASE)
_SCHEMES = ("http://", "https://")


class Refused(Exception):
    """A request that the gate refuses."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Gate:
    """Hands whole requests to an ASGI app: only those that name one of its hosts, and only so many at a time."""

    def __init__(self, app: App, names: Iterable[str], *, at_once: int = AT_ONCE, patience: float = PATIENCE) -> None:
        """Put a gate before an app.

        Args:
            app: The app.
            names: What `Host` and `Origin` may name, with or without a port.
            at_once: Bytes of all requests that are there at a time.
            patience: Seconds that the body of a request may take.
        """
        self._app = app
        self._names = frozenset(name.lower() for name in names)
        self._at_once = at_once
        self._patience = patience
        self._held = 0
        self._awaited: dict[object, asyncio.Timeout] = {}

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Hand a request to the app, or answer why not."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = bytearray()
        try:
            try:
                self._check_names(scope["headers"])
                if scope["method"] == "POST":
                    await self._read(receive, body)
                    receive = with_body(bytes(body), receive)
            except Refused as refused:
                await _answer(send, refused.status, str(refused))
                return
            await self._app(scope, receive, send)
        finally:
            self._held -= len(body)

    def _check_names(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        for header, value in headers:
            text = value.decode("latin-1").lower()
            if header == b"host" and not self._is_ours(text):
                raise Refused(421, "Invalid Host header")
            if header == b"origin":
                scheme = next((scheme for scheme in _SCHEMES if text.startswith(scheme)), None)
                if scheme is None or not self._is_ours(text.removeprefix(scheme)):
                    raise Refused(403, "Invalid Origin header")

    def _is_ours(self, host: str) -> bool:
        found = _HOST.fullmatch(host)
        return found is not None and (found["name"] in self._names or host in self._names)

    async def _read(self, receive: Receive, body: bytearray) -> None:
        this = object()
        try:
            async with asyncio.timeout(self._patience) as limit:
                self._awaited[this] = limit
                if len(self._awaited) > HALF_OPEN:
                    oldest = next(iter(self._awaited))
                    self._awaited.pop(oldest).reschedule(0)
                while await self._read_piece(receive, body):
                    pass
        except TimeoutError:
            raise Refused(408, f"the request took longer than {self._patience:g} s, or others were waiting") from None
        finally:
            self._awaited.pop(this, None)

    async def _read_piece(self, receive: Receive, body: bytearray) -> bool:
        """Whether there is more to come."""
        message = await receive()
        if message["type"] != "http.request":
            raise Refused(400, "the request was not finished")
        piece = message.get("body", b"")
        if len(body) + len(piece) > LONGEST:
            raise Refused(413, f"a request may have {LONGEST} bytes")
        if self._held + len(piece) > self._at_once:
            raise Refused(503, "there are too many requests at a time; try again")
        body += piece
        self._held += len(piece)
        return message.get("more_body", False)


async def _answer(send: Send, status: int, reason: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": reason.encode()})


def impatient(connections: int, patience: float = PATIENCE) -> type[H11Protocol]:
    """Make a protocol for uvicorn with a bound on connections and on the time that the head of a request takes.

    Args:
        connections: How many connections there may be; one more is closed at once.
        patience: Seconds.
    """
    awaited: dict[Impatient, None] = {}

    class Impatient(H11Protocol):
        late: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if len(self.connections) > connections:
                transport.abort()
                return
            self.expect()

        def connection_lost(self, exc: Exception | None) -> None:
            self.expect_nothing()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.expect()

        def expect(self) -> None:
            """Wait for a head where none is there; the timer is that of its first byte."""
            if self.cycle is not None and not self.cycle.response_complete:  # pyright: ignore[reportUnnecessaryComparison]
                self.expect_nothing()
            elif self.late is None:
                self.late = self.loop.call_later(patience, self.transport.abort)
                awaited[self] = None
                if len(awaited) > HALF_OPEN:
                    oldest = next(iter(awaited))
                    oldest.expect_nothing()
                    oldest.transport.abort()

        def expect_nothing(self) -> None:
            if self.late is not None:
                self.late.cancel()
                self.late = None
                awaited.pop(self, None)

    return Impatient
