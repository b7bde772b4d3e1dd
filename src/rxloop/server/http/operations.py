"""The routes of the API as data: what is served, and what the OpenAPI document says of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel

from rxloop.protocol import http
from rxloop.protocol.http import RunInfo
from rxloop.server.http import routes
from rxloop.server.http.call import Handler
from rxloop.server.http.queries import EventsQuery, GraphQuery, InfoQuery, Query, RunsQuery, StartQuery


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path."""

    method: Literal["GET", "POST"]
    path: str
    handler: Handler
    answers: Mapping[int, type[BaseModel] | None]
    """The model of each answer that is no error; None for one without."""
    body: type[BaseModel] | None = None
    query: type[Query] = Query
    headers: tuple[str, ...] = ()
    """The headers that it reads."""
    streams: bool = False
    """Whether its answer may be a stream of events."""
    others: tuple[str, ...] = ()
    """The media types of an answer without a model."""
    public: bool = False
    """Whether it is for everybody."""

    @property
    def name(self) -> str:
        """What it is called in the document."""
        return self.handler.__name__


_RUN = "/runs/{task_id}"
_CONTEXT = "/contexts/{context_id}"
_STARTED = {202: RunInfo, 200: RunInfo}
_EVENTS = {200: None, 204: None}
_DRAWN = ("application/json", "text/plain", "text/html")
OPERATIONS = (
    Operation("POST", "/runs", routes.start, _STARTED, http.StartRun, StartQuery, ("Idempotency-Key",), streams=True),
    Operation("GET", "/runs", routes.runs, {200: http.RunPage}, query=RunsQuery),
    Operation("GET", _RUN, routes.record, {200: RunInfo}, query=InfoQuery),
    Operation("GET", f"{_RUN}/events", routes.events, _EVENTS, None, EventsQuery, ("Last-Event-ID",), streams=True),
    Operation("POST", f"{_RUN}/resume", routes.resume, _STARTED, http.ResumeRun, StartQuery, streams=True),
    Operation("POST", f"{_RUN}/say", routes.say, {202: RunInfo}, http.SayToRun),
    Operation("POST", f"{_RUN}/cancel", routes.cancel, _STARTED, http.CancelRun),
    Operation("POST", f"{_RUN}/fork", routes.fork, {202: RunInfo}, http.ForkRun),
    Operation("GET", f"{_RUN}/graph", routes.graph, {200: None}, query=GraphQuery, others=_DRAWN),
    Operation("GET", f"{_CONTEXT}/messages", routes.messages, {200: http.MessageList}),
    Operation("GET", "/agents", routes.agents, {200: http.AgentList}),
    Operation("GET", "/healthz", routes.healthz, {200: http.Health}, public=True),
    Operation("GET", "/readyz", routes.readyz, {200: http.Health}, public=True),
)
