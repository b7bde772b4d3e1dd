"""The endpoint of streamable HTTP: who asks, how much, and the sessions of the SDK while the door is open."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator
from contextlib import contextmanager, suppress
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
from starlette.types import Receive, Scope, Send

from rxloop.mcp._body import with_body
from rxloop.server.access import ANYBODY
from rxloop.server.bodies import read_bytes
from rxloop.server.host import Host
from rxloop.server.mcp.calls import PRINCIPAL
from rxloop.server.refusals import Refused, refusal_of

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
