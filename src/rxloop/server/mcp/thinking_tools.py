"""Sequential thinking tools for MCP servers, with a session per connection.

They replace `@modelcontextprotocol/server-sequential-thinking`.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self
from uuid import uuid4

import anyio
import mcp_types as types
from mcp.server import Server, ServerRequestContext
from mcp.shared.exceptions import MCPError
from pydantic import ConfigDict, ValidationError

from rxloop.errors import ConfigurationError, InvalidThought, SessionError, StageRefused, StrategyError, UnknownSession
from rxloop.pipeline.artifacts import ArtifactStore
from rxloop.protocol.messages import Wire
from rxloop.server.mcp import thinking_schema as schema
from rxloop.storage import MemoryArtifacts
from rxloop.strategies.strategic_thinking import StrategicThinking
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
from rxloop.thinking.stages import StrategyDefinition

Context = ServerRequestContext[Any, Any]
Answer = types.CallToolResult

MAX_BODY_BYTES = 16 * 1024 * 1024
"""Maximum request size in bytes, for a million characters escaped in JSON."""

_FIELDS = (*PROPERTIES, *SESSION_PROPERTIES)
_HEADER = "mcp-session-id"
_HTTP_OWNER = "http"
"""Owner of sessions for HTTP requests without a connection."""
_LOGGER = logging.getLogger("rxloop")


class _InvalidArguments(Exception):
    """Raised for invalid tool arguments."""

    def __init__(self, error: str, code: str, fields: dict[str, str] | None = None) -> None:
        super().__init__(error)
        self.code = code
        self.fields = fields or {}


class _SessionInput(Wire):
    """Tool arguments with a session id."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore", strict=True)

    session_id: SessionId = None

    @classmethod
    def parse(cls, arguments: dict[str, Any]) -> Self:
        """Validate tool arguments.

        Raises:
            _InvalidArguments: If the arguments are invalid.
        """
        try:
            return cls.model_validate(arguments)
        except ValidationError as error:
            faults = {".".join(map(str, fault["loc"])): fault["msg"] for fault in error.errors(include_url=False)}
            reasons = "; ".join(f"{field}: {reason}" for field, reason in faults.items())
            raise _InvalidArguments(reasons, "invalid_arguments", faults) from None


class _HistoryInput(_SessionInput):
    """Validated arguments of the history tool."""

    branch_id: Name = None
    first: OptionalCount = None
    limit: OptionalCount = None


def make_connection_sessions(
    artifacts: ArtifactStore | None = None, *, strict: bool = False, ttl: float | None = None
) -> ThinkingSessions:
    """Create sessions with the server's limits of 10,000 thoughts and a million characters per thought.

    Args:
        artifacts: Store for the sessions. Defaults to memory.
        strict: Whether to reject thoughts that revise or branch from a missing thought.
        ttl: Idle seconds after which a session is deleted, even if its connection is open. None disables expiry.
    """
    store = artifacts if artifacts is not None else MemoryArtifacts()
    return ThinkingSessions(store, ttl=ttl, strict=strict, max_thoughts=10_000, max_length=1_000_000)


@dataclass(frozen=True, slots=True)
class _Binding:
    """Owner and session of a connection."""

    owner: str = field(default_factory=lambda: f"connection:{uuid4().hex}")
    session_id: str | None = field(default_factory=new_id)
    """Session id. Without a connection it is None, and unnamed sessions are created on demand."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock, compare=False)
    """Serializes requests from a connection, so reads include earlier thoughts."""


class _Connections:
    """Server connections, isolated by separate owners."""

    def __init__(self, sessions: ThinkingSessions, session: str | None) -> None:
        self._sessions = sessions
        self._shared_binding = None if session is None else _Binding("", session)
        self._own_binding = _Binding()
        self._by_header: dict[str, _Binding] = {}
        self._unconnected_owners: set[str] = set()
        """Session owners without a connection."""

    def find_binding(self, ctx: ServerRequestContext[Any, Any]) -> _Binding:
        """Return the owner and session for a request."""
        if self._shared_binding is not None:
            return self._shared_binding
        if ctx.request is None:
            # Over stdio and in memory, the server has a single connection.
            return self._own_binding
        name = ctx.request.headers.get(_HEADER)
        if name is None:
            # Authenticated users can only access their own sessions.
            user = getattr(ctx.request.scope.get("user"), "username", None)
            owner = _HTTP_OWNER if user is None else f"{_HTTP_OWNER}:{user}"
            self._unconnected_owners.add(owner)
            return _Binding(owner, None)
        if name not in self._by_header:
            self._by_header[name] = _Binding()
            # The SDK closes this stack with the connection, but does not provide public access.
            connection = ctx.session._connection  # pyright: ignore[reportPrivateUsage]
            connection.exit_stack.push_async_callback(self._delete_sessions, name)
        return self._by_header[name]

    async def aclose(self) -> None:
        """Delete all connection sessions."""
        if self._shared_binding is None:
            bindings = (self._own_binding, *self._by_header.values())
            for owner in (*(each.owner for each in bindings), *self._unconnected_owners):
                await self._sessions.clear_all_sessions(owner=owner)

    async def _delete_sessions(self, name: str) -> None:
        binding = self._by_header.pop(name, None)
        if binding is not None:
            await self._sessions.clear_all_sessions(owner=binding.owner)


class ThinkingTools:
    """Sequential thinking tools for `mcp_server(sequential_thinking=...)`.

    Calls that do not name a session use the session of their connection. It is deleted when the connection closes, and
    is not accessible to other connections.
    """

    def __init__(
        self,
        sessions: ThinkingSessions | None = None,
        *,
        session: str | None = None,
        strategies: Sequence[StrategyDefinition | str] = (),
        on_thought: Callable[[ThoughtResult], None] | None = None,
    ) -> None:
        """Initialize the tools.

        Args:
            sessions: Session storage and limits. Defaults to `make_connection_sessions()`, which uses memory.
            session: Name of a session shared by all connections. It is not deleted when they close.
            strategies: Names or definitions of reasoning strategies. They add the tool `strategic_thinking`, which
                guides the client's model through the stages. Its thoughts are stored in the same sessions.
            on_thought: Called with each accepted thought. With stdio, it must not write to stdout, which is reserved
                for the protocol.

        Raises:
            ConfigurationError: If the session name is too long or contains control characters, or a strategy is
                unknown.
        """
        if session is not None and (fault := find_name_problem(session)) is not None:
            raise ConfigurationError(f"session={session[:60]!r} {fault}")
        self._sessions = sessions if sessions is not None else make_connection_sessions()
        self._session_name = session
        self._on_thought = on_thought
        self._tools: dict[str, Callable[[_Binding, dict[str, Any]], Awaitable[dict[str, Any]]]] = {
            schema.THINK: self._think,
            schema.HISTORY: self._read_history,
            schema.CLEAR: self._clear,
        }
        self._strategic = StrategicThinking(*strategies, sessions=self._sessions) if strategies else None
        if self._strategic is not None:
            self._tools[self._strategic.definition.name] = self._think_in_stages

    @property
    def names(self) -> tuple[str, ...]:
        """Tool names."""
        return tuple(self._tools)

    def list_tools(self) -> list[types.Tool]:
        """Return the tool definitions."""
        return schema.list_tools(self._strategic and self._strategic.definition)

    @asynccontextmanager
    async def open_connections(self, server: Server[Any]) -> AsyncGenerator[_Connections]:
        """Manage connection sessions during the lifespan of the server."""
        connections = _Connections(self._sessions, self._session_name)
        try:
            yield connections
        finally:
            with anyio.CancelScope(shield=True):
                await connections.aclose()

    async def call_tool(self, ctx: Context, params: types.CallToolRequestParams) -> Answer:
        """Execute a tool call, returning failures as results for the model."""
        tool = self._tools[params.name]
        try:
            binding = ctx.lifespan_context.find_binding(ctx)
            async with binding.lock:
                answer = await tool(binding, params.arguments or {})
        except SessionError as error:
            fields = error.fields if isinstance(error, InvalidThought) else {}
            return _make_error(str(error), error.code, fields)
        except StrategyError as error:
            allowed = list(error.allowed) if isinstance(error, StageRefused) else []
            return _make_error(str(error), error.code, allowed=allowed)
        except _InvalidArguments as error:
            return _make_error(str(error), error.code, error.fields)
        except Exception as error:
            _LOGGER.exception("Tool %s failed", params.name)
            return _make_error(f"the server failed ({type(error).__name__}); its log says more", "internal")
        return types.CallToolResult(content=[_make_text(answer)], structured_content=answer)

    async def list_resources(
        self, ctx: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        """List the available resources."""
        return types.ListResourcesResult(resources=schema.list_resources())

    async def read_resource(self, ctx: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        """Return the connection's session as JSON or as a flowchart."""
        writers = {schema.SESSION_URI: _to_json_text, schema.GRAPH_URI: schema.to_mermaid}
        uri = str(params.uri)
        if uri not in writers:
            raise MCPError(types.INVALID_PARAMS, f"unknown resource {uri!r}; available: {', '.join(writers)}")
        binding = ctx.lifespan_context.find_binding(ctx)
        async with binding.lock:
            text = writers[uri](await self._get_session(binding, None))
        kind = next(resource.mime_type for resource in schema.list_resources() if resource.uri == uri)
        return types.ReadResourceResult(contents=[types.TextResourceContents(uri=uri, mime_type=kind, text=text)])

    async def _think(self, binding: _Binding, arguments: dict[str, Any]) -> dict[str, Any]:
        # Accept only camelCase names, because the reference server does not support snake_case fields.
        thought = ThoughtInput.of({name: arguments[name] for name in _FIELDS if name in arguments})
        is_own = thought.session_id is None or thought.session_id == binding.session_id
        own_id = binding.session_id if is_own else None
        result = await self._sessions.think(thought, owner=binding.owner, session_id=own_id)
        self._report_thought(result)
        answer = {**result.official(), "sessionId": result.session_id}
        if result.summary is not None:
            answer["summary"] = result.summary
        # The first thought of a connection always starts a new session, so omit this warning.
        warnings = [warning.model_dump() for warning in result.warnings if warning.code != NEW]
        if warnings:
            answer["warnings"] = warnings
        return answer

    async def _think_in_stages(self, binding: _Binding, arguments: dict[str, Any]) -> dict[str, Any]:
        assert self._strategic is not None
        is_own = arguments.get("sessionId") in (None, binding.session_id)
        session_id = binding.session_id if is_own else None
        result = await self._strategic.think(arguments, owner=binding.owner, session_id=session_id)
        self._report_thought(result)
        return json.loads(self._strategic.to_text(result))

    def _report_thought(self, result: ThoughtResult) -> None:
        if self._on_thought is not None:
            try:
                self._on_thought(result)
            except Exception:
                # The thought is stored, so the call succeeded.
                _LOGGER.exception("Logging a thought failed")

    async def _read_history(self, binding: _Binding, arguments: dict[str, Any]) -> dict[str, Any]:
        history = _HistoryInput.parse(arguments)
        session = await self._get_session(binding, history.session_id)
        if history.branch_id is not None and session.branch(history.branch_id) is None:
            known = ", ".join(map(repr, session.branch_names())) or "none"
            raise _InvalidArguments(f"there is no branch {history.branch_id!r}; there are: {known}", "unknown_branch")
        return schema.make_page(
            session,
            first=history.first or 1,
            limit=min(history.limit or schema.PAGE, schema.MAX_PAGE),
            branch=history.branch_id,
        )

    async def _clear(self, binding: _Binding, arguments: dict[str, Any]) -> dict[str, Any]:
        session = await self._get_session(binding, _SessionInput.parse(arguments).session_id)
        if not len(session):
            return {"sessionId": session.session_id or None, "forgotten": 0}
        empty = await self._sessions.clear_session(session.session_id, owner=binding.owner)
        return {"sessionId": empty.session_id, "forgotten": len(session)}

    async def _get_session(self, binding: _Binding, name: str | None) -> Session:
        """Return a named session or the connection's session, which may be empty."""
        session_id = name if name is not None else binding.session_id
        if session_id is None:
            return Session("")
        try:
            return await self._sessions.get_session(session_id, owner=binding.owner)
        except UnknownSession:
            if session_id != binding.session_id:
                raise
            return Session(session_id, binding.owner)


def _to_json_text(session: Session) -> str:
    return _encode_json(schema.to_json(session))


def _encode_json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _make_text(value: dict[str, Any]) -> types.TextContent:
    return types.TextContent(type="text", text=_encode_json(value))


def _make_error(
    error: str, code: str, fields: Mapping[str, str] | None = None, *, allowed: Sequence[str] = ()
) -> Answer:
    """Return an error result for models and programs, with the allowed stages if there are any."""
    failure: dict[str, Any] = {"error": error, "code": code, "fields": dict(fields or {}), "status": "failed"}
    if allowed:
        failure["allowed"] = [*allowed]
    return types.CallToolResult(content=[_make_text(failure)], is_error=True)
