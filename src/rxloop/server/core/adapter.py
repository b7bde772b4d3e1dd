"""An adapter: the application that serves one protocol over a runtime, and ids in its paths."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Literal
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.routing import BaseRoute
from starlette.types import ExceptionHandler, Receive, Scope, Send

from rxloop.pipeline.log_retry import within
from rxloop.server.core.gateway import Host


class Adapter:
    """A runtime behind one protocol: an ASGI application, to be served as it is or mounted in another one.

    Served by itself it enters the runtime and leaves it; mounted in another application, that one does.
    """

    def __init__(self, host: Host, routes: Sequence[BaseRoute], on_error: ExceptionHandler) -> None:
        """Serve a host; nothing is opened before the application is.

        Args:
            host: Has the runtime, and knows who may do what.
            routes: What is served.
            on_error: Says in the words of the protocol that there is no such path or method.
        """
        self._host = host
        self._app = Starlette(routes=routes, lifespan=self._lifespan, exception_handlers={HTTPException: on_error})

    @property
    def host(self) -> Host:
        """What it shares with the other doors: the runtime, who may do what, and the end."""
        return self._host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, as ASGI has it."""
        with within(self._host.limits.log_seconds if scope["type"] == "http" else None):
            await self._app(keep_slashes(scope), receive, send)

    async def drain(self, seconds: float | None = None) -> None:
        """Come to an end without breaking anything off: for the shutdown of whatever serves this.

        Nothing new is taken; the runs that go on have their time, and are given up then, so that another process goes
        on with them; then each stream ends with a last word, and its client comes back elsewhere. Several doors of
        one runtime may be drained side by side, and each twice. The log stays open; `Shutdown` closes it, too.

        Args:
            seconds: How long runs have to end; None is the `grace` of the runtime.
        """
        await self._host.drain(seconds)

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncGenerator[None]:
        runtime = self._host.runtime
        if runtime.open:
            yield
            return
        async with runtime:
            try:
                yield
            finally:
                await self.drain()


_SLASH = "\x1f"
"""Takes the place of a slash that a client has encoded; no id has this character."""


class _IdConvertor(PathConvertor):
    """A place of a path that takes everything, also a line end, which no id has: its refusal is for the handler."""

    regex = "(?s:.*)"


register_url_convertor("rxloop_id", _IdConvertor())


def keep_slashes(scope: Scope) -> Scope:
    """Return a scope whose path shows which slashes belong to an id: a server decodes `%2F` before routes are matched.

    Args:
        scope: A request as the server, or the application around, passes it on.
    """
    raw: bytes = scope.get("raw_path") or b""
    if scope["type"] != "http" or b"%2f" not in raw.lower():
        return scope
    segments = [unquote(each) for each in raw.partition(b"?")[0].decode("ascii", "replace").split("/")]
    path: str = scope["path"]
    # An application around may have taken a prefix off the path, and not off the bytes.
    for first in range(len(segments)):
        tail = segments[first:]
        prefix = "" if first == 0 or not path.startswith("/") else "/"
        if prefix + "/".join(tail) == path:
            return {**scope, "path": prefix + "/".join(each.replace("/", _SLASH) for each in tail)}
    return scope


def id_in_path(request: HTTPConnection, name: str) -> str:
    """Return the id at a place of the path of a request."""
    value: str = request.path_params[name]
    return value.replace(_SLASH, "/")


OnDisconnect = Literal["keep", "cancel"]
