"""Sessions of MCP clients over HTTP, counted per principal."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from starlette.requests import Request
from starlette.types import Message, Send

from rxloop.server.core.account import Reservation
from rxloop.server.core.errors import Refused
from rxloop.server.core.gateway import Gateway, Principal

_SESSION_ID = "mcp-session-id"

_Key = tuple[str, str | None]
"""Principal and id of a session. Requests of other principals, which the SDK refuses, must not release the session."""


@dataclass(slots=True)
class _Session:
    reservation: Reservation
    active: int
    """Number of requests in progress."""
    last_used: float


class HttpSessions:
    """Reservations of open sessions.

    The SDK does not report when it closes an idle session. A session is therefore released once it has been idle for
    the same time, which is checked when its principal has reached the limit.
    """

    def __init__(self, gateway: Gateway, timeout: float) -> None:
        """Create the collection without sessions.

        Args:
            gateway: Gateway with the limits.
            timeout: Idle seconds after which the SDK closes a session.
        """
        self._gateway, self._timeout = gateway, timeout
        self._sessions: dict[_Key, _Session] = {}

    @contextmanager
    def serve(self, request: Request, principal: Principal, send: Send) -> Generator[Send]:
        """Track a request, yielding a `send` function that observes its response.

        Raises:
            Refused: If the request would open a session, and the principal has too many.
        """
        key = (principal.id, request.headers.get(_SESSION_ID))
        session = self._sessions.get(key)
        reservation = self._reserve(principal) if key[1] is None and request.method == "POST" else None
        if session is not None:
            session.active += 1

        async def observe(message: Message) -> None:
            nonlocal reservation, session
            if message["type"] == "http.response.start":
                opened = dict(message["headers"]).get(_SESSION_ID.encode())
                if reservation is not None and opened is not None:
                    session = self._sessions[principal.id, opened.decode()] = _Session(reservation, 1, time.monotonic())
                    reservation = None
                if message["status"] == 404 or request.method == "DELETE":
                    self._forget(key)
            await send(message)

        try:
            yield observe
        finally:
            if reservation is not None:
                reservation.release()
            if session is not None:
                session.active -= 1
                session.last_used = time.monotonic()

    def clear(self) -> None:
        """Release all sessions after the SDK has closed them."""
        for key in list(self._sessions):
            self._forget(key)

    def _reserve(self, principal: Principal) -> Reservation:
        try:
            return self._gateway.reserve(principal, "sessions")
        except Refused:
            self._release_idle(principal.id)
            return self._gateway.reserve(principal, "sessions")

    def _release_idle(self, principal_id: str) -> None:
        before = time.monotonic() - self._timeout
        for key, session in list(self._sessions.items()):
            if key[0] == principal_id and not session.active and session.last_used <= before:
                self._forget(key)

    def _forget(self, key: _Key) -> None:
        session = self._sessions.pop(key, None)
        if session is not None:
            session.reservation.release()
