"""Protocol adapters of a server and their combined ASGI application."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from starlette.middleware.cors import CORSMiddleware

import rxloop.server
from rxloop.cli.service.credentials import is_local
from rxloop.errors import ConfigurationError
from rxloop.server import Adapter, ServerLimits, api, bearer
from rxloop.server.core.errors import Refused, answer

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from rxloop.runtime.runtime import Runtime


class LocalNames:
    """Middleware that only accepts requests for local host names.

    Without keys, all local users and their browsers have access. Checking the name prevents DNS rebinding, where a
    foreign web page reaches the server through a host name that resolves to this machine.
    """

    def __init__(self, app: ASGIApp, host: str, origins: Sequence[str]) -> None:
        """Wrap an application.

        Args:
            app: ASGI application.
            host: Listen address.
            origins: Additional allowed origins.
        """
        self._app = app
        self._host = host.lower()
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward or refuse a request."""
        if scope["type"] == "http" and not self._fits(scope):
            refused = Refused(421, "misdirected", "without keys, only this machine and its own pages may ask")
            await answer(refused)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _fits(self, scope: Scope) -> bool:
        for header, value in scope["headers"]:
            text = value.decode("latin-1")
            if header == b"host" and not self._is_ours(f"//{text}"):
                return False
            if header == b"origin" and text not in self._origins and not self._is_ours(text):
                return False
        return True

    def _is_ours(self, url: str) -> bool:
        try:
            name = urlsplit(url).hostname or ""
        except ValueError:
            return False
        return name == self._host or is_local(name)


class _Kind(NamedTuple):
    prefix: str
    function: str
    """Factory function in `rxloop.server`."""
    title: str
    each: bool = False
    """True if an adapter serves a single agent, which requires separate paths for multiple agents."""
    whole: bool = False
    """True if the adapter's own paths include the prefix."""
    options: Mapping[str, Any] = {}


KINDS = {
    "agui": _Kind("/agui", "agui", "AG-UI", each=True),
    "ui_stream": _Kind("/ui", "ui_stream", "UI message stream", options={"path": ""}),
    "openai": _Kind("/v1", "openai_api", "OpenAI", whole=True),
    "a2a": _Kind("/a2a", "a2a", "A2A", each=True),
    "mcp": _Kind("/mcp", "mcp_server", "MCP", whole=True),
}
"""Optional protocol adapters by flag."""


class Opened(NamedTuple):
    """Mounted protocol adapter."""

    path: str
    title: str
    door: Adapter
    whole: bool


def opened_doors(runtime: Runtime, chosen: Iterable[str], keys: Mapping[str, str]) -> list[Opened]:
    """Create the API and the selected protocol adapters.

    Args:
        runtime: Runtime to serve.
        chosen: Flags of the selected adapters.
        keys: Client names by key. If empty, no authentication is required.
    """
    common: dict[str, Any] = {"auth": bearer(keys) if keys else None, "limits": ServerLimits()}
    found = [Opened("", "the API", api(runtime, **common), whole=True)]
    for flag in chosen:
        kind = KINDS[flag]
        make = getattr(rxloop.server, kind.function)
        for path, which in _places(kind, list(runtime.agents)):
            found.append(Opened(path, kind.title, make(runtime, **common, **kind.options, **which), kind.whole))
    return found


def described(doors: Iterable[Opened]) -> str:
    """Describe adapters with their paths."""
    places: dict[str, list[str]] = {}
    for each in doors:
        places.setdefault(each.title, []).append(each.path or "/")
    return ", ".join(f"{title} at {' and '.join(paths)}" for title, paths in places.items())


def _places(kind: _Kind, agents: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield adapter paths and options for a protocol."""
    if not kind.each:
        yield kind.prefix, {}
    elif len(agents) == 1:
        yield kind.prefix, {"agent": agents[0]}
    else:
        for agent in agents:
            if "/" in agent:
                raise ConfigurationError(f"the agent {agent!r} cannot have an address: rename it, without '/'")
            yield f"{kind.prefix}/{agent}", {"agent": agent}


def application(doors: Sequence[Opened], origins: Sequence[str], host: str, *, keys: bool) -> ASGIApp:
    """Create an application from all adapters.

    Args:
        doors: Mounted adapters.
        origins: Allowed CORS origins.
        host: Listen address.
        keys: True if keys are required.
    """
    app: ASGIApp = _Hall(doors)
    if origins:
        every = ["*"]
        app = CORSMiddleware(
            app, allow_origins=list(origins), allow_methods=every, allow_headers=every, expose_headers=every
        )
    return app if keys or not is_local(host) else LocalNames(app, host, origins)


class _Hall:
    """Router that selects adapters using path prefixes."""

    def __init__(self, doors: Iterable[Opened]) -> None:
        self._doors = sorted(doors, key=lambda each: -len(each.path))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        # The API has an empty path and is last, so it handles all remaining requests.
        for each in self._doors:
            if path == each.path or path.startswith(f"{each.path}/"):
                if not each.whole:
                    # Handle the prefix with and without a trailing slash.
                    inner = path if path != each.path else f"{path}/"
                    scope = {**scope, "path": inner, "root_path": scope.get("root_path", "") + each.path}
                await each.door(scope, receive, send)
                return
        await self._doors[-1].door(scope, receive, send)
