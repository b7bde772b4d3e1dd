"""MCP adapter for agents and sequential thinking."""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager, nullcontext, suppress
from typing import Any

import anyio
import mcp_types as types
from mcp.server import Server
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.context import HandlerResult
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from typing_extensions import Unpack, override

from rxloop._version import __version__
from rxloop.errors import ConfigurationError
from rxloop.runtime.runtime import Runtime
from rxloop.server.core.account import ServerLimits
from rxloop.server.core.adapter import Adapter, AdapterOptions, OnDisconnect
from rxloop.server.core.bodies import SDK_VALUES, check_json
from rxloop.server.core.errors import Refused, to_refusal
from rxloop.server.core.gateway import Auth, Gateway, Principal, StreamSlot
from rxloop.server.core.request_slots import make_slot_release
from rxloop.server.mcp.calls import ON_WAIT, PRINCIPAL, Calls, Context, ToolResult, note_wait
from rxloop.server.mcp.http_sessions import HttpSessions
from rxloop.server.mcp.thinking_tools import ThinkingTools
from rxloop.server.mcp.tools import AgentSelection, make_agent_tools
from rxloop.support.misuse import check_argument, check_minimum, is_number
from rxloop.thinking.sessions import ThinkingSessions

log = logging.getLogger("rxloop")

_SEND_TIMEOUT = 3.0
"""Timeout in seconds for sending pending results before sessions are closed."""

_SESSION_VERSIONS = ("", *HANDSHAKE_PROTOCOL_VERSIONS)
"""Protocol versions in the header of requests with sessions. Initial requests have no header."""


class AllowedHosts:
    """Allowed `Host` and `Origin` headers. A browser page can make its own host name resolve to this machine."""

    def __init__(self, names: Sequence[str]) -> None:
        """Allow local host names and additional names.

        Args:
            names: Additional host names. A name without a port matches any port.
        """
        bracketed = (f"[{name}]" if name.count(":") > 1 and not name.startswith("[") else name for name in names)
        self._names = frozenset(name.lower() for name in (*_LOCAL, *bracketed))

    def check(self, request: Request) -> None:
        """Validate request headers.

        Raises:
            Refused: If a header contains a different host name.
        """
        for header, value in request.headers.items():
            if header == "host" and not self._is_allowed(value.lower()):
                raise Refused(421, "misdirected", "Invalid Host header")
            if header == "origin":
                scheme, separator, host = value.lower().partition("://")
                if scheme not in ("http", "https") or not separator or not self._is_allowed(host):
                    raise Refused(403, "forbidden", "Invalid Origin header")

    def _is_allowed(self, host: str) -> bool:
        match = _HOST.fullmatch(host)
        return match is not None and (match["name"] in self._names or host in self._names)


_LOCAL = ("127.0.0.1", "localhost", "[::1]")
_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[^\s:@/?#\[\]\\]+)(:[0-9]{1,5})?")


class Endpoint:
    """ASGI endpoint for MCP requests. Sessions are created on the first request and closed when the gateway drains."""

    def __init__(
        self,
        gateway: Gateway,
        server: Server[Any],
        hosts: AllowedHosts | None,
        *,
        sessions: bool,
        session_timeout: float,
        max_sessions: int,
    ) -> None:
        is_valid = is_number(session_timeout) and 0 < session_timeout < math.inf
        check_argument("session_timeout", session_timeout, is_valid, "a finite number of seconds above 0")
        check_minimum(1, max_sessions=max_sessions)
        self._gateway, self._server, self._hosts, self._stateless = gateway, server, hosts, not sessions
        self._session_timeout, self._max_sessions = session_timeout, max_sessions
        self._http_sessions = HttpSessions(gateway, session_timeout)
        self._opening: asyncio.Future[StreamableHTTPSessionManager] | None = None
        self._runner: asyncio.Task[None] | None = None
        self._posts = 0
        self._no_posts = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request (ASGI entry point)."""
        request = Request(scope, receive)
        async with AsyncExitStack() as stack:
            stack.enter_context(self._count_posts(request.method == "POST"))
            try:
                if self._hosts is not None:
                    self._hosts.check(request)
                principal = await self._gateway.authenticate(request)
                if self._stateless and request.method == "GET":
                    # Without sessions, a server-to-client stream would stay open and empty forever.
                    message = "GET is not supported, because sessions are disabled"
                    raise Refused(405, "method_not_allowed", message, headers={"allow": "POST"})
                sessions = await self._sessions()
                reservation = stack.enter_context(self._gateway.reserve(principal, "requests"))
                body = await self._gateway.read_body(principal, request) if request.method == "POST" else b""
                await stack.enter_async_context(self._gateway.acquire_slot(principal, request, len(body)))
                if request.method == "POST":
                    check_json(body, "body", self._gateway.limits, values=SDK_VALUES)
                    receive = _replay_body(body, receive)
                # Sessions handle requests in their own tasks.
                scope_fields: dict[str, Any] = {
                    PRINCIPAL: principal,
                    ON_WAIT: (make_slot_release(), reservation.release),
                }
                tracked = stack.enter_context(self._track(request, principal, send))
            except Exception as error:
                await _write_problem(to_refusal(error, request))(scope, receive, send)
                return
            if self._gateway.requires_auth:
                # The SDK uses this user to protect sessions from other users.
                scope_fields["user"] = AuthenticatedUser(AccessToken(token="", client_id=principal.id, scopes=[]))
            await _complete(sessions.handle_request, {**scope, **scope_fields}, receive, tracked)

    def _track(self, request: Request, principal: Principal, send: Send) -> AbstractContextManager[Send]:
        has_session = not self._stateless and request.headers.get("mcp-protocol-version", "") in _SESSION_VERSIONS
        return self._http_sessions.serve(request, principal, send) if has_session else nullcontext(send)

    async def _sessions(self) -> StreamableHTTPSessionManager:
        """Return the session manager, which the SDK requires to be opened and closed in the same task.

        Raises:
            Refused: If the server is shutting down.
        """
        if self._opening is None or (self._runner is not None and self._runner.done()):
            slot = self._gateway.reserve_stream(None)
            self._opening = asyncio.get_running_loop().create_future()
            self._runner = asyncio.create_task(self._run_sessions(slot, self._opening), name="rxloop-mcp-sessions")
        return await asyncio.shield(self._opening)

    async def _run_sessions(self, slot: StreamSlot, opening: asyncio.Future[StreamableHTTPSessionManager]) -> None:
        sessions = StreamableHTTPSessionManager(
            self._server,
            stateless=self._stateless,
            session_idle_timeout=None if self._stateless else self._session_timeout,
            max_sessions=self._max_sessions,
            max_request_body_size=self._gateway.limits.body,
        )
        # Occupy a gateway stream, so draining also ends the sessions.
        with slot:
            async with sessions.run():
                opening.set_result(sessions)
                with slot.scope:
                    await anyio.sleep_forever()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_SEND_TIMEOUT):
                        while self._posts:
                            self._no_posts.clear()
                            await self._no_posts.wait()
        self._http_sessions.clear()

    @contextmanager
    def _count_posts(self, post: bool) -> Generator[None]:
        self._posts += post
        try:
            yield
        finally:
            self._posts -= post
            if not self._posts:
                self._no_posts.set()


async def _complete(handle: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Handle a request, and end its response if the SDK has stopped without ending it.

    `sse_starlette` stops all responses when uvicorn receives a signal.
    """
    is_open = False

    async def send_message(message: Message) -> None:
        nonlocal is_open
        await send(message)
        if scope["method"] == "GET":
            note_wait(scope)
        is_open = message["type"] == "http.response.start" or message.get("more_body", False)

    await handle(scope, receive, send_message)
    if is_open:
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _write_problem(refused: Refused) -> Response:
    """Convert an error to a JSON-RPC response."""
    info = types.ErrorData(code=types.INVALID_REQUEST, message=str(refused), data={"code": refused.code})
    body = types.JSONRPCError(jsonrpc="2.0", id=None, error=info)
    headers = {"cache-control": "no-store", **refused.headers}
    return Response(body.model_dump_json(by_alias=True), refused.status, headers, media_type="application/json")


def _replay_body(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` function that replays a body before further messages."""
    pending = [body]

    async def replay() -> Message:
        if pending:
            return {"type": "http.request", "body": pending.pop(), "more_body": False}
        return await receive()

    return replay


class McpServer(Adapter):
    """MCP server for agents and sequential thinking; see `mcp_server`.

    Attributes:
        server: Server of the official SDK, for other transports, such as `rxloop.server.serve_stdio(mcp.server)`. Open
            the runtime before serving and call `drain` afterwards.
        path: URL path of the endpoint.
    """

    def __init__(
        self,
        runtime: Runtime,
        path: str,
        make: Callable[[Gateway], tuple[Server[Any], Endpoint]],
        *,
        on_disconnect: OnDisconnect,
        **options: Unpack[AdapterOptions],
    ) -> None:
        """Initialize the adapter for `mcp_server`."""
        if not path.startswith("/"):
            raise ConfigurationError(f"path must start with /, got {path!r}")
        super().__init__(runtime, on_disconnect=on_disconnect, **options)
        # `sse_starlette` cancels the SDK's responses within half a second, so finish the calls immediately.
        self.gateway.drain_delay = 0
        self.path = path
        self.server, self._endpoint = make(self.gateway)

    @override
    def endpoints(self) -> Sequence[BaseRoute]:
        return [Route(self.path, self._endpoint)]

    @override
    def write_error(self, refused: Refused, request: HTTPConnection) -> Response:
        return _write_problem(refused)


def mcp_server(
    runtime: Runtime,
    *,
    auth: Auth | None = None,
    limits: ServerLimits | None = None,
    agents: AgentSelection = None,
    name: str = "rxloop",
    instructions: str | None = None,
    sequential_thinking: bool | ThinkingSessions | ThinkingTools = False,
    wait: float | None = None,
    on_disconnect: OnDisconnect = "cancel",
    sessions: bool | None = None,
    session_timeout: float = 1_800.0,
    max_sessions: int = 10_000,
    path: str = "/mcp",
    allowed_hosts: Sequence[str] | None = None,
) -> McpServer:
    """Create an MCP server with agents, sequential thinking, or both as tools.

    Each tool call is a run. The client receives its progress and its questions, and can cancel it. The `continue_run`
    tool answers runs for clients without elicitation, and waits for runs whose caller has disconnected. The server can
    run standalone or be mounted like other adapters. `rxloop mcp module:agent` serves it over stdin and stdout.

    Args:
        runtime: Runtime with the agents and the event log.
        auth: Function that returns the principal of a request. Use `bearer({...})` for token authentication. Without
            it, every client can see all runs.
        limits: Limits for clients.
        agents: Names of the agents to expose, or a mapping to descriptions or `AgentTool` instances. Defaults to all
            agents.
        name: Server name.
        instructions: Server instructions for the client's model.
        sequential_thinking: Whether to add the tools and resources of sequential thinking. Pass `ThinkingSessions` for
            custom limits, or `ThinkingTools`. With `Runtime({}, log=log)`, these are the only tools.
        wait: Maximum duration of a call in seconds, for clients with a timeout. The run continues, and `continue_run`
            waits for it. None waits until the end of the run.
        on_disconnect: Either `cancel` or `keep`, for runs whose caller disconnects. Over HTTP, clients of protocol
            2026-07-28 cancel a call by closing the connection, which cannot be distinguished from a network failure.
        sessions: Whether clients of protocols before 2026 have HTTP sessions. Sessions support forms and cancellation,
            but require all requests of a client to reach the same process. Without sessions, requests can reach any
            process, answers need `continue_run`, and clients cancel by closing the connection. By default, sessions are
            enabled unless the runtime has a queue, because a queue implies several servers.
        session_timeout: Idle seconds after which a session is closed.
        max_sessions: Maximum number of open sessions of all clients, in addition to `ServerLimits.sessions`. Further
            clients receive status 503.
        path: URL path of the endpoint.
        allowed_hosts: Host names for HTTP requests, in addition to local names. Without `auth`, only local names are
            allowed by default, which protects against requests from browser pages. With `auth`, all names are allowed
            by default.

    Raises:
        ConfigurationError: If an argument is invalid.

    Example:
        >>> runtime = Runtime({"support": support}, log=SqliteEventLog("app.db"))
        >>> app = mcp_server(runtime, agents={"support": "Answers questions about orders."}, auth=bearer(tokens))
        >>> uvicorn.run(app)
    """
    if sessions is None:
        sessions = runtime.queue is None
    # Browser pages have no token, so any host name is safe with `auth`.
    hosts = None if auth is not None and allowed_hosts is None else AllowedHosts(allowed_hosts or ())

    def make(gateway: Gateway) -> tuple[Server[Any], Endpoint]:
        calls = Calls(gateway, make_agent_tools(runtime.agents, agents), wait=wait, on_disconnect=on_disconnect)
        server = _make_server(name, instructions, calls, _make_thinking(sequential_thinking))
        return server, Endpoint(
            gateway, server, hosts, sessions=sessions, session_timeout=session_timeout, max_sessions=max_sessions
        )

    return McpServer(runtime, path, make, on_disconnect=on_disconnect, auth=auth, limits=limits)


def _make_thinking(option: bool | ThinkingSessions | ThinkingTools) -> ThinkingTools | None:
    if isinstance(option, ThinkingTools):
        return option
    if isinstance(option, ThinkingSessions):
        return ThinkingTools(option)
    return ThinkingTools() if option else None


def _make_server(name: str, instructions: str | None, calls: Calls, thinking: ThinkingTools | None) -> Server[Any]:
    async def list_tools(ctx: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[*calls.list_tools(), *(thinking.list_tools() if thinking else ())])

    async def call_tool(ctx: Context, params: types.CallToolRequestParams) -> ToolResult:
        if thinking is not None and params.name in thinking.names:
            return await thinking.call_tool(ctx, params)
        return await calls.call(ctx, params)

    options: dict[str, Any] = {}
    if thinking is not None:
        for each in thinking.names:
            if calls.has(each):
                raise ConfigurationError(f"{each!r} is the name of a sequential thinking tool; rename the agent")
        options = {
            "lifespan": thinking.open_connections,
            "on_list_resources": thinking.list_resources,
            "on_read_resource": thinking.read_resource,
        }
        if not calls.has_agents:
            options["title"] = "Sequential Thinking"
            options["description"] = "Thinks in numbered steps that can be revised and branched from."
    elif not calls.has_agents:
        raise ConfigurationError("the server has no tools: add agents to the runtime, or pass sequential_thinking=True")
    server = Server(
        name,
        version=__version__,
        instructions=instructions,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        **options,
    )
    if not calls.has_agents:
        _require_connections(server)
    return server


def _require_connections(server: Server[Any]) -> None:
    """Exclude protocol versions without connections over HTTP, because clients need a connection for their session."""
    discover = server.get_request_handler("server/discover")
    if discover is None:
        return

    async def handler(ctx: Context, params: types.RequestParams) -> HandlerResult:
        result = await discover.handler(ctx, params)
        if ctx.request is None or not isinstance(result, types.DiscoverResult):
            return result
        return result.model_copy(update={"supported_versions": list(HANDSHAKE_PROTOCOL_VERSIONS)})

    server.add_request_handler("server/discover", types.RequestParams, handler)
