"""The sequential thinking tools of an MCP server, with one session for each connection.

They replace `@modelcontextprotocol/server-sequential-thinking`.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self
from uuid import uuid4

import anyio
import mcp_types as types
from mcp.server import Server, ServerRequestContext
from mcp.shared.exceptions import MCPError
from pydantic import ConfigDict, ValidationError

from rxloop.errors import ConfigurationError, InvalidThought, SessionError, UnknownSession
from rxloop.pipeline.artifacts import ArtifactStore
from rxloop.protocol.messages import Wire
from rxloop.server.mcp import thinking_schema as schema
from rxloop.storage import MemoryArtifacts
from rxloop.thinking.sessions import NEW, ThinkingSessions
from rxloop.thinking.sessions.result import ThoughtResult
from rxloop.thinking.sessions.session import Session
from rxloop.thinking.sessions.session_artifacts import new_id
from rxloop.thinking.sessions.thought import (
    PROPERTIES,
    SESSION_PROPERTIES,
    Name,
    OptionalCount,
    SessionId,
    ThoughtInput,
    find_name_problem,
)

Context = ServerRequestContext[Any, Any]
Answer = types.CallToolResult

MAX_BODY = 16 * 1024 * 1024
"""Bytes of a request with the longest thought: a million characters, each escaped in JSON."""

_FIELDS = (*PROPERTIES, *SESSION_PROPERTIES)
_HEADER = "mcp-session-id"
_SHARED = "http"
"""Owner of thoughts that arrive over HTTP without a connection."""
_LOGGER = logging.getLogger("rxloop")


class _Refused(Exception):
    """A call with arguments that the tool does not accept."""

    def __init__(self, error: str, code: str, fields: dict[str, str] | None = None) -> None:
        super().__init__(error)
        self.code = code
        self.fields = fields or {}


class _SessionInput(Wire):
    """Arguments that name a session."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore", strict=True)

    session_id: SessionId = None

    @classmethod
    def of(cls, given: dict[str, Any]) -> Self:
        """Validate the arguments of a call.

        Raises:
            _Refused: The arguments are invalid.
        """
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            wrong = {".".join(map(str, fault["loc"])): fault["msg"] for fault in error.errors(include_url=False)}
            reasons = "; ".join(f"{field}: {reason}" for field, reason in wrong.items())
            raise _Refused(reasons, "invalid_arguments", wrong) from None


class _HistoryInput(_SessionInput):
    """Arguments that name thoughts of a session."""

    branch_id: Name = None
    first: OptionalCount = None
    limit: OptionalCount = None


def make_connection_sessions(
    artifacts: ArtifactStore | None = None, *, strict: bool = False, ttl: float | None = None
) -> ThinkingSessions:
    """Create sessions with the limits of the server: 10,000 thoughts with a million characters each.

    Args:
        artifacts: Store for the sessions. By default they are kept in memory.
        strict: Refuse a thought that revises or branches from a missing thought.
        ttl: Seconds without a thought after which a session is freed, even if its connection is open. None means no
            limit.
    """
    store = artifacts if artifacts is not None else MemoryArtifacts()
    return ThinkingSessions(store, ttl=ttl, strict=strict, max_thoughts=10_000, max_length=1_000_000)


@dataclass(frozen=True, slots=True)
class _Bound:
    """Owner and session of a connection."""

    owner: str = field(default_factory=lambda: f"connection:{uuid4().hex}")
    session_id: str | None = field(default_factory=new_id)
    """None without a connection. A thought that names no session then creates one."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock, compare=False)
    """Requests of a connection are handled in their order, so that a reader sees earlier thoughts."""


class _Connections:
    """Connections of a server. Each has its own owner, so no connection finds the session of another one."""

    def __init__(self, sessions: ThinkingSessions, session: str | None) -> None:
        self._sessions = sessions
        self._all = None if session is None else _Bound("", session)
        self._own = _Bound()
        self._by_header: dict[str, _Bound] = {}
        self._alone: set[str] = set()
        """Owners of thoughts that arrived without a connection."""

    def of(self, ctx: ServerRequestContext[Any, Any]) -> _Bound:
        """Return the owner and the session of the connection of a request."""
        if self._all is not None:
            return self._all
        if ctx.request is None:
            # Over pipes and in memory, the lifespan of the server is that of the connection.
            return self._own
        name = ctx.request.headers.get(_HEADER)
        if name is None:
            # Authenticated users only find their own sessions.
            user = getattr(ctx.request.scope.get("user"), "username", None)
            owner = _SHARED if user is None else f"{_SHARED}:{user}"
            self._alone.add(owner)
            return _Bound(owner, None)
        if name not in self._by_header:
            self._by_header[name] = _Bound()
            # The SDK closes this stack with the connection, but has no public access to it.
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


class ThinkingTools:
    """The sequential thinking tools, for `mcp_server(sequential_thinking=...)`.

    Each connection has its own session, which is used by calls that name no session. It is freed when the connection
    closes, and other connections cannot find it.
    """

    def __init__(
        self,
        sessions: ThinkingSessions | None = None,
        *,
        session: str | None = None,
        on_thought: Callable[[ThoughtResult], None] | None = None,
    ) -> None:
        """Create the tools.

        Args:
            sessions: The sessions and their limits. By default in memory, see `make_connection_sessions`.
            session: Name of one session that all connections share. It is kept when they close.
            on_thought: Called with each accepted thought. Over stdio it must not write to stdout, which belongs to the
                protocol.

        Raises:
            ConfigurationError: The name is too long, or contains control characters.
        """
        if session is not None and (fault := find_name_problem(session)) is not None:
            raise ConfigurationError(f"session={session[:60]!r} {fault}")
        self._sessions = sessions if sessions is not None else make_connection_sessions()
        self._session_name = session
        self._on_thought = on_thought
        self._tools: dict[str, Callable[[_Bound, dict[str, Any]], Awaitable[dict[str, Any]]]] = {
            schema.THINK: self._think,
            schema.HISTORY: self._history,
            schema.CLEAR: self._clear,
        }

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tools."""
        return tuple(self._tools)

    def list_tools(self) -> list[types.Tool]:
        """Return the tools, as clients see them."""
        return schema.list_tools()

    @asynccontextmanager
    async def open_connections(self, server: Server[Any]) -> AsyncGenerator[_Connections]:
        """Keep the sessions of the connections while the server runs; the lifespan of the server."""
        connections = _Connections(self._sessions, self._session_name)
        try:
            yield connections
        finally:
            with anyio.CancelScope(shield=True):
                await connections.aclose()

    async def call_tool(self, ctx: Context, params: types.CallToolRequestParams) -> Answer:
        """Call a tool. A failure becomes a result that the model can read."""
        tool = self._tools[params.name]
        try:
            bound = ctx.lifespan_context.of(ctx)
            async with bound.turn:
                answer = await tool(bound, params.arguments or {})
        except SessionError as error:
            fields = error.fields if isinstance(error, InvalidThought) else {}
            return _failed(str(error), error.code, fields)
        except _Refused as error:
            return _failed(str(error), error.code, error.fields)
        except Exception as error:
            _LOGGER.exception("Tool %s failed", params.name)
            return _failed(f"the server failed ({type(error).__name__}); its log says more", "internal")
        return types.CallToolResult(content=[_text(answer)], structured_content=answer)

    async def list_resources(
        self, ctx: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        """List the resources."""
        return types.ListResourcesResult(resources=schema.list_resources())

    async def read_resource(self, ctx: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        """Return the session of the connection, as JSON or as a flowchart."""
        writers = {schema.SESSION_URI: _to_json_text, schema.GRAPH_URI: schema.to_mermaid}
        uri = str(params.uri)
        if uri not in writers:
            raise MCPError(types.INVALID_PARAMS, f"there is no resource {uri!r}; there are {', '.join(writers)}")
        bound = ctx.lifespan_context.of(ctx)
        async with bound.turn:
            text = writers[uri](await self._session(bound, None))
        kind = next(resource.mime_type for resource in schema.list_resources() if resource.uri == uri)
        return types.ReadResourceResult(contents=[types.TextResourceContents(uri=uri, mime_type=kind, text=text)])

    async def _think(self, bound: _Bound, arguments: dict[str, Any]) -> dict[str, Any]:
        # Only names of the wire format. The reference server does not know fields in snake_case.
        given = ThoughtInput.of({name: arguments[name] for name in _FIELDS if name in arguments})
        own = given.session_id is None or given.session_id == bound.session_id
        result = await self._sessions.think(given, owner=bound.owner, session_id=bound.session_id if own else None)
        self._report_thought(result)
        answer = {**result.official(), "sessionId": result.session_id}
        if result.summary is not None:
            answer["summary"] = result.summary
        # The session of a connection is always new at its first thought.
        warnings = [warning.model_dump() for warning in result.warnings if warning.code != NEW]
        if warnings:
            answer["warnings"] = warnings
        return answer

    def _report_thought(self, result: ThoughtResult) -> None:
        if self._on_thought is not None:
            try:
                self._on_thought(result)
            except Exception:
                # The thought is stored, so the call did not fail.
                _LOGGER.exception("Logging a thought failed")

    async def _history(self, bound: _Bound, arguments: dict[str, Any]) -> dict[str, Any]:
        given = _HistoryInput.of(arguments)
        session = await self._session(bound, given.session_id)
        if given.branch_id is not None and session.branch(given.branch_id) is None:
            there = ", ".join(map(repr, session.branch_names())) or "none"
            raise _Refused(f"there is no branch {given.branch_id!r}; there are: {there}", "unknown_branch")
        return schema.make_page(
            session,
            first=given.first or 1,
            limit=min(given.limit or schema.PAGE, schema.MAX_PAGE),
            branch=given.branch_id,
        )

    async def _clear(self, bound: _Bound, arguments: dict[str, Any]) -> dict[str, Any]:
        session = await self._session(bound, _SessionInput.of(arguments).session_id)
        if not len(session):
            return {"sessionId": session.session_id or None, "forgotten": 0}
        empty = await self._sessions.clear_session(session.session_id, owner=bound.owner)
        return {"sessionId": empty.session_id, "forgotten": len(session)}

    async def _session(self, bound: _Bound, wanted: str | None) -> Session:
        """Return the named session, or the session of the connection, which is empty before its first thought."""
        session_id = wanted if wanted is not None else bound.session_id
        if session_id is None:
            return Session("")
        try:
            return await self._sessions.get_session(session_id, owner=bound.owner)
        except UnknownSession:
            if session_id != bound.session_id:
                raise
            return Session(session_id, bound.owner)


def _to_json_text(session: Session) -> str:
    return _json(schema.to_json(session))


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _text(value: dict[str, Any]) -> types.TextContent:
    return types.TextContent(type="text", text=_json(value))


def _failed(error: str, code: str, fields: Mapping[str, str] | None = None) -> Answer:
    """Return an error that models and programs can read."""
    failure = {"error": error, "code": code, "fields": dict(fields or {}), "status": "failed"}
    return types.CallToolResult(content=[_text(failure)], is_error=True)
