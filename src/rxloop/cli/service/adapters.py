"""Protocol adapters of a server and their combined ASGI application."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from starlette.middleware.cors import CORSMiddleware

import rxloop.server
from rxloop.cli.service.credentials import METRICS_CLIENT, is_local
from rxloop.errors import ConfigurationError
from rxloop.server import Adapter, Principal, ServerLimits, api, bearer
from rxloop.server.core.errors import Refused, write_problem

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
        if scope["type"] == "http" and not self._is_allowed(scope):
            refused = Refused(421, "misdirected", "without keys, only requests for local host names are allowed")
            await write_problem(refused)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _is_allowed(self, scope: Scope) -> bool:
        for header, value in scope["headers"]:
            text = value.decode("latin-1")
            if header == b"host" and not self._is_allowed_url(f"//{text}"):
                return False
            if header == b"origin" and text not in self._origins and not self._is_allowed_url(text):
                return False
        return True

    def _is_allowed_url(self, url: str) -> bool:
        try:
            name = urlsplit(url).hostname or ""
        except ValueError:
            return False
        return name == self._host or is_local(name)


class _AdapterKind(NamedTuple):
    prefix: str
    function: str
    """Factory function in `rxloop.server`."""
    title: str
    per_agent: bool = False
    """True if an adapter serves a single agent, which requires separate paths for multiple agents."""
    owns_prefix: bool = False
    """True if the adapter's own paths include the prefix."""
    options: Mapping[str, Any] = {}


KINDS = {
    "agui": _AdapterKind("/agui", "agui", "AG-UI", per_agent=True),
    "ui_stream": _AdapterKind("/ui", "ui_stream", "UI message stream", options={"path": ""}),
    "openai": _AdapterKind("/v1", "openai_api", "OpenAI", owns_prefix=True),
    "a2a": _AdapterKind("/a2a", "a2a", "A2A", per_agent=True),
    "mcp": _AdapterKind("/mcp", "mcp_server", "MCP", owns_prefix=True),
    "view": _AdapterKind("/view", "viewer", "the viewer"),
}
"""Optional protocol adapters by flag."""


class MountedAdapter(NamedTuple):
    """Mounted protocol adapter."""

    path: str
    title: str
    adapter: Adapter
    owns_prefix: bool


def create_adapters(runtime: Runtime, flags: Sequence[str], keys: Mapping[str, str]) -> list[MountedAdapter]:
    """Create the API and the selected protocol adapters.

    Args:
        runtime: Runtime to serve.
        flags: Flags of the selected adapters.
        keys: Client names by key. If empty, no authentication is required.
    """
    tokens: dict[str, Principal | str] = dict(keys)
    if "metrics" in flags:
        tokens = {key: name for key, name in keys.items() if name != METRICS_CLIENT}
    common: dict[str, Any] = {"auth": bearer(tokens) if keys else None, "limits": ServerLimits()}
    adapters = [MountedAdapter("", "the API", api(runtime, **common), owns_prefix=True)]
    for flag in flags:
        if flag == "metrics":
            adapters.append(create_metrics(runtime, keys))
            continue
        kind = KINDS[flag]
        make = getattr(rxloop.server, kind.function)
        for path, agent in _list_mounts(kind, list(runtime.agents)):
            adapter = make(runtime, **common, **kind.options, **agent)
            adapters.append(MountedAdapter(path, kind.title, adapter, kind.owns_prefix))
    return adapters


def create_metrics(runtime: Runtime, keys: Mapping[str, str]) -> MountedAdapter:
    """Create the adapter for metrics. If there are keys, only the client `metrics` has access, and others get 403."""
    scraper = Principal(METRICS_CLIENT, frozenset({"metrics"}))
    auth = bearer({key: scraper if name == METRICS_CLIENT else name for key, name in keys.items()}) if keys else None
    return MountedAdapter("/metrics", "metrics", rxloop.server.metrics(runtime, auth=auth), owns_prefix=True)


def describe_adapters(adapters: Iterable[MountedAdapter]) -> str:
    """Describe adapters and paths."""
    paths_by_title: dict[str, list[str]] = {}
    for adapter in adapters:
        paths_by_title.setdefault(adapter.title, []).append(adapter.path or "/")
    return ", ".join(f"{title} at {' and '.join(paths)}" for title, paths in paths_by_title.items())


def _list_mounts(kind: _AdapterKind, agents: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield adapter paths and options for a protocol."""
    if not kind.per_agent:
        yield kind.prefix, {}
    elif len(agents) == 1:
        yield kind.prefix, {"agent": agents[0]}
    else:
        for agent in agents:
            if "/" in agent:
                raise ConfigurationError(f"agent names must not contain '/' if there are several agents, got {agent!r}")
            yield f"{kind.prefix}/{agent}", {"agent": agent}


def create_application(adapters: Sequence[MountedAdapter], origins: Sequence[str], host: str, *, keys: bool) -> ASGIApp:
    """Create an application from all adapters.

    Args:
        adapters: Mounted adapters.
        origins: Allowed CORS origins.
        host: Listen address.
        keys: True if keys are required.
    """
    app: ASGIApp = _Router(adapters)
    if origins:
        any_value = ["*"]
        app = CORSMiddleware(
            app, allow_origins=list(origins), allow_methods=any_value, allow_headers=any_value, expose_headers=any_value
        )
    return app if keys or not is_local(host) else LocalNames(app, host, origins)


class _Router:
    """Router that selects adapters using path prefixes."""

    def __init__(self, adapters: Iterable[MountedAdapter]) -> None:
        self._adapters = sorted(adapters, key=lambda each: -len(each.path))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        # The API has an empty path and is last, so it handles all remaining requests.
        for mounted in self._adapters:
            if path == mounted.path or path.startswith(f"{mounted.path}/"):
                if not mounted.owns_prefix:
                    # Handle the prefix with and without a trailing slash.
                    inner = path if path != mounted.path else f"{path}/"
                    scope = {**scope, "path": inner, "root_path": scope.get("root_path", "") + mounted.path}
                await mounted.adapter(scope, receive, send)
                return
        await self._adapters[-1].adapter(scope, receive, send)
