"""The HTTP API of a runtime."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import cached_property
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rxloop.errors import ConfigurationError, UnknownRun
from rxloop.protocol.http_api import RunSettings
from rxloop.runtime.runtime import Runtime
from rxloop.server.core.adapter import Adapter, OnDisconnect
from rxloop.server.core.errors import Refused, on_error
from rxloop.server.core.gateway import ANYBODY, Auth, Host, ServerLimits
from rxloop.server.core.request_body import read_body, read_query
from rxloop.server.http.call import Call, Options
from rxloop.server.http.openapi import OPERATIONS, Operation, document


class Api(Adapter):
    """The HTTP API of a runtime; see `api`."""

    def __init__(self, host: Host, options: Options) -> None:
        """Serve a host; nothing is opened before the application is."""
        self._options = options
        # One route for each path, so that a method which it has not is told of those that it has.
        by_path: dict[str, dict[str, Operation]] = {}
        for each in OPERATIONS:
            by_path.setdefault(each.path, {})[each.method] = each
        routes = [
            # The id of a conversation may have slashes.
            Route(path.replace("{context_id}", "{context_id:rxloop_id}"), self._endpoint(host, made), methods=[*made])
            for path, made in by_path.items()
        ]
        routes.append(Route("/openapi.json", self._document, methods=["GET"]))
        super().__init__(host, routes, on_error)

    @cached_property
    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document; it is served as `/openapi.json`."""
        return document(secured=self._host.secured)

    async def _document(self, request: Request) -> Response:
        servers = [{"url": request.scope.get("root_path") or "/"}]
        return Response(orjson.dumps({**self.openapi, "servers": servers}), media_type="application/json")

    def _endpoint(self, host: Host, by_method: Mapping[str, Operation]) -> Callable[[Request], Awaitable[Response]]:
        options = self._options

        async def endpoint(request: Request) -> Response:
            operation = by_method["GET" if request.method == "HEAD" else request.method]
            try:
                principal = ANYBODY if operation.public else await host.principal(request)
                query = read_query(operation.query, request)
                body = None if operation.body is None else await read_body(operation.body, request, host.limits)
                return await operation.handler(Call(host, options, request, principal, body, query))
            except UnknownRun:
                # It was there when its owner was found out.
                return await on_error(request, Refused(410, "gone", "the run was removed from the log"))
            except Exception as error:
                return await on_error(request, error)

        return endpoint


def api(
    runtime: Runtime,
    *,
    auth: Auth | None = None,
    limits: ServerLimits | None = None,
    heartbeat: float | None = 15.0,
    on_disconnect: OnDisconnect = "keep",
    settings: Collection[str] = (),
) -> Api:
    """Make the HTTP API of a runtime.

    Served by itself it enters the runtime and leaves it; mounted in another application, that one does. Agents are not
    closed by it, and neither is the log.

    Args:
        runtime: Has the agents, and the log.
        auth: Tells who asks; `bearer({...})` knows people by tokens. Without it everybody sees all runs.
        limits: How much clients may take.
        heartbeat: Seconds of silence after which a stream gives a sign of life, so that proxies keep it; None for none.
        on_disconnect: What becomes of a run whose reader leaves before its end, where the request does not say it:
            `keep` lets it go on, `cancel` cancels it.
        settings: What clients may set of the model calls of their runs, such as `("temperature", "max_tokens")`, of the
            fields of `settings` in the document; nothing by default, since an agent is tried with its own.

    Raises:
        ConfigurationError: An argument is wrong.

    Example:
        >>> app = api(Runtime({"support": support}, log=SqliteEventLog("app.db")), auth=bearer({"secret": "ann"}))
        >>> uvicorn.run(app)
    """
    if heartbeat is not None and not heartbeat > 0:
        raise ConfigurationError(f"heartbeat must be more than 0 seconds, or None for none, not {heartbeat!r}")
    if on_disconnect not in ("keep", "cancel"):
        raise ConfigurationError(f"on_disconnect must be 'keep' or 'cancel', not {on_disconnect!r}")
    unknown = sorted({*settings} - {*RunSettings.model_fields})
    if isinstance(settings, str) or unknown:
        known = ", ".join(RunSettings.model_fields)
        raise ConfigurationError(f"settings must be names of settings, of {known}, not {settings!r}")
    options = Options(heartbeat, on_disconnect, frozenset(settings))
    return Api(Host(runtime, auth, limits or ServerLimits()), options)
