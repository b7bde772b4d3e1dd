"""The routes of the API as data: what is served, and what the OpenAPI document says of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel

from rxloop.protocol.http import (
    AgentList,
    CancelRun,
    ForkRun,
    Health,
    MessageList,
    ResumeRun,
    RunInfo,
    RunPage,
    SayToRun,
    StartRun,
)
from rxloop.server.http import routes
from rxloop.server.http.call import Handler
from rxloop.server.http.queries import EventsQuery, GraphQuery, InfoQuery, Query, RunsQuery, StartQuery


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path."""

    method: Literal["GET", "POST"]
    path: str
    name: str
    handler: Handler
    answers: Mapping[int, type[BaseModel] | None]
    """The model of each answer that is no error; None for one without a body."""
    body: type[BaseModel] | None = None
    query: type[Query] = Query
    streams: bool = False
    """Whether its answer may be a stream of events."""
    headers: tuple[str, ...] = ()
    """The headers that it reads."""
    others: tuple[str, ...] = ()
    """What else than JSON its answer may be."""
    public: bool = False
    """Whether it is for everybody."""


_RUN = "/runs/{task_id}"
OPERATIONS = (
    Operation(
        method="POST",
        path="/runs",
        name="start",
        handler=routes.start,
        body=StartRun,
        query=StartQuery,
        answers={202: RunInfo, 200: RunInfo},
        streams=True,
        headers=("Idempotency-Key",),
    ),
    Operation(method="GET", path="/runs", name="runs", handler=routes.runs, query=RunsQuery, answers={200: RunPage}),
    Operation(method="GET", path=_RUN, name="record", handler=routes.info, query=InfoQuery, answers={200: RunInfo}),
    Operation(
        method="GET",
        path=f"{_RUN}/events",
        name="follow",
        handler=routes.events,
        query=EventsQuery,
        answers={200: None, 204: None},
        streams=True,
        headers=("Last-Event-ID",),
    ),
    Operation(
        method="POST",
        path=f"{_RUN}/resume",
        name="answer",
        handler=routes.resume,
        body=ResumeRun,
        query=StartQuery,
        answers={202: RunInfo, 200: RunInfo},
        streams=True,
    ),
    Operation(method="POST", path=f"{_RUN}/say", name="say", handler=routes.say, body=SayToRun, answers={202: RunInfo}),
    Operation(
        method="POST",
        path=f"{_RUN}/cancel",
        name="cancel",
        handler=routes.cancel,
        body=CancelRun,
        answers={200: RunInfo, 202: RunInfo},
    ),
    Operation(
        method="POST", path=f"{_RUN}/fork", name="fork", handler=routes.fork, body=ForkRun, answers={202: RunInfo}
    ),
    Operation(
        method="GET",
        path=f"{_RUN}/graph",
        name="graph",
        handler=routes.graph,
        query=GraphQuery,
        answers={200: None},
        others=("application/json", "text/plain", "text/html"),
    ),
    Operation(
        method="GET",
        path="/contexts/{context_id}/messages",
        name="messages",
        handler=routes.messages,
        answers={200: MessageList},
    ),
    Operation(method="GET", path="/agents", name="agents", handler=routes.agents, answers={200: AgentList}),
    Operation(method="GET", path="/healthz", name="healthz", handler=routes.alive, answers={200: Health}, public=True),
    Operation(method="GET", path="/readyz", name="readyz", handler=routes.ready, answers={200: Health}, public=True),
)
