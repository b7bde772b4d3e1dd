"""Routes and OpenAPI document of the HTTP API."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, models_json_schema
from typing_extensions import override

from rxloop._version import __version__
from rxloop.protocol import http_api as http
from rxloop.protocol.envelope import EVENT_TYPES
from rxloop.protocol.http_api import Deltas, Problem, RunInfo
from rxloop.protocol.http_api.comparison import RunComparison
from rxloop.protocol.http_api.experiments import AddCase, AddedCase, ExperimentInfo, ExperimentPage
from rxloop.protocol.http_api.inspection import AccessInfo, Outline, ProblemList, ProblemPage, SearchPage, SearchResults
from rxloop.protocol.http_api.requests import RequestList, SentRequest
from rxloop.server.core.adapter import Endpoint
from rxloop.server.core.stream import NDJSON, SSE
from rxloop.server.http import comparison, exports, findings, inspection, model_requests, reads, run_lists
from rxloop.server.http import experiments as trials
from rxloop.server.http import operations as runs
from rxloop.server.http.requests import (
    ContextQuery,
    DiffQuery,
    EventsQuery,
    GraphQuery,
    InfoQuery,
    OutlineQuery,
    PageQuery,
    PendingQuery,
    Query,
    RecentProblemsQuery,
    RequestsQuery,
    RunsInContextQuery,
    RunsQuery,
    SearchQuery,
    SearchRunsQuery,
    SentRequestQuery,
    StartQuery,
    StateQuery,
    VisibilityQuery,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation(Endpoint):
    """Endpoint with OpenAPI metadata."""

    query: type[Query] = Query
    responses: Mapping[int, type[BaseModel] | None]
    """Response model by status code, without errors. None for responses without a model."""
    headers: tuple[str, ...] = ()
    """Supported request header names."""
    streams: bool = False
    """True if the response may be an event stream."""
    media_types: tuple[str, ...] = ()
    """Media types for responses without a model."""

    @property
    def name(self) -> str:
        """Operation id in the OpenAPI document."""
        return self.handle.__name__


_RUN = "/runs/{task_id}"
_CONTEXT = "/contexts/{context_id}"
_START = {202: RunInfo, 200: RunInfo}
_EVENT = {200: None, 204: None, 304: None}
_GRAPH_TYPES = ("application/json", "text/plain", "text/html")
_KEY = ("Idempotency-Key",)
_CURSOR = ("Last-Event-ID",)
OPERATIONS = (
    Operation(
        "POST", "/runs", runs.start, http.StartRun, query=StartQuery, responses=_START, headers=_KEY, streams=True
    ),
    Operation(
        "GET", "/runs", run_lists.runs, query=RunsQuery, responses={200: http.RunPage}, media_types=(SSE.media_type,)
    ),
    Operation("GET", "/pending", reads.pending, query=PendingQuery, responses={200: http.RunPage}),
    Operation("GET", _RUN, reads.record, query=InfoQuery, responses={200: RunInfo}),
    Operation(
        "GET", f"{_RUN}/events", inspection.events, query=EventsQuery, responses=_EVENT, headers=_CURSOR, streams=True
    ),
    Operation("POST", f"{_RUN}/resume", runs.resume, http.ResumeRun, query=StartQuery, responses=_START, streams=True),
    Operation("POST", f"{_RUN}/say", runs.say, http.SendMessage, responses={202: RunInfo}),
    Operation("POST", f"{_RUN}/goals", runs.goals, http.UpdateGoals, responses={202: RunInfo}),
    Operation("POST", f"{_RUN}/cancel", runs.cancel, http.CancelRun, responses=_START),
    Operation("POST", f"{_RUN}/fork", runs.fork, http.ForkRun, responses={202: RunInfo}, headers=_KEY),
    Operation("GET", f"{_RUN}/diff", comparison.diff, query=DiffQuery, responses={200: RunComparison}),
    Operation("GET", f"{_RUN}/outline", inspection.outline, query=OutlineQuery, responses={200: Outline}),
    Operation("GET", f"{_RUN}/problems", findings.problems, query=VisibilityQuery, responses={200: ProblemList}),
    Operation("GET", f"{_RUN}/search", findings.search, query=SearchQuery, responses={200: SearchPage}),
    Operation("GET", "/problems", findings.recent_problems, query=RecentProblemsQuery, responses={200: ProblemPage}),
    Operation("GET", "/search", findings.search_runs, query=SearchRunsQuery, responses={200: SearchResults}),
    Operation(
        "GET", f"{_RUN}/requests", model_requests.model_requests, query=RequestsQuery, responses={200: RequestList}
    ),
    Operation(
        "GET",
        f"{_RUN}/requests/{{seq}}",
        model_requests.model_request,
        query=SentRequestQuery,
        responses={200: SentRequest},
    ),
    Operation("GET", f"{_RUN}/state", inspection.state, query=StateQuery, responses={200: http.StateInfo}),
    Operation(
        "GET",
        f"{_RUN}/export",
        exports.export,
        query=exports.ExportQuery,
        responses={200: None},
        media_types=("application/octet-stream",),
    ),
    Operation("POST", f"{_RUN}/case", exports.add_case, AddCase, responses={201: AddedCase}),
    Operation("GET", f"{_RUN}/graph", reads.graph, query=GraphQuery, responses={200: None}, media_types=_GRAPH_TYPES),
    Operation("GET", "/contexts", reads.contexts, query=PageQuery, responses={200: http.ContextPage}),
    Operation("GET", f"{_CONTEXT}/runs", reads.context_runs, query=RunsInContextQuery, responses={200: http.RunPage}),
    Operation("GET", f"{_CONTEXT}/messages", reads.messages, query=ContextQuery, responses={200: http.MessageList}),
    Operation(
        "GET", "/experiments", trials.experiments, query=trials.ExperimentsQuery, responses={200: ExperimentPage}
    ),
    Operation("GET", "/experiments/{experiment}", trials.experiment, responses={200: ExperimentInfo}),
    Operation("GET", "/agents", reads.agents, responses={200: http.AgentList}),
    Operation("GET", "/me", inspection.me, responses={200: AccessInfo}),
    Operation("GET", "/healthz", reads.healthz, responses={200: http.Health}, public=True),
    Operation("GET", "/readyz", reads.readyz, responses={200: http.Health}, public=True),
)

_SCHEMA_PREFIX = "#/components/schemas/"
_LINKS = {
    each.name: {"operationId": each.name, "parameters": {"task_id": "$response.body#/taskId"}}
    for each in OPERATIONS
    if "{task_id}" in each.path
}
"""OpenAPI links to the operations on a run."""
_HEADERS = {
    "Rxloop-Deltas": {
        "description": "Deltas in the stream: `live` for all new deltas, `kept` for the deltas stored in the log, "
        "`none` for complete messages only.",
        "schema": {"type": "string", "enum": [*get_args(Deltas)]},
    }
}
_DESCRIPTIONS = {204: "There are no more events.", 304: "The range of events has not changed."}
_IDS = {
    "task_id": "Id of the run.",
    "experiment": "Name of the experiment.",
    "context_id": "Id of the conversation.",
    "seq": "`seq` of the `llm-call` event.",
}
_ID_SCHEMAS = {"seq": {"type": "integer", "minimum": 1}}


def make_document(*, secured: bool) -> dict[str, Any]:
    """Generate the OpenAPI document.

    Args:
        secured: Whether clients must authenticate.
    """
    bodies: list[Any] = [(each.body, "validation") for each in OPERATIONS if each.body is not None]
    responses: list[Any] = [
        (model, "serialization") for each in OPERATIONS for model in each.responses.values() if model is not None
    ]
    models: list[Any] = [*bodies, *responses, (Problem, "serialization")]
    refs, schemas = models_json_schema(
        models, ref_template=f"{_SCHEMA_PREFIX}{{model}}", schema_generator=_SchemaGenerator
    )
    paths: dict[str, Any] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _describe_operation(operation, refs, secured)
    components: dict[str, Any] = {"schemas": schemas["$defs"]}
    if secured:
        components["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
    info = {"title": "rxloop", "version": __version__, "description": "Agent runs as event streams."}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": components}


class _SchemaGenerator(GenerateJsonSchema):
    """Generator that requires the fields of responses, except for those that responses can omit."""

    @override
    def field_is_required(self, field: Any, total: bool) -> bool:
        if self.mode == "serialization":
            return field.get("serialization_exclude_if") is None
        return super().field_is_required(field, total)


def _describe_operation(operation: Operation, refs: Any, secured: bool) -> dict[str, Any]:
    error = {"application/json": {"schema": refs[Problem, "serialization"]}}
    result: dict[str, Any] = {
        "operationId": operation.name,
        "summary": (inspect.getdoc(operation.handle) or "").splitlines()[0],
        "parameters": [*_list_parameters(operation)],
        "responses": {
            **{str(status): _describe_response(operation, status, refs) for status in operation.responses},
            "default": {"description": "An error.", "content": error},
        },
    }
    if secured and not operation.public:
        result["security"] = [{"bearer": []}]
        result["responses"]["401"] = {"description": "Authentication failed.", "content": error}
    if operation.body is not None and issubclass(operation.body, BaseModel):
        schema = refs[operation.body, "validation"]
        result["requestBody"] = {
            "required": any(each.is_required() for each in operation.body.model_fields.values()),
            "content": {"application/json": {"schema": schema}},
        }
    return result


def _describe_response(operation: Operation, status: int, refs: Any) -> dict[str, Any]:
    model = operation.responses[status]
    content: dict[str, Any] = {each: {"schema": {}} for each in operation.media_types}
    headers: dict[str, Any] = {}
    if model is not None:
        content["application/json"] = {"schema": refs[model, "serialization"]}
    if operation.streams and status == 200:
        for form in (SSE, NDJSON):
            content[form.media_type] = {}
        headers = {"headers": _HEADERS}
    links = {"links": _LINKS} if model is RunInfo else {}
    return {
        "description": _DESCRIPTIONS.get(status, "Success."),
        **({"content": content} if content else {}),
        **headers,
        **links,
    }


def _list_parameters(operation: Operation) -> Iterable[dict[str, Any]]:
    for name, description in _IDS.items():
        if f"{{{name}}}" in operation.path:
            yield _make_parameter(name, "path", _ID_SCHEMAS.get(name, {"type": "string"}), description, required=True)
    for name in operation.headers:
        min_length = 0 if name == "Last-Event-ID" else 1  # Allow an empty value for missing cursors.
        yield _make_parameter(name, "header", {"type": "string", "minLength": min_length, "maxLength": 200}, "")
    schemas = operation.query.model_json_schema(by_alias=True)
    for name, schema in schemas.get("properties", {}).items():
        description, required = schema.pop("description", ""), name in schemas.get("required", ())
        result = _make_parameter(name, "query", _simplify_schema(schema), description, required=required)
        if name == "kinds":
            items = {"type": "string", "enum": sorted(EVENT_TYPES)}
            result |= {"schema": {**result["schema"], "items": items}, "style": "form", "explode": False}
        yield result


def _make_parameter(name: str, where: str, schema: Any, description: str, *, required: bool = False) -> dict[str, Any]:
    described = {"description": description} if description else {}
    return {"name": name, "in": where, "required": required, "schema": schema, **described}


def _simplify_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Simplify the schema of an optional query parameter, which can be omitted but cannot be null."""
    simplified = {name: value for name, value in schema.items() if name not in ("title", "description")}
    options = [each for each in simplified.pop("anyOf", ()) if each.get("type") != "null"]
    if simplified.get("default", ...) is None:
        del simplified["default"]
    return {**simplified, **(options[0] if options else {})}
