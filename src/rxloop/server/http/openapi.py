"""Routes and OpenAPI document of the HTTP API."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from rxloop._version import __version__
from rxloop.protocol import http_api as http
from rxloop.protocol.envelope import EVENT_TYPES
from rxloop.protocol.http_api import Deltas, Problem, RunInfo
from rxloop.server.core.adapter import Endpoint
from rxloop.server.core.stream import NDJSON, SSE
from rxloop.server.http import operations as runs
from rxloop.server.http import reads
from rxloop.server.http.requests import (
    EventsQuery,
    GraphQuery,
    InfoQuery,
    PageQuery,
    Query,
    RunsInContextQuery,
    RunsQuery,
    StartQuery,
    StateQuery,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation(Endpoint):
    """Endpoint with OpenAPI metadata."""

    query: type[Query] = Query
    answers: Mapping[int, type[BaseModel] | None]
    """Response model by status code, excluding errors; None for responses without a model."""
    headers: tuple[str, ...] = ()
    """Supported request header names."""
    streams: bool = False
    """True if the response may be an event stream."""
    others: tuple[str, ...] = ()
    """Media types for responses without a model."""

    @property
    def name(self) -> str:
        """Operation id in the OpenAPI document."""
        return self.handle.__name__


_RUN = "/runs/{task_id}"
_CONTEXT = "/contexts/{context_id}"
_STARTED = {202: RunInfo, 200: RunInfo}
_EVENTS = {200: None, 204: None}
_DRAWN = ("application/json", "text/plain", "text/html")
_KEY = ("Idempotency-Key",)
_CURSOR = ("Last-Event-ID",)
OPERATIONS = (
    Operation(
        "POST", "/runs", runs.start, http.StartRun, query=StartQuery, answers=_STARTED, headers=_KEY, streams=True
    ),
    Operation("GET", "/runs", reads.runs, query=RunsQuery, answers={200: http.RunPage}),
    Operation("GET", _RUN, reads.record, query=InfoQuery, answers={200: RunInfo}),
    Operation("GET", f"{_RUN}/events", runs.events, query=EventsQuery, answers=_EVENTS, headers=_CURSOR, streams=True),
    Operation("POST", f"{_RUN}/resume", runs.resume, http.ResumeRun, query=StartQuery, answers=_STARTED, streams=True),
    Operation("POST", f"{_RUN}/say", runs.say, http.SendMessage, answers={202: RunInfo}),
    Operation("POST", f"{_RUN}/cancel", runs.cancel, http.CancelRun, answers=_STARTED),
    Operation("POST", f"{_RUN}/fork", runs.fork, http.ForkRun, answers={202: RunInfo}),
    Operation("GET", f"{_RUN}/state", reads.state, query=StateQuery, answers={200: http.StateInfo}),
    Operation("GET", f"{_RUN}/graph", reads.graph, query=GraphQuery, answers={200: None}, others=_DRAWN),
    Operation("GET", "/contexts", reads.contexts, query=PageQuery, answers={200: http.ContextPage}),
    Operation("GET", f"{_CONTEXT}/runs", reads.context_runs, query=RunsInContextQuery, answers={200: http.RunPage}),
    Operation("GET", f"{_CONTEXT}/messages", reads.messages, answers={200: http.MessageList}),
    Operation("GET", "/agents", reads.agents, answers={200: http.AgentList}),
    Operation("GET", "/healthz", reads.healthz, answers={200: http.Health}, public=True),
    Operation("GET", "/readyz", reads.readyz, answers={200: http.Health}, public=True),
)

_PLACE = "#/components/schemas/"
_LINKS = {
    each.name: {"operationId": each.name, "parameters": {"task_id": "$response.body#/taskId"}}
    for each in OPERATIONS
    if "{task_id}" in each.path
}
"""OpenAPI links to the operations on a run."""
_HEADERS = {
    "Rxloop-Deltas": {
        "description": "Of a stream: `live` has the deltas as they are made, `kept` those that the log keeps, `none` "
        "whole messages alone.",
        "schema": {"type": "string", "enum": [*get_args(Deltas)]},
    }
}
_IDS = {"task_id": "The run.", "context_id": "The conversation."}


def document(*, secured: bool) -> dict[str, Any]:
    """Generate the OpenAPI document.

    Args:
        secured: Whether clients must authenticate.
    """
    bodies: list[Any] = [(each.body, "validation") for each in OPERATIONS if each.body is not None]
    answers: list[Any] = [
        (model, "serialization") for each in OPERATIONS for model in each.answers.values() if model is not None
    ]
    models: list[Any] = [*bodies, *answers, (Problem, "serialization")]
    refs, schemas = models_json_schema(models, ref_template=f"{_PLACE}{{model}}")
    paths: dict[str, Any] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, refs, secured)
    components: dict[str, Any] = {"schemas": schemas["$defs"]}
    if secured:
        components["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
    info = {"title": "rxloop", "version": __version__, "description": "Runs of agents, as streams of events."}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": components}


def _operation(operation: Operation, refs: Any, secured: bool) -> dict[str, Any]:
    error = {"application/json": {"schema": refs[Problem, "serialization"]}}
    made: dict[str, Any] = {
        "operationId": operation.name,
        "summary": (inspect.getdoc(operation.handle) or "").splitlines()[0],
        "parameters": [*_parameters(operation)],
        "responses": {
            **{str(status): _answer(operation, status, refs) for status in operation.answers},
            "default": {"description": "An error.", "content": error},
        },
    }
    if secured and not operation.public:
        made["security"] = [{"bearer": []}]
        made["responses"]["401"] = {"description": "Nobody knows who asks.", "content": error}
    if operation.body is not None:
        schema = refs[operation.body, "validation"]
        made["requestBody"] = {
            "required": any(each.is_required() for each in operation.body.model_fields.values()),
            "content": {"application/json": {"schema": schema}},
        }
    return made


def _answer(operation: Operation, status: int, refs: Any) -> dict[str, Any]:
    model = operation.answers[status]
    content: dict[str, Any] = {each: {"schema": {}} for each in operation.others}
    headers: dict[str, Any] = {}
    if model is not None:
        content["application/json"] = {"schema": refs[model, "serialization"]}
    if operation.streams and status == 200:
        for form in (SSE, NDJSON):
            content[form.media_type] = {}
        headers = {"headers": _HEADERS}
    links = {"links": _LINKS} if model is RunInfo else {}
    said = "Nothing more comes." if status == 204 else "As asked."
    return {"description": said, **({"content": content} if content else {}), **headers, **links}


def _parameters(operation: Operation) -> Iterable[dict[str, Any]]:
    for name, said in _IDS.items():
        if f"{{{name}}}" in operation.path:
            yield _parameter(name, "path", {"type": "string"}, said, required=True)
    for name in operation.headers:
        least = 0 if name == "Last-Event-ID" else 1  # Allow an empty value for missing cursors.
        yield _parameter(name, "header", {"type": "string", "minLength": least, "maxLength": 200}, "")
    for name, schema in _properties(operation.query).items():
        made = _parameter(name, "query", _given(schema), schema.pop("description", ""))
        if name == "kinds":
            items = {"type": "string", "enum": sorted(EVENT_TYPES)}
            made |= {"schema": {**made["schema"], "items": items}, "style": "form", "explode": False}
        yield made


def _parameter(name: str, where: str, schema: Any, said: str, *, required: bool = False) -> dict[str, Any]:
    described = {"description": said} if said else {}
    return {"name": name, "in": where, "required": required, "schema": schema, **described}


def _properties(query: type[BaseModel]) -> dict[str, Any]:
    return query.model_json_schema(by_alias=True).get("properties", {})


def _given(schema: dict[str, Any]) -> dict[str, Any]:
    """Simplify the schema of an optional query parameter, which can be omitted but cannot be null."""
    kept = {name: value for name, value in schema.items() if name not in ("title", "description")}
    options = [each for each in kept.pop("anyOf", ()) if each.get("type") != "null"]
    if kept.get("default", ...) is None:
        del kept["default"]
    return {**kept, **(options[0] if options else {})}
