"""Requests, query parameters and JSON responses of the HTTP API."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel
from starlette.requests import Request
from starlette.responses import Response

from rxloop.operators.views import EventView
from rxloop.operators.views.make_view import ViewOutput, make_view
from rxloop.pipeline.log_retry import read_log
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.events import Event, GapEvent, State
from rxloop.protocol.ids import Id, make_conversation_key
from rxloop.server.core.adapter import Call, OnDisconnect, read_path_id
from rxloop.server.core.errors import Refused
from rxloop.server.core.stream import NDJSON, SSE, FrameWriter

B = TypeVar("B")
Q = TypeVar("Q")


@dataclass(frozen=True, slots=True)
class ApiCall(Call[B, Q]):
    """An HTTP API request."""

    settings: frozenset[str]
    """Model settings that clients may set."""
    models: tuple[str, ...] = ()
    """Models that clients may choose for forks."""
    cases: Path | None = None
    """JSONL file to which clients may append cases."""

    @property
    def task_id(self) -> str:
        """Run id in the path."""
        return self.request.path_params["task_id"]

    async def record(self) -> RunRecord:
        """Return the run identified by the path.

        Raises:
            Refused: If the run does not exist or is not accessible to the principal.
        """
        return await self.gateway.find_run(self.principal, self.task_id)

    async def find_conversation(self, owner: str | None) -> tuple[str, str]:
        """Return the conversation id in the path, and the owner of the conversation that the principal may read.

        Args:
            owner: Requested owner. If None, it is the principal. With access to runs of other principals, it is the
                only owner of conversations with this id if the principal has none.

        Raises:
            Refused: If the conversation does not exist or is not accessible to the principal, or if several owners have
                a conversation with this id.
        """
        context_id, log = read_path_id(self.request, "context_id"), self.gateway.runtime.log
        may_see_others = "others" in self.principal.scopes
        wanted = self.principal.id if owner is None or not may_see_others else owner
        key = make_conversation_key(context_id, wanted)
        if await read_log(log.list_conversation, key, limit=1) and owner in (None, wanted):
            return context_id, wanted
        if may_see_others and owner is None:
            latest = await read_log(log.list_runs, context_id=context_id, latest_only=True, limit=2)
            if len(latest) > 1:
                message = "several owners have a conversation with this id"
                raise Refused(409, "ambiguous", message, fields={"owner": "required"})
            if latest:
                return context_id, latest[0].owner or ""
        raise Refused(404, "not_found", "the conversation does not exist")

    def check_visibility(self, visibility: str) -> None:
        """Check permission to read internal data, if requested.

        Raises:
            Refused: If the principal does not have the `internal` scope.
        """
        if visibility == "all" and "internal" not in self.principal.scopes:
            raise Refused(403, "forbidden", "visibility=all requires the internal scope")

    def path(self, *parts: str) -> str:
        """Return an absolute path within this API, including its mount prefix."""
        return "/".join((self.request.scope.get("root_path", "").rstrip("/"), *parts))


def write_json(model: BaseModel, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Create a JSON response from a model."""
    all_headers = {"cache-control": "no-store", **(headers or {})}
    return Response(model.model_dump_json(by_alias=True), status, all_headers, media_type="application/json")


def _split_list(value: Any) -> Any:
    return value.split(",") if isinstance(value, str) else value


class Query(BaseModel):
    """Base class for query parameters. Unknown parameters are rejected."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, validate_by_alias=True, frozen=True)


Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class StartQuery(Query):
    """Query parameters for starting or resuming a run."""

    wait: Seconds = 0
    """Timeout in seconds for waiting until the run is idle. It is shortened to the limit of the server."""
    on_disconnect: OnDisconnect | None = None
    """Action if the client of a streaming response, or of a request with `wait`, disconnects."""


class InfoQuery(Query):
    """Query parameters for reading a run, including the seconds to wait until the run is idle."""

    wait: Seconds = 0


Visibility = Literal["public", "all"]

_Seq = Annotated[int, Field(ge=1, le=2**53)]


_MaxText = Annotated[int, Field(ge=256, le=2**53)] | None
"""Number of characters to which long values are shortened. All ids and names of kinds are shorter."""


class EventsQuery(Query):
    """Query parameters for an event stream."""

    after: Annotated[str, Field(max_length=200)] | None = None
    """Last received event cursor. The `Last-Event-ID` header takes precedence."""
    first: _Seq | None = Field(default=None, alias="from")
    """`seq` of the first event of a range. The response then contains at most 400 recorded events, and ends."""
    last: _Seq | None = Field(default=None, alias="to")
    """`seq` of the last event of a range."""
    max_text: _MaxText = None
    """Number of characters to which long texts, lists and objects of a range of JSON lines are shortened."""
    kinds: Annotated[list[str], BeforeValidator(_split_list), Field(min_length=1)] | None = None
    visibility: Visibility = "public"
    branch: Annotated[str, Field(max_length=128)] | None = None
    """Only events of this branch; an empty string selects the main branch."""
    nested: bool = True
    """True to include events of nested agents."""
    until: Literal["attempt", "end"] = "end"
    """Use `end` to stream until the run is over, including pauses."""
    speed: Annotated[float, Field(gt=0, le=1_000_000, allow_inf_nan=False)] | None = None
    """Replay speed for recorded events; 1 is the original speed."""
    on_disconnect: OnDisconnect | None = None
    """Action if the client disconnects."""


class PageQuery(Query):
    """Pagination parameters."""

    after: Id | None = None
    """Value of `next` in the previous page."""
    limit: Annotated[int, Field(ge=1, le=100)] = 20


class ContextQuery(Query):
    """Query parameters for reading a conversation."""

    owner: str | None = None
    """Owner of the conversation, for clients with the scope `others`. An empty string selects runs without an owner."""


class RunsInContextQuery(ContextQuery, PageQuery):
    """Query parameters for listing the runs of a conversation."""

    state: State | None = None


def _read_time(value: Any) -> Any:
    """Convert a time in ISO 8601 to milliseconds since 1970. UTC is the default time zone."""
    try:
        time = datetime.fromisoformat(value.upper())
        return round((time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise ValueError("must be a time in ISO 8601, such as 2026-11-25T12:00:00Z") from None


_TIME_SCHEMA = {"type": "string", "format": "date-time"}
_Time = Annotated[int, BeforeValidator(_read_time), WithJsonSchema(_TIME_SCHEMA)]


class RunsQuery(PageQuery):
    """Query parameters for listing runs."""

    state: State | None = None
    context_id: Id | None = None
    agent: Annotated[str, Field(max_length=200)] | None = None
    owner: Annotated[str, Field(max_length=200)] | None = None
    """Owner of the runs, for clients with the scope `others`. An empty string selects runs without an owner."""
    since: _Time | None = None
    """Earliest creation time."""
    until: _Time | None = None
    """Creation time limit, exclusive."""
    model: Annotated[str, Field(max_length=200)] | None = None
    """Name of the model with which the run started."""
    unfinished: bool = False
    """True to exclude completed and failed runs."""
    q: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """Text in the questions, answers, tool names or ids of a run, ignoring case."""
    details: bool = False
    """True to include the title, duration, model, calls and problems of each run."""


class PendingQuery(PageQuery):
    """Query parameters for listing runs with unanswered questions."""

    context_id: Id | None = None
    agent: str | None = None


class StateQuery(Query):
    """Query parameters for reading the state of a run."""

    seq: _Seq | None = None
    """Sequence number of the last event to include; defaults to the latest event."""
    messages_from: Annotated[int, Field(ge=0, le=2**53)] | None = None
    """Index of the first message to include. A client that has the earlier messages does not need them again."""
    max_text: _MaxText = None
    """Number of characters to which long texts, lists and objects are shortened."""
    visibility: Visibility = "public"


class OutlineQuery(Query):
    """Query parameters for the outline of a run."""

    after: Annotated[int, Field(ge=0, le=2**53)] = 0
    """`last` of the previous page."""
    limit: Annotated[int, Field(ge=1, le=20_000)] = 20_000
    """Maximum number of events."""
    visibility: Visibility = "public"


class VisibilityQuery(Query):
    """Query parameters for data that may include internal data."""

    visibility: Visibility = "public"


class SentRequestQuery(VisibilityQuery):
    """Query parameters for a model request."""

    max_text: _MaxText = None
    """Number of characters to which long texts, lists and objects are shortened."""


class RequestsQuery(VisibilityQuery):
    """Query parameters for the model requests of a run."""

    after: Annotated[int, Field(ge=0, le=2**53)] = 0
    """`next` of the previous page."""
    limit: Annotated[int, Field(ge=1, le=5_000)] = 5_000
    """Maximum number of requests."""


class DiffQuery(VisibilityQuery):
    """Query parameters for comparing two runs."""

    other: Id = Field(alias="with")
    """Id of the other run."""


class SearchQuery(VisibilityQuery):
    """Query parameters for searching a run."""

    q: Annotated[str, Field(min_length=1, max_length=200)]
    """Text to find, ignoring case."""
    kinds: Annotated[list[str], BeforeValidator(_split_list), Field(min_length=1)] | None = None
    after: Annotated[int, Field(ge=0, le=2**53)] = 0
    """`next` of the previous response."""
    limit: Annotated[int, Field(ge=1, le=200)] = 50
    """Number of hits after which the search stops at the end of an event."""


class RecentProblemsQuery(PageQuery, VisibilityQuery):
    """Query parameters for listing the problems of all runs."""

    since: _Time | None = None
    """Earliest creation time of the runs."""


class SearchRunsQuery(VisibilityQuery):
    """Query parameters for searching all runs."""

    q: Annotated[str, Field(min_length=1, max_length=200)]
    """Text to find, ignoring case."""
    kinds: Annotated[list[str], BeforeValidator(_split_list), Field(min_length=1)] | None = None
    since: _Time | None = None
    """Earliest creation time of the runs."""
    after: Annotated[str, Field(max_length=300, pattern=r"^[^/].*/[0-9]{1,16}$")] | None = None
    """`next` of the previous response."""
    limit: Annotated[int, Field(ge=1, le=200)] = 50
    """Number of hits after which the search stops."""


class GraphQuery(Query):
    """Query parameters for the thought graph."""

    form: Literal["json", "mermaid", "html"] = "json"


def make_event_view(query: EventsQuery) -> EventView:
    """Create the view that selects events for a client, whether live, stored or replayed.

    ::

        source                       --a--i--b--g--a--|      i internal, g a gap
        make_event_view(kinds=a)     --a--------g--a--|

    Gap events are always included, because they report missing events.

    Args:
        query: Query of the client.
    """
    choose = make_event_selector(query)

    def select(out: ViewOutput[Event]) -> Callable[[Event], None]:
        emit = out.emit

        def take(event: Event) -> None:
            selected = choose(event)
            if selected is not None:
                emit(selected)

        return take

    return cast("EventView", make_view(select))


def make_event_selector(query: EventsQuery) -> Callable[[Event], Event | None]:
    """Create a function that returns the client's version of an event, or None to skip the event."""
    kinds = frozenset(query.kinds) if query.kinds is not None else None
    internal, nested = query.visibility == "all", query.nested
    every_branch, branch = query.branch is None, query.branch or None

    def choose(event: Event) -> Event | None:
        if not isinstance(event, GapEvent) and (
            (kinds is not None and event.kind not in kinds)
            or not (nested or event.parent_task_id is None)
            or not (every_branch or event.branch == branch)
        ):
            return None
        return event if internal else event.to_public()

    return choose


def find_stream_format(request: Request) -> FrameWriter[Event] | None:
    """Return the streaming format requested by the `Accept` header, or None."""
    accepted = _parse_accept(request)
    forms = [form for form in (SSE, NDJSON) if form.media_type in accepted]
    return min(forms, key=lambda form: accepted.index(form.media_type)) if forms else None


def prefers_events(request: Request) -> bool:
    """Return True if the `Accept` header names server-sent events before JSON."""
    accepted = _parse_accept(request)
    return SSE.media_type in accepted and "application/json" not in accepted[: accepted.index(SSE.media_type)]


def choose_event_format(request: Request) -> FrameWriter[Event]:
    """Select the event stream format, which defaults to SSE.

    Raises:
        Refused: If the client accepts no supported format.
    """
    form = find_stream_format(request)
    if form is None and not {"*/*", "text/*"} & {*_parse_accept(request)}:
        raise Refused(406, "not_acceptable", "Accept must include text/event-stream or application/x-ndjson")
    return form or SSE


def _parse_accept(request: Request) -> list[str]:
    """Return the accepted media types in the order of the header."""
    accepted: list[str] = []
    for each in (request.headers.get("accept") or "*/*").lower().split(","):
        media_type, *parameters = (part.strip() for part in each.split(";"))
        if not any(part.replace(" ", "") in ("q=0", "q=0.0", "q=0.00", "q=0.000") for part in parameters):
            accepted.append(media_type)
    return accepted
