"""The MCP adapter: agents as tools, over streamable HTTP or pipes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import anyio
import mcp_types as types
from mcp.server import Server
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from rxloop._version import __version__
from rxloop.errors import ConfigurationError
from rxloop.mcp import with_body
from rxloop.mcp._connections import connected
from rxloop.mcp.sequential_thinking import Thinking, connection_sessions
from rxloop.runtime.runtime import Runtime
from rxloop.server.core.adapter import Adapter, OnDisconnect
from rxloop.server.core.errors import Refused, refusal_of
from rxloop.server.core.gateway import ANYBODY, Auth, Host, ServerLimits
from rxloop.server.core.request_body import read_bytes
from rxloop.server.mcp.calls import PRINCIPAL, Calls, Context, Given
from rxloop.server.mcp.tools import Chosen, offered
from rxloop.thinking.sessions import ThinkingSessions

log = logging.getLogger("rxloop")

_WRITTEN_IN = 3.0
"""Seconds in which results are written to clients before the sessions end."""


class Endpoint:
    """Serves the requests of clients; the sessions begin with the first one, and end when the host is drained."""

    def __init__(
        self, host: Host, server: Server[Any], security: TransportSecuritySettings | None, *, sessions: bool
    ) -> None:
        self._host, self._server, self._security, self._stateless = host, server, security, not sessions
        self._opening: asyncio.Future[StreamableHTTPSessionManager] | None = None
        self._life: asyncio.Task[None] | None = None
        self._posts = 0
        self._no_posts = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        request = Request(scope, receive)
        with self._counted(request.method == "POST"):
            try:
                principal = await self._host.principal(request)
                if self._stateless and request.method == "GET":
                    # A stream of what the server has to say in a session would be open for ever, with nothing in it.
                    words = "without sessions there is nothing to listen to here"
                    raise Refused(405, "method_not_allowed", words, headers={"allow": "POST"})
                sessions = await self._sessions()
                if request.method == "POST":
                    receive = with_body(await read_bytes(request, self._host.limits), receive)
            except Exception as error:
                await _answer(error, request)(scope, receive, send)
                return
            known: dict[str, Any] = {PRINCIPAL: principal}
            if self._host.secured:
                # By this the SDK knows that a session is for whoever began it.
                known["user"] = AuthenticatedUser(AccessToken(token="", client_id=principal.id, scopes=[]))
            await sessions.handle_request({**scope, **known}, receive, send)

    async def _sessions(self) -> StreamableHTTPSessionManager:
        """The sessions, which the SDK enters and leaves in one task.

        Raises:
            Refused: The server goes away.
        """
        if self._opening is None or (self._life is not None and self._life.done()):
            self._host.take_stream(ANYBODY)
            self._opening = asyncio.get_running_loop().create_future()
            self._life = asyncio.create_task(self._live(self._opening), name="rxloop-mcp-sessions")
        return await asyncio.shield(self._opening)

    async def _live(self, opening: asyncio.Future[StreamableHTTPSessionManager]) -> None:
        scope = anyio.CancelScope()
        sessions = StreamableHTTPSessionManager(
            self._server,
            stateless=self._stateless,
            security_settings=self._security,
            max_request_body_size=self._host.limits.body,
        )
        # As one of the streams of the host: it ends with them.
        with self._host.streaming(ANYBODY, scope):
            async with sessions.run():
                opening.set_result(sessions)
                with scope:
                    await anyio.sleep_forever()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_WRITTEN_IN):
                        while self._posts:
                            self._no_posts.clear()
                            await self._no_posts.wait()

    @contextmanager
    def _counted(self, post: bool) -> Generator[None]:
        self._posts += post
        try:
            yield
        finally:
            self._posts -= post
            if not self._posts:
                self._no_posts.set()


async def on_error(request: Request, error: Exception) -> Response:
    """Answer a request for what there is not."""
    return _answer(error, request)


def _answer(error: Exception, request: Request) -> Response:
    """A refusal as an error of JSON-RPC."""
    refused = refusal_of(error)
    if refused is None:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        refused = Refused(500, "internal", "the server failed")
    info = types.ErrorData(code=types.INVALID_REQUEST, message=str(refused), data={"code": refused.code})
    body = types.JSONRPCError(jsonrpc="2.0", id=None, error=info)
    headers = {"cache-control": "no-store", **refused.headers}
    return Response(body.model_dump_json(by_alias=True), refused.status, headers, media_type="application/json")


_LOCAL = ("127.0.0.1", "localhost", "[::1]")


class McpServer(Adapter):
    """An MCP server whose tools are agents; see `mcp_server`.

    Attributes:
        server: The server of the official SDK, for other transports: `rxloop.mcp.transports.serve_stdio(door.server)`.
            Enter the runtime before, and call `drain` after.
    """

    def __init__(self, host: Host, server: Server[Any], path: str, endpoint: Endpoint) -> None:
        """Serve a host; nothing is opened before the application is."""
        self.server = server
        super().__init__(host, [Route(path, endpoint)], on_error)


def mcp_server(
    runtime: Runtime,
    *,
    auth: Auth | None = None,
    limits: ServerLimits | None = None,
    agents: Chosen = None,
    name: str = "rxloop",
    instructions: str | None = None,
    sequential_thinking: bool | ThinkingSessions = False,
    wait: float | None = None,
    on_disconnect: OnDisconnect = "cancel",
    sessions: bool | None = None,
    path: str = "/mcp",
    allowed_hosts: Sequence[str] | None = None,
) -> McpServer:
    """Make an MCP server whose tools are the agents of a runtime.

    A call is a run: its progress is told, its questions are put to the person before the client, and a cancel of the
    client cancels it. The tool `continue_run` answers a run for clients that cannot ask, and waits for one whose caller
    is gone. As an application it is served by itself, or mounted as the other doors are; `rxloop mcp module:agent`
    serves it over stdin and stdout.

    Args:
        runtime: Has the agents, and the log.
        auth: Tells who asks; `bearer({...})` knows people by tokens. Without it everybody sees all runs.
        limits: How much clients may take.
        agents: Which agents are tools, by their names; as a mapping, each with its description or an `AgentTool`. By
            default all of them.
        name: What the server is called.
        instructions: What the client's model is told of the server as a whole.
        sequential_thinking: Offer the tools of sequential thinking, too; sessions with rules of your own, or True.
        wait: Seconds after which a call is answered though its run goes on, for clients that do not wait for ever;
            `continue_run` waits on. None waits for the end.
        on_disconnect: What becomes of a run whose caller is gone: `cancel` cancels it, `keep` lets it go on. Over HTTP
            a client of protocol 2026-07-28 cancels by closing the connection, and cannot be told from one that is gone.
        sessions: Whether clients of protocols before 2026 have sessions over HTTP. In one a client can be shown forms
            and can cancel a call, and all of its requests have to come to this process. Without, each may come to any
            process; answers come by `continue_run`, and who cancels has to close the connection. None is sessions,
            unless the runtime has a queue: then there are other servers beside this one.
        path: Where it is served.
        allowed_hosts: The names by which clients may call it over HTTP, beside those of this machine. Without `auth`
            there are none by default, so that no page in a browser reaches it; with it all names are good.

    Raises:
        ConfigurationError: An argument is wrong.

    Example:
        >>> runtime = Runtime({"support": support}, log=SqliteEventLog("app.db"))
        >>> app = mcp_server(runtime, agents={"support": "Answers questions about orders."}, auth=bearer(tokens))
        >>> uvicorn.run(app)
    """
    if wait is not None and not wait > 0:
        raise ConfigurationError(f"wait must be more than 0 seconds, or None for the end of the run, not {wait!r}")
    if on_disconnect not in ("keep", "cancel"):
        raise ConfigurationError(f"on_disconnect must be 'keep' or 'cancel', not {on_disconnect!r}")
    if not path.startswith("/"):
        raise ConfigurationError(f"path must begin with /, not {path!r}")
    host = Host(runtime, auth, limits or ServerLimits())
    calls = Calls(host, offered(runtime.agents, agents), wait=wait, on_disconnect=on_disconnect)
    server = _server(name, instructions, calls, sequential_thinking)
    if sessions is None:
        sessions = runtime.queue is None
    return McpServer(host, server, path, Endpoint(host, server, _security(auth, allowed_hosts), sessions=sessions))


def _server(name: str, instructions: str | None, calls: Calls, thinking: bool | ThinkingSessions) -> Server[Any]:
    sessions = connection_sessions() if thinking is True else thinking or None
    thoughts = None if sessions is None else Thinking(sessions)

    async def list_tools(ctx: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        beside = [] if thoughts is None else (await thoughts.list_tools(ctx, params)).tools
        return types.ListToolsResult(tools=[*calls.list_tools(), *beside])

    async def call_tool(ctx: Context, params: types.CallToolRequestParams) -> Given:
        if thoughts is not None and thoughts.has(params.name):
            return await thoughts.call_tool(ctx, params)
        return await calls.call(ctx, params)

    for each in () if thoughts is None else ("sequentialthinking", "thinking_history", "clear_thinking"):
        if calls.has(each):
            raise ConfigurationError(f"an agent is called {each!r}, like a tool of sequential thinking: rename it")
    more: dict[str, Any] = {} if sessions is None else {"lifespan": partial(connected, sessions, None)}
    return Server(
        name,
        version=__version__,
        instructions=instructions,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        **more,
    )


def _security(auth: Auth | None, allowed: Sequence[str] | None) -> TransportSecuritySettings | None:
    if auth is not None and allowed is None:
        # A page in a browser has no token.
        return TransportSecuritySettings(enable_dns_rebinding_protection=False)
    names = [each for host in (*_LOCAL, *(allowed or ())) for each in (host, f"{host}:*")]
    return TransportSecuritySettings(
        enable_dns_rebinding_protection=True,
        allowed_hosts=names,
        allowed_origins=[f"{scheme}://{name}" for scheme in ("http", "https") for name in names],
    )
