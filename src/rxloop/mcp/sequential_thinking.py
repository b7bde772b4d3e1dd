"""Sequential thinking as an MCP server, a replacement of `@modelcontextprotocol/server-sequential-thinking`."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Self

from pydantic import ConfigDict, ValidationError

from rxloop._version import __version__
from rxloop.errors import ConfigurationError, InvalidThought, SessionError, UnknownSession
from rxloop.mcp import missing
from rxloop.pipeline.artifacts import ArtifactStore
from rxloop.protocol.messages import Wire
from rxloop.storage import MemoryArtifacts
from rxloop.thinking.sessions import Session, ThinkingSessions, ThoughtInput, ThoughtResult
from rxloop.thinking.sessions.sessions import NEW
from rxloop.thinking.sessions.thought import (
    PROPERTIES,
    SESSION_PROPERTIES,
    Name,
    OptionalCount,
    SessionId,
    wrong_with_name,
)

try:
    import mcp_types as types
    from mcp.server import Server, ServerRequestContext
    from mcp.server.context import HandlerResult
    from mcp.shared.exceptions import MCPError
    from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

    from rxloop.mcp import _published as published
    from rxloop.mcp import _reading as reading
    from rxloop.mcp._connections import Bound, Connections, connected
except ModuleNotFoundError as error:
    raise missing(error) from error

Context = ServerRequestContext[Connections]
Answer = types.CallToolResult

_FIELDS = (*PROPERTIES, *SESSION_PROPERTIES)
_LOGGER = logging.getLogger(__name__)


class _Refused(Exception):
    """A tool was called in a way that it does not allow."""

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
        """Validate what was sent."""
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


def sequential_thinking_server(
    sessions: ThinkingSessions | None = None,
    *,
    session: str | None = None,
    log: Callable[[ThoughtResult], None] | None = None,
) -> Server[Connections]:
    """Make the MCP server, for any transport of the official SDK.

    Each connection has a session of its own, which calls without a session id continue; it is freed when the connection
    closes, and other connections cannot find it. `rxloop.mcp.transports` runs the server over pipes and HTTP.

    Args:
        sessions: Where the sessions are kept, and by what rules. By default in memory, for as long as their connection
            is open, with 10,000 thoughts of a million characters.
        session: The name of one session for all connections; it outlives them.
        log: Called with each accepted thought. It must not write to stdout, which belongs to the protocol.

    Raises:
        ConfigurationError: The name is too long, or has control characters in it.

    Example:
        >>> server = sequential_thinking_server()
        >>> async with Client(server) as client:
        ...     await client.call_tool("sequentialthinking", {"thought": "Two cases.", "nextThoughtNeeded": True, ...})
    """
    if session is not None and (wrong := wrong_with_name(session)) is not None:
        raise ConfigurationError(f"session={session[:60]!r} {wrong}")
    kept = sessions if sessions is not None else connection_sessions()
    handlers = Thinking(kept, log)
    server: Server[Connections] = Server(
        "rxloop-sequential-thinking",
        version=__version__,
        title="Sequential Thinking",
        description="Thinks in numbered steps that can be revised and branched from.",
        lifespan=partial(connected, kept, session),
        on_list_tools=handlers.list_tools,
        on_call_tool=handlers.call_tool,
        on_list_resources=handlers.list_resources,
        on_read_resource=handlers.read_resource,
    )
    _need_connections(server)
    return server


def connection_sessions(
    artifacts: ArtifactStore | None = None, *, strict: bool = False, ttl: float | None = None
) -> ThinkingSessions:
    """Make sessions as this server keeps them: they live as long as their connection, and are longer than an agent's.

    Args:
        artifacts: Keeps the sessions; in memory by default.
        strict: Refuse a thought that revises, or branches from, one that does not exist.
        ttl: Seconds of silence after which a session is freed, though its connection is open; None is for ever.
    """
    store = artifacts if artifacts is not None else MemoryArtifacts()
    return ThinkingSessions(store, ttl=ttl, strict=strict, max_thoughts=10_000, max_length=1_000_000)


def _need_connections(server: Server[Connections]) -> None:
    """By HTTP, offer only protocols that have connections: in the newest one every request stands alone."""
    discover = server.get_request_handler("server/discover")
    if discover is None:
        return

    async def handler(ctx: Context, params: types.RequestParams) -> HandlerResult:
        offered = await discover.handler(ctx, params)
        if ctx.request is None or not isinstance(offered, types.DiscoverResult):
            return offered
        return offered.model_copy(update={"supported_versions": list(HANDSHAKE_PROTOCOL_VERSIONS)})

    server.add_request_handler("server/discover", types.RequestParams, handler)


class Thinking:
    """What the server answers; the tools may stand beside those of another server."""

    def __init__(self, sessions: ThinkingSessions, log: Callable[[ThoughtResult], None] | None = None) -> None:
        self._sessions = sessions
        self._log = log
        self._tools: dict[str, Callable[[Bound, dict[str, Any]], Awaitable[dict[str, Any]]]] = {
            published.THINK: self._think,
            published.HISTORY: self._history,
            published.CLEAR: self._clear,
        }

    def has(self, name: str) -> bool:
        """Whether there is a tool of that name."""
        return name in self._tools

    async def list_tools(self, ctx: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        """The tools."""
        return types.ListToolsResult(tools=published.tools())

    async def call_tool(self, ctx: Context, params: types.CallToolRequestParams) -> Answer:
        """Call a tool; whatever goes wrong becomes an answer, and the server goes on."""
        tool = self._tools.get(params.name)
        if tool is None:
            raise MCPError(
                types.INVALID_PARAMS, f"there is no tool {params.name!r}; there are {', '.join(self._tools)}"
            )
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
            _LOGGER.exception("the tool %s failed", params.name)
            return _failed(f"the server failed ({type(error).__name__}); its log says more", "internal")
        return types.CallToolResult(content=[_text(answer)], structured_content=answer)

    async def list_resources(
        self, ctx: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        """The resources."""
        return types.ListResourcesResult(resources=published.resources())

    async def read_resource(self, ctx: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        """The session of the connection, as JSON or drawn."""
        writers = {published.SESSION_URI: _written, published.GRAPH_URI: reading.flowchart}
        uri = str(params.uri)
        if uri not in writers:
            raise MCPError(types.INVALID_PARAMS, f"there is no resource {uri!r}; there are {', '.join(writers)}")
        bound = ctx.lifespan_context.of(ctx)
        async with bound.turn:
            text = writers[uri](await self._session(bound, None))
        kind = next(resource.mime_type for resource in published.resources() if resource.uri == uri)
        return types.ReadResourceResult(contents=[types.TextResourceContents(uri=uri, mime_type=kind, text=text)])

    async def _think(self, bound: Bound, arguments: dict[str, Any]) -> dict[str, Any]:
        # Names of the wire alone: a field in snake_case is one that the reference server does not know.
        given = ThoughtInput.of({name: arguments[name] for name in _FIELDS if name in arguments})
        own = given.session_id is None or given.session_id == bound.session_id
        result = await self._sessions.think(given, owner=bound.owner, session_id=bound.session_id if own else None)
        self._log_thought(result)
        answer = {**result.official(), "sessionId": result.session_id}
        if result.summary is not None:
            answer["summary"] = result.summary
        # The server has made the id of the session itself, for this connection: it begins with its first thought.
        warnings = [warning.model_dump() for warning in result.warnings if warning.code != NEW]
        if warnings:
            answer["warnings"] = warnings
        return answer

    def _log_thought(self, result: ThoughtResult) -> None:
        if self._log is not None:
            try:
                self._log(result)
            except Exception:
                # The thought is kept even if it cannot be logged.
                _LOGGER.exception("a thought could not be logged")

    async def _history(self, bound: Bound, arguments: dict[str, Any]) -> dict[str, Any]:
        given = _HistoryInput.of(arguments)
        session = await self._session(bound, given.session_id)
        if given.branch_id is not None and session.branch(given.branch_id) is None:
            there = ", ".join(map(repr, session.branch_names())) or "none"
            raise _Refused(f"there is no branch {given.branch_id!r}; there are: {there}", "unknown_branch")
        return reading.page(
            session,
            first=given.first or 1,
            limit=min(given.limit or published.PAGE, published.MOST),
            branch=given.branch_id,
        )

    async def _clear(self, bound: Bound, arguments: dict[str, Any]) -> dict[str, Any]:
        session = await self._session(bound, _SessionInput.of(arguments).session_id)
        if not len(session):
            return {"sessionId": session.session_id or None, "forgotten": 0}
        empty = await self._sessions.clear_session(session.session_id, owner=bound.owner)
        return {"sessionId": empty.session_id, "forgotten": len(session)}

    async def _session(self, bound: Bound, wanted: str | None) -> Session:
        """The named session, or that of the connection, which is empty before its first thought."""
        session_id = wanted if wanted is not None else bound.session_id
        if session_id is None:
            return Session("")
        try:
            return await self._sessions.get_session(session_id, owner=bound.owner)
        except UnknownSession:
            if session_id != bound.session_id:
                raise
            return Session(session_id, bound.owner)


def _written(session: Session) -> str:
    return _json(reading.everything(session))


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _text(value: dict[str, Any]) -> types.TextContent:
    return types.TextContent(type="text", text=_json(value))


def _failed(error: str, code: str, fields: Mapping[str, str] | None = None) -> Answer:
    """An error that a model reads as well as a program."""
    failure = {"error": error, "code": code, "fields": dict(fields or {}), "status": "failed"}
    return types.CallToolResult(content=[_text(failure)], is_error=True)
