"""Requests of the HTTP API: the call, its query parameters, and JSON answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel
from starlette.requests import Request
from starlette.responses import Response

from rxloop.operators.views import EventView
from rxloop.operators.views.make_view import ViewOutput, make_view
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.events import Event, GapEvent, State
from rxloop.protocol.ids import Id
from rxloop.server.core.adapter import Call, OnDisconnect, id_in_path
from rxloop.server.core.errors import Refused
from rxloop.server.core.stream import NDJSON, SSE, FrameWriter

B = TypeVar("B")
Q = TypeVar("Q")


@dataclass(frozen=True, slots=True)
class ApiCall(Call[B, Q]):
    """A request of the HTTP API."""

    settings: frozenset[str]
    """The settings of model calls that clients may choose."""

    @property
    def task_id(self) -> str:
        """The run in the address."""
        return self.request.path_params["task_id"]

    async def record(self) -> RunRecord:
        """The run in the address.

        Raises:
            Refused: There is none, or it is somebody else's.
        """
        return await self.gateway.find_run(self.principal, self.task_id)

    async def context_id(self) -> str:
        """The conversation in the address.

        Raises:
            Refused: There is none, or it is somebody else's.
        """
        context_id = id_in_path(self.request, "context_id")
        if not await self.gateway.find_context(self.principal, context_id):
            raise Refused(404, "not_found", "there is no such conversation")
        return context_id

    def check_visibility(self, visibility: str) -> None:
        """See that whoever asks may have what is not for clients, if it is asked for.

        Raises:
            Refused: It needs the scope `internal`.
        """
        if visibility == "all" and "internal" not in self.principal.scopes:
            raise Refused(403, "forbidden", "visibility=all is not for you")

    def path(self, *parts: str) -> str:
        """The path of something of this API, wherever it is mounted."""
        return "/".join((self.request.scope.get("root_path", "").rstrip("/"), *parts))


def written(model: BaseModel, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Answer with a model."""
    given = {"cache-control": "no-store", **(headers or {})}
    return Response(model.model_dump_json(by_alias=True), status, given, media_type="application/json")


def _listed(value: Any) -> Any:
    return value.split(",") if isinstance(value, str) else value


class Query(BaseModel):
    """A query; a field that there is not is refused."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, validate_by_alias=True, frozen=True)


class StartQuery(Query):
    """What to answer with when a run begins, or goes on."""

    wait: Annotated[float, Field(ge=0, le=60, allow_inf_nan=False)] = 0
    """Seconds to wait for the run to come to rest."""
    on_disconnect: OnDisconnect | None = None
    """Of an answer that streams: what becomes of the run if the client leaves."""


class InfoQuery(Query):
    """How long to wait for the run to come to rest."""

    wait: Annotated[float, Field(ge=0, le=60, allow_inf_nan=False)] = 0


class EventsQuery(Query):
    """Which events of a run, and how."""

    after: Annotated[str, Field(max_length=200)] | None = None
    """The cursor of the last event that the client has; the header Last-Event-ID goes before it."""
    kinds: Annotated[list[str], BeforeValidator(_listed), Field(min_length=1)] | None = None
    visibility: Literal["public", "all"] = "public"
    branch: Annotated[str, Field(max_length=128)] | None = None
    """Only this line of a strategy; the empty text is the main line."""
    nested: bool = True
    """Whether the events of nested agents come, too."""
    until: Literal["attempt", "end"] = "end"
    """Whether the stream goes on over pauses, until the run is over."""
    speed: Annotated[float, Field(gt=0, le=1_000_000, allow_inf_nan=False)] | None = None
    """Replay what there is: 1 is the recorded pace."""
    on_disconnect: OnDisconnect | None = None
    """What becomes of the run if the client leaves."""


class PageQuery(Query):
    """Which page of a list."""

    after: Id | None = None
    """`next` of the page before."""
    limit: Annotated[int, Field(ge=1, le=100)] = 20


class RunsInContextQuery(PageQuery):
    """Which runs of a conversation."""

    state: State | None = None


class RunsQuery(RunsInContextQuery):
    """Which runs."""

    context_id: Id | None = None


class StateQuery(Query):
    """After which event, and for whom."""

    seq: Annotated[int, Field(ge=1, le=2**53)] | None = None
    """The last event that counts; by default the newest one."""
    visibility: Literal["public", "all"] = "public"


class GraphQuery(Query):
    """How the thoughts are drawn."""

    form: Literal["json", "mermaid", "html"] = "json"


def selected(query: EventsQuery) -> EventView:
    """Make the one view that decides what a client gets: live, out of the log, and replayed.

    ::

        source                       --a--i--b--g--a--|      i internal, g a gap
        selected(kinds=a)            --a--------g--a--|

    A gap always passes: it says what is missing.

    Args:
        query: What the client has asked for.
    """
    wanted = chosen(query)

    def select(out: ViewOutput[Event]) -> Callable[[Event], None]:
        emit = out.emit

        def take(event: Event) -> None:
            shown = wanted(event)
            if shown is not None:
                emit(shown)

        return take

    return cast("EventView", make_view(select))


def chosen(query: EventsQuery) -> Callable[[Event], Event | None]:
    """Make the function that gives of an event what the client gets; None for nothing."""
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


def streams_in(request: Request) -> FrameWriter[Event] | None:
    """In what form a client wants events, if it does: by its `Accept`."""
    accepted = _accepted(request)
    forms = [form for form in (SSE, NDJSON) if form.media_type in accepted]
    return min(forms, key=lambda form: accepted.index(form.media_type)) if forms else None


def format_of_events(request: Request) -> FrameWriter[Event]:
    """In what form a client gets events that it has asked for.

    Raises:
        Refused: It takes neither.
    """
    form = streams_in(request)
    if form is None and not {"*/*", "text/*"} & {*_accepted(request)}:
        raise Refused(406, "not_acceptable", "events come as text/event-stream or as application/x-ndjson")
    return form or SSE


def _accepted(request: Request) -> list[str]:
    """The media types that a client takes, in its order."""
    accepted: list[str] = []
    for each in (request.headers.get("accept") or "*/*").lower().split(","):
        media_type, *parameters = (part.strip() for part in each.split(";"))
        if not any(part.replace(" ", "") in ("q=0", "q=0.0", "q=0.00", "q=0.000") for part in parameters):
            accepted.append(media_type)
    return accepted
