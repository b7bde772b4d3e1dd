"""The routes of the API as data: what is served, and what the OpenAPI document says of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel

from rxloop.protocol import http
from rxloop.protocol.http import RunInfo
from rxloop.server.http import acting, reading, telling
from rxloop.server.http.call import Handler
from rxloop.server.http.queries import (
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
    Operation("POST", "/runs", acting.start, _STARTED, http.StartRun, StartQuery, ("Idempotency-Key",), streams=True),
    Operation("GET", "/runs", telling.runs, {200: http.RunPage}, query=RunsQuery),
    Operation("GET", _RUN, telling.record, {200: RunInfo}, query=InfoQuery),
    Operation("GET", f"{_RUN}/events", reading.events, _EVENTS, None, EventsQuery, ("Last-Event-ID",), streams=True),
    Operation("POST", f"{_RUN}/resume", acting.resume, _STARTED, http.ResumeRun, StartQuery, streams=True),
    Operation("POST", f"{_RUN}/say", acting.say, {202: RunInfo}, http.SayToRun),
    Operation("POST", f"{_RUN}/cancel", acting.cancel, _STARTED, http.CancelRun),
    Operation("POST", f"{_RUN}/fork", acting.fork, {202: RunInfo}, http.ForkRun),
    Operation("GET", f"{_RUN}/state", telling.state, {200: http.StateInfo}, query=StateQuery),
    Operation("GET", f"{_RUN}/graph", telling.graph, {200: None}, query=GraphQuery, others=_DRAWN),
    Operation("GET", "/contexts", telling.contexts, {200: http.ContextPage}, query=PageQuery),
    Operation("GET", f"{_CONTEXT}/runs", telling.context_runs, {200: http.RunPage}, query=RunsInContextQuery),
    Operation("GET", f"{_CONTEXT}/messages", telling.messages, {200: http.MessageList}),
    Operation("GET", "/agents", telling.agents, {200: http.AgentList}),
    Operation("GET", "/healthz", telling.healthz, {200: http.Health}, public=True),
    Operation("GET", "/readyz", telling.readyz, {200: http.Health}, public=True),
)
