"""The HTTP API: runs, their events, and what can be asked of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import orjson
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from typing_extensions import Unpack, override

from rxloop.errors import ConfigurationError, UnknownRun
from rxloop.protocol.http_api import RunSettings
from rxloop.runtime.runtime import Runtime
from rxloop.server.core.adapter import Adapter, AdapterOptions, Endpoint, OnDisconnect
from rxloop.server.core.errors import Refused, answer
from rxloop.server.core.gateway import Principal
from rxloop.server.http.openapi import OPERATIONS, document
from rxloop.server.http.requests import ApiCall


class Api(Adapter):
    """The HTTP API of a runtime; see `api`."""

    def __init__(
        self, runtime: Runtime, settings: Collection[str], on_disconnect: OnDisconnect, options: AdapterOptions
    ) -> None:
        """Create the adapter; see `api`."""
        super().__init__(runtime, on_disconnect=on_disconnect, **options)
        unknown = sorted({*settings} - {*RunSettings.model_fields})
        if isinstance(settings, str) or unknown:
            known = ", ".join(RunSettings.model_fields)
            raise ConfigurationError(f"settings must be names of settings, of {known}, not {settings!r}")
        self._settings = frozenset(settings)

    @cached_property
    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document; it is served as `/openapi.json`."""
        return document(secured=self.gateway.secured)

    @override
    def endpoints(self) -> Sequence[Endpoint | BaseRoute]:
        # The id of a conversation may have slashes.
        path = "{context_id:rxloop_id}"
        operations = [replace(each, path=each.path.replace("{context_id}", path)) for each in OPERATIONS]
        return [*operations, Route("/openapi.json", self._document, methods=["GET"])]

    @override
    def make_call(self, request: Request, principal: Principal, body: Any, query: Any) -> ApiCall[Any, Any]:
        return ApiCall(self, request, principal, body, query, self._settings)

    @override
    def to_refusal(self, error: Exception, request: HTTPConnection) -> Refused:
        if isinstance(error, UnknownRun):
            # It was there when its owner was found out.
            return Refused(410, "gone", "the run was removed from the log")
        return super().to_refusal(error, request)

    @override
    def write_error(self, refused: Refused, request: HTTPConnection) -> Response:
        return answer(refused)

    async def _document(self, request: Request) -> Response:
        servers = [{"url": request.scope.get("root_path") or "/"}]
        return Response(orjson.dumps({**self.openapi, "servers": servers}), media_type="application/json")


def api(
    runtime: Runtime,
    *,
    on_disconnect: OnDisconnect = "keep",
    settings: Collection[str] = (),
    **options: Unpack[AdapterOptions],
) -> Api:
    """Make the HTTP API of a runtime.

    Served by itself it enters the runtime and leaves it; mounted in another application, that one does. Agents are not
    closed by it, and neither is the log.

    Args:
        runtime: Has the agents, and the log.
        on_disconnect: What becomes of a run whose reader leaves before its end, where the request does not say it:
            `keep` lets it go on, `cancel` cancels it.
        settings: What clients may set of the model calls of their runs, such as `("temperature", "max_tokens")`, of the
            fields of `settings` in the document; nothing by default, since an agent is tried with its own.
        options: `auth`, `limits` and `heartbeat`; see `AdapterOptions`.

    Raises:
        ConfigurationError: An argument is wrong.

    Example:
        >>> app = api(Runtime({"support": support}, log=SqliteEventLog("app.db")), auth=bearer({"secret": "ann"}))
        >>> uvicorn.run(app)
    """
    return Api(runtime, settings, on_disconnect, options)
