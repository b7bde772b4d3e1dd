"""Which session a request belongs to: that of its connection, unless the server has one for all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import anyio
from mcp.server import Server, ServerRequestContext

from rxloop.thinking.sessions import ThinkingSessions
from rxloop.thinking.sessions.ids import new_id

_HEADER = "mcp-session-id"
_SHARED = "http"
"""The owner of thoughts that come by HTTP without a connection."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The owner and the session of a connection."""

    owner: str = field(default_factory=lambda: f"connection:{uuid4().hex}")
    session_id: str | None = field(default_factory=new_id)
    """None means that there is no connection: then a thought that names no session begins one."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock, compare=False)
    """Requests are carried out in the order in which they came, so that a reader sees earlier thoughts."""


class Connections:
    """The connections of a server, each with an owner of its own, so that none finds a session of another one."""

    def __init__(self, sessions: ThinkingSessions, session: str | None) -> None:
        self._sessions = sessions
        self._all = None if session is None else Bound("", session)
        self._own = Bound()
        self._by_header: dict[str, Bound] = {}
        self._alone: set[str] = set()
        """The owners of thoughts that came without a connection."""

    def of(self, ctx: ServerRequestContext[Any, Any]) -> Bound:
        """Return the owner and the session of the connection that a request came by."""
        if self._all is not None:
            return self._all
        if ctx.request is None:
            # Over pipes and in memory the server runs once for each connection, and so does its lifespan.
            return self._own
        name = ctx.request.headers.get(_HEADER)
        if name is None:
            # Known by name where a log-in has said who asks: nobody finds the sessions of somebody else.
            user = getattr(ctx.request.scope.get("user"), "username", None)
            owner = _SHARED if user is None else f"{_SHARED}:{user}"
            self._alone.add(owner)
            return Bound(owner, None)
        if name not in self._by_header:
            self._by_header[name] = Bound()
            # The SDK keeps this stack for such ends, and has no public way to it.
            connection = ctx.session._connection  # pyright: ignore[reportPrivateUsage]
            connection.exit_stack.push_async_callback(self._free, name)
        return self._by_header[name]

    async def aclose(self) -> None:
        """Free the sessions of all connections."""
        if self._all is None:
            bound = (self._own, *self._by_header.values())
            for owner in (*(each.owner for each in bound), *self._alone):
                await self._sessions.clear_all_sessions(owner=owner)

    async def _free(self, name: str) -> None:
        bound = self._by_header.pop(name, None)
        if bound is not None:
            await self._sessions.clear_all_sessions(owner=bound.owner)


@asynccontextmanager
async def connected(sessions: ThinkingSessions, session: str | None, _: Server[Any]) -> AsyncGenerator[Connections]:
    """The connections of a server while it runs."""
    connections = Connections(sessions, session)
    try:
        yield connections
    finally:
        with anyio.CancelScope(shield=True):
            await connections.aclose()
