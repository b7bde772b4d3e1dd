"""HTTP API for runs, events, conversations and agents."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import orjson
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from typing_extensions import Unpack, override

from rxloop.errors import ConfigurationError, UnknownRun
from rxloop.protocol.http_api import MAX_NAME, RunSettings
from rxloop.runtime.runtime import Runtime
from rxloop.server.core.adapter import Adapter, AdapterOptions, Endpoint, OnDisconnect
from rxloop.server.core.errors import Refused, write_problem
from rxloop.server.core.gateway import Principal
from rxloop.server.http.openapi import OPERATIONS, make_document
from rxloop.server.http.requests import ApiCall
from rxloop.support.threads import compute


class Api(Adapter):
    """Adapter for the HTTP API, created by `api`."""

    def __init__(
        self,
        runtime: Runtime,
        settings: Collection[str],
        models: Sequence[str],
        cases: str | PathLike[str] | None,
        on_disconnect: OnDisconnect,
        options: AdapterOptions,
    ) -> None:
        """Initialize the adapter for `api`."""
        super().__init__(runtime, on_disconnect=on_disconnect, **options)
        unknown = sorted({*settings} - {*RunSettings.model_fields})
        if isinstance(settings, str) or unknown:
            known = ", ".join(RunSettings.model_fields)
            raise ConfigurationError(f"settings must be names of model settings ({known}), got {settings!r}")
        names: Any = models
        if isinstance(names, str) or not all(isinstance(each, str) and 0 < len(each) <= MAX_NAME for each in names):
            raise ConfigurationError(f"models must be model strings such as ('zai:glm-4.7',), got {models!r}")
        self._settings, self._models = frozenset(settings), tuple(dict.fromkeys(models))
        self._cases = None if cases is None else Path(cases)

    @cached_property
    def openapi(self) -> dict[str, Any]:
        """OpenAPI document, served as `/openapi.json`."""
        return make_document(secured=self.gateway.requires_auth)

    @override
    def endpoints(self) -> Sequence[Endpoint | BaseRoute]:
        # Conversation ids and names of experiments may contain slashes.
        converters = {"{context_id}": "{context_id:rxloop_id}", "{seq}": "{seq:int}"}
        converters["{experiment}"] = "{experiment:rxloop_id}"
        operations = list(OPERATIONS)
        for name, path in converters.items():
            operations = [replace(each, path=each.path.replace(name, path)) for each in operations]
        return [*operations, Route("/openapi.json", self._serve_document, methods=["GET"])]

    @override
    def make_call(self, request: Request, principal: Principal, body: Any, query: Any) -> ApiCall[Any, Any]:
        return ApiCall(self, request, principal, body, query, self._settings, self._models, self._cases)

    @override
    def to_refusal(self, error: Exception, request: HTTPConnection) -> Refused:
        if isinstance(error, UnknownRun):
            # The run was removed after the ownership check.
            return Refused(410, "gone", "the run was removed from the log")
        return super().to_refusal(error, request)

    @override
    def write_error(self, refused: Refused, request: HTTPConnection) -> Response:
        return write_problem(refused)

    async def _serve_document(self, request: Request) -> Response:
        document = await compute(lambda: self.openapi)
        servers = [{"url": request.scope.get("root_path") or "/"}]
        return Response(orjson.dumps({**document, "servers": servers}), media_type="application/json")


def api(
    runtime: Runtime,
    *,
    on_disconnect: OnDisconnect = "keep",
    settings: Collection[str] = (),
    models: Sequence[str] = (),
    cases: str | PathLike[str] | None = None,
    **options: Unpack[AdapterOptions],
) -> Api:
    """Create the HTTP API of a runtime.

    Standalone, it opens and closes the runtime. When mounted, the parent application is responsible for the runtime.
    The agents and the event log are not closed.

    Args:
        runtime: Runtime with the agents and the event log.
        on_disconnect: Default for requests that do not specify it: `keep` continues a run whose client disconnects
            before the end, `cancel` cancels the run.
        settings: Names of the model settings that clients may set for their runs, such as `("temperature",
            "max_tokens")`. The names are fields of `settings` in the OpenAPI document. Empty by default, because an
            agent is tested with its own settings.
        models: Model strings that clients may choose for forks, such as `("zai:glm-4.7",)`. Empty by default.
        cases: JSONL file to which clients with the scope `cases` may append runs as cases of experiments.
        options: `auth`, `limits` and `heartbeat`; see `AdapterOptions`.

    Raises:
        ConfigurationError: If an argument is invalid.

    Example:
        >>> app = api(Runtime({"support": support}, log=SqliteEventLog("app.db")), auth=bearer({"secret": "ann"}))
        >>> uvicorn.run(app)
    """
    return Api(runtime, settings, models, cases, on_disconnect, options)
