"""Response bodies of the HTTP API for inspecting recorded runs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rxloop.protocol.envelope import Timestamp
from rxloop.protocol.http_api import RunInfo
from rxloop.protocol.messages import Wire
from rxloop.protocol.model import is_empty, is_missing

FAILED, RETRIED, REFUSED, HIDDEN, TRUNCATED, WAITS, VOIDED = 1, 2, 4, 8, 16, 32, 64
"""Bits of `Outline.flags`.

`FAILED`: a failed model or tool call, or a failed run. `RETRIED`: a failed request that is retried, or a repeated call.
`REFUSED`: a call that failed without being started. `HIDDEN`: clients without the scope `internal` do not receive this
event, or only a part of it. `TRUNCATED`: a message that did not end normally, or a compression that could not make the
context small enough. `WAITS`: the run waits for a person or client. `VOIDED`: a discarded call.
"""

UNKNOWN_TIME = -1
"""Value used if a duration is not recorded."""

HIDDEN_KIND = "hidden"
"""Value used instead of the kind if the client must not receive the event."""

MAX_LABEL = 60
"""Maximum number of characters in a label."""


class OutlineNames(Wire):
    """Distinct values of columns. The columns contain indexes of these lists, and index 0 is an empty value."""

    kind: list[str]
    name: list[str]
    step: list[str]
    branch: list[str]
    path: list[list[str]]
    """Names of nested agents, starting with the outermost agent."""
    model: list[str]
    run: list[str]
    """Task ids of nested runs."""
    code: list[str]


class Outline(Wire):
    """Structure of a recorded run. Each column contains one value per durable event."""

    task_id: str
    first: int
    """Sequence number of the first event. Other events follow without gaps."""
    last: int
    """Sequence number of the last event, or `first - 1` if the page is empty."""
    seq: int
    """The `seq` of the newest event in the log."""
    final: bool
    """True if the run is over and no events follow this page."""
    start: Timestamp
    """Timestamp of the event before this page, or of the first event if this is the first page."""
    attempts: list[tuple[int, int]]
    """First `seq` in the page and number of each attempt."""
    names: OutlineNames = Field(alias="dict")
    """Dictionaries of the columns `kind`, `name`, `step`, `branch`, `path`, `model`, `run` and `code`."""
    dt: list[int]
    """Milliseconds since the previous event."""
    kind: list[int]
    name: list[int]
    """Name of a tool, agent, artifact, toolset or custom event, type of a thought, state of a run, or cause of a
    message."""
    step: list[int]
    branch: list[int]
    path: list[int]
    model: list[int]
    """Model of a call."""
    run: list[int]
    """Nested run of the event."""
    code: list[int]
    """Reason of a failed tool call, see `tool-complete`."""
    opens: list[int]
    """The `seq` of the event whose call, question, nested run or attempt this event ends, or 0. For a
    `thought-stream` that merges a branch, the `seq` of the last thought of that branch."""
    flags: list[int]
    """Sum of 1 (failed), 2 (retried), 4 (refused), 8 (something is hidden from clients), 16 (truncated), 32 (waits for
    input), 64 (discarded)."""
    a: list[int]
    """First number. `usage`: input tokens; `content-complete`: milliseconds to the first token, or -1; `tool-complete`:
    milliseconds; `context-compressed`: tokens before; `llm-call`: estimated input tokens; `thought-stream`: `seq` of
    the related thought; `llm-failed`: HTTP status; `checkpoint`: iteration; `artifact-update`: bytes."""
    b: list[int]
    """Second number. `usage`: output tokens; `content-complete`: longest silence in milliseconds, or -1;
    `tool-complete`: bytes of the result; `context-compressed`: tokens after; `llm-call`: messages; `thought-stream`:
    `seq` of the replaced thought; `llm-failed`: milliseconds until the retry, or -1; `checkpoint`: messages."""
    messages: list[int]
    """Number of messages in the history of the run after the event, as in `StateInfo`."""
    calls: list[int]
    """Number of tool calls without a result after the event, as in `StateInfo`."""
    label: list[str]
    """Short text for display, at most 60 characters."""
    dollars: dict[int, float] = Field(default_factory=dict[int, float], exclude_if=is_empty)
    """Cost of `usage` events in US dollars, by `seq`. Events of models without a price are missing."""


ProblemCode = Literal[
    "model_failed",
    "retried",
    "tool_failed",
    "refused",
    "stalled",
    "repeated",
    "waits",
    "cut_unmet",
    "tools_unavailable",
    "run_failed",
    "orphaned",
]
"""Kind of a problem."""


class RunProblem(Wire):
    """Problem in a recorded run.

    `model_failed`: a model call failed. `retried`: a request failed and was sent again. `tool_failed`: a tool failed.
    `refused`: a tool call failed without being started. `stalled`: nothing was recorded for at least 30 seconds.
    `repeated`: the model requested the same call at least three times. `waits`: an unanswered question. `cut_unmet`: a
    context could not be made small enough. `tools_unavailable`: a toolset failed. `run_failed`: an attempt failed.
    `orphaned`: the run is not finished, but no process owns it.
    """

    code: ProblemCode
    task_id: str
    """Id of the run."""
    seq: int
    """Sequence number of the first event of the problem."""
    until: int | None = Field(default=None, exclude_if=is_missing)
    """Sequence number of the last event of the problem. Missing if it is the first event, or if a stall continues."""
    seconds: float | None = Field(default=None, exclude_if=is_missing)
    """Duration of a stall, a failed call or a failed request, or the time since the last event of an orphaned run."""
    count: int | None = Field(default=None, exclude_if=is_missing)
    """Number of failed requests or equal calls."""
    name: str | None = Field(default=None, exclude_if=is_missing)
    """Name of the tool, model or toolset, or the error code of the run."""
    text: str
    """Description for people, at most 200 characters."""


class ProblemList(Wire):
    """Problems of a run, in the order of their first events."""

    task_id: str
    seq: int
    """Sequence number of the last event that was checked."""
    problems: list[RunProblem]


class RunProblems(Wire):
    """Run with its problems."""

    run: RunInfo
    """The run, with the fields of `details=1`. `problems` is the number of all problems."""
    problems: list[RunProblem]
    """The most severe problems, at most 20, in the order of their first events."""


class ProblemPage(Wire):
    """Runs with problems, newest first."""

    runs: list[RunProblems]
    next: str | None = Field(default=None, exclude_if=is_missing)
    """Value of `after` for the next page. Missing if all runs were examined."""


class SearchHit(Wire):
    """Text found in a field of an event."""

    task_id: str
    """Id of the run."""
    seq: int
    kind: str
    field: str
    """Path of the field, such as `call.arguments.city`."""
    text: str
    """Part of the field that contains the text, at most 200 characters."""
    marks: list[tuple[int, int]]
    """Start and end of each match in `text`, in Unicode code points."""


class SearchPage(Wire):
    """Texts found in a run, in the order of the events."""

    hits: list[SearchHit]
    searched: int
    """Sequence number of the last event that was searched."""
    next: int | None = Field(default=None, exclude_if=is_missing)
    """Value of `after` for continuing the search. Missing if all events were searched."""


class SearchResults(Wire):
    """Texts found in several runs."""

    hits: list[SearchHit]
    """Hits, by run, newest runs first. At most five per run."""
    runs: list[RunInfo]
    """Runs with hits, with their titles."""
    next: str | None = Field(default=None, exclude_if=is_missing)
    """Value of `after` for continuing the search. Missing if all runs were searched."""


class Permissions(Wire):
    """Permissions of a client."""

    act: bool
    """True if the client can start runs, and answer, cancel or fork its own runs, because the server has agents."""
    internal: bool
    """True if `visibility=all` is allowed."""
    others: bool
    """True if the client has access to runs of other principals."""
    cases: bool = Field(default=False, exclude_if=is_empty)
    """True if the client can append runs to the cases of the server."""


class LogInfo(Wire):
    """Event log of a server."""

    kind: Literal["memory", "sqlite", "postgres", "custom"]
    keeps_deltas: bool
    """True if the log keeps text deltas."""


class AccessInfo(Wire):
    """Authenticated principal, with its permissions on this server."""

    principal: str
    """Id of the principal. Empty without authentication."""
    scopes: list[str]
    may: Permissions
    log: LogInfo
    agents: bool
    """True if the server has agents."""
    version: str
    """Version of rxloop."""
