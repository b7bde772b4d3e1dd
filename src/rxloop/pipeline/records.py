"""Records and snapshots of runs that a log returns, and filters for runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypedDict

import orjson

from rxloop.errors import ConfigurationError, UnknownRun
from rxloop.protocol.commands import Command
from rxloop.protocol.events import (
    SUPERSEDED,
    WAITING,
    Event,
    State,
    StatusUpdateEvent,
    TaskEvent,
    ends_attempt,
    is_superseded,
)
from rxloop.protocol.json_data import freeze_json
from rxloop.protocol.messages import ErrorInfo, Usage
from rxloop.state.fold import fold_all
from rxloop.state.run_state import RunFold, RunState


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What a log knows of a run without reading its events."""

    task_id: str
    context_id: str
    agent_name: str
    state: State
    attempt: int
    seq: int
    created: int
    """Milliseconds since 1970."""
    updated: int
    """Milliseconds since 1970."""
    model: str = ""
    """What the run was begun with."""
    owner: str | None = field(default=None, repr=False)
    """Whose run it is, such as a user or a tenant; stays on the server."""
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False, hash=False)
    """Of its `task` event; stays on the server, except for what stands under the key `public`."""
    usage: Usage | None = None
    """Of the whole run, as its last final event says; None before the first one."""
    error: ErrorInfo | None = field(default=None, repr=False)
    """What ended its last attempt, where that was an error."""

    @property
    def finished(self) -> bool:
        """True if the run is completed or failed. A run with a retryable error is failed, too, until it is resumed."""
        return self.state in FINISHED

    def ended_by(self, end: StatusUpdateEvent) -> RunRecord:
        """Return the record of the run after an attempt with this final event."""
        return replace(
            self,
            state=end.state,
            attempt=end.attempt,
            seq=end.seq,
            updated=end.timestamp,
            usage=end.usage,
            error=end.error,
        )

    @classmethod
    def from_events(cls, task_id: str, events: Sequence[Event]) -> RunRecord:
        """Return the record of a run with these durable events, of which there is at least one."""
        first, last, end = events[0], events[-1], last_end(events)
        task = first if isinstance(first, TaskEvent) else None
        return cls(
            task_id=task_id,
            context_id=first.context_id,
            agent_name=task.agent_name if task else "",
            model=task.model if task else "",
            owner=task.owner if task else None,
            metadata=first.metadata,
            usage=end.usage if end else None,
            error=end.error if end else None,
            state=state_after("submitted", events),
            attempt=last.attempt,
            seq=last.seq,
            created=first.timestamp,
            updated=last.timestamp,
        )


@dataclass(frozen=True, slots=True)
class Mark:
    """Position in a conversation: the runs before it, and their state at that time."""

    runs: int
    """Number of the runs."""
    events: int
    """Number of their durable events."""
    updated: int
    """Sum of the times of their last events, in milliseconds: after a restore, other events may have the same seqs."""
    last: str
    """Id of the last run; empty if there is none."""

    @classmethod
    def after(cls, records: Sequence[RunRecord]) -> Mark:
        """Return the mark after these runs, which are the first ones of a conversation, in order."""
        events, updated = sum(record.seq for record in records), sum(record.updated for record in records)
        return cls(len(records), events, updated, records[-1].task_id if records else "")


@dataclass(frozen=True, slots=True)
class RunEvents:
    """A run that no kept fold covers."""

    task_id: str
    complete: bool
    """Whether its last attempt is over, and all events are here: it is as it will be, unless somebody resumes it."""
    events: Sequence[Event]
    """The durable ones."""


@dataclass(frozen=True, slots=True)
class ConversationPage:
    """Runs of a conversation after a mark, or all of them: stored folds, and the events of the other runs."""

    parts: Sequence[RunFold | RunEvents]
    """In the order of the runs."""
    mark: Mark
    """After the last of these runs."""
    whole: bool
    """True if the page begins with the first run: no mark was passed, or a run before it has changed."""


Until = Literal["attempt", "end"]
"""Where a follower stops: at the end of the run's attempt, or when the run is over for good."""

FINISHED: tuple[State, ...] = ("completed", "failed")
"""The states of runs that have ended for good."""


def state_after(state: State, events: Iterable[Event]) -> State:
    """The state of a run after some more events, for its `RunRecord`; events of nested runs do not count."""
    for event in events:
        if isinstance(event, StatusUpdateEvent) and event.parent_task_id is None:
            state = event.state
    return state


def finishes(event: Event) -> bool:
    """Tell whether an event is the end of its run, so that no further attempt is expected."""
    if not (isinstance(event, StatusUpdateEvent) and ends_attempt(event)):
        return False
    return event.state in FINISHED or is_superseded(event)


def is_finished(state: State, error: str | None) -> bool:
    """Tell the same of a run that is at rest.

    Args:
        state: Its state.
        error: The error of its last end as JSON.
    """
    return state in FINISHED or (
        state == "canceled" and error is not None and ErrorInfo.model_validate_json(error).code == SUPERSEDED
    )


def last_end(events: Iterable[Event]) -> StatusUpdateEvent | None:
    """The last event that ends an attempt of the run itself, for the usage and the error of its `RunRecord`."""
    ends = [event for event in events if isinstance(event, StatusUpdateEvent) and ends_attempt(event)]
    return ends[-1] if ends else None


class RunQuery(TypedDict, total=False):
    """Filters and page of `EventLog.list_runs`."""

    context_id: str | None
    """Only runs of this conversation."""
    unfinished: bool
    """Only runs that are neither completed nor failed."""
    states: Collection[State] | None
    """Only runs in one of these states."""
    agent_name: str | None
    """Only runs of the agent with this name."""
    owner: str | None
    """Only runs of this owner."""
    since: int | None
    """Only runs that were created at this time or later, in milliseconds since 1970."""
    until: int | None
    """Only runs that were created before this time."""
    metadata: Mapping[str, Any] | None
    """Only runs with these values in their metadata; other keys do not count."""
    latest_only: bool
    """Of the matching runs, only the newest one of each conversation: a list of conversations."""
    newest_first: bool
    """The newest run first."""
    after: str | None
    """The last run of the previous page; the page begins after it."""
    limit: int | None
    """Maximum number of runs, from 1; None for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Checked values of a `RunQuery`, with its defaults.

    Raises:
        ConfigurationError: `limit` is less than one.
    """

    context_id: str | None = None
    unfinished: bool = False
    states: Collection[State] | None = None
    agent_name: str | None = None
    owner: str | None = None
    since: int | None = None
    until: int | None = None
    metadata: Mapping[str, Any] | None = None
    latest_only: bool = False
    newest_first: bool = False
    after: str | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise ConfigurationError(
                f"limit={self.limit!r}: give the number of runs of a page, from 1, or None for all"
            )

    def matches(self, record: RunRecord) -> bool:
        """Return True if a record passes the filters; the page does not count."""
        pairs = (
            (self.context_id, record.context_id),
            (self.agent_name, record.agent_name),
            (self.owner, record.owner),
        )
        return (
            all(wanted is None or wanted == found for wanted, found in pairs)
            and (not self.unfinished or record.state not in FINISHED)
            and (self.states is None or record.state in self.states)
            and (self.since is None or record.created >= self.since)
            and (self.until is None or record.created < self.until)
            and all(
                key in record.metadata and as_json(record.metadata[key]) == as_json(value)
                for key, value in (self.metadata or {}).items()
            )
        )

    def select(self, records: Iterable[RunRecord]) -> list[RunRecord]:
        """Return the page of the matching records.

        Args:
            records: All records of a log, in the order in which the log got the runs.

        Raises:
            UnknownRun: `after` is not one of the runs.
        """
        ordered = list(records)[::-1] if self.newest_first else list(records)
        start = 0
        if self.after is not None:
            places = [place for place, record in enumerate(ordered) if record.task_id == self.after]
            if not places:
                raise UnknownRun(f"the log holds no run {self.after}")
            start = places[0] + 1
        matching = [(place, record) for place, record in enumerate(ordered) if self.matches(record)]
        if self.latest_only:
            newest = matching if self.newest_first else matching[::-1]
            latest = {record.context_id: record.task_id for _, record in reversed(newest)}
            matching = [each for each in matching if latest[each[1].context_id] == each[1].task_id]
        return [record for place, record in matching if place >= start][: self.limit]


def as_json(value: Any) -> str:
    """Write a value of metadata so that equal ones are written alike."""
    return orjson.dumps(freeze_json(value, "metadata"), option=orjson.OPT_SORT_KEYS).decode()


NOTHING_DONE = 3
"""Number of events of a run that ended before it did anything: its task, its start and its end."""


class HistoryQuery(NamedTuple):
    """The part of the conversation before a run that a snapshot includes."""

    after: Mark | None
    """The end of an earlier page, as for `EventLog.read_conversation`."""
    version: int
    """The version of the folds that the caller understands."""


@dataclass(frozen=True)
class Snapshot:
    """A run, the commands sent to it, and its neighbours in the conversation.

    The parts are read in the order of the fields. So a command may be missing among the events that it became in the
    meantime, and none is missing among the commands.
    """

    record: RunRecord
    events: Sequence[Event]
    """All durable events of the run."""
    commands: Sequence[tuple[int, Command]]
    """Commands with their numbers, in order: all of them, or those after the mail of an earlier snapshot."""
    waiting: Sequence[RunRecord]
    """Earlier runs of the conversation that wait for answers, the newest one first."""
    later: RunRecord | None
    """First later run of the conversation that has begun, and so has dropped the questions of this run."""
    history: ConversationPage | None
    """Earlier runs of the conversation, if the caller asked for them."""

    @property
    def task_id(self) -> str:
        """The run."""
        return self.record.task_id

    @cached_property
    def state(self) -> RunState:
        """The fold of the events."""
        return fold_all(self.events)

    @property
    def new_commands(self) -> Sequence[tuple[int, Command]]:
        """The commands that no event has applied yet."""
        return [command for command in self.commands if command[0] > self.state.last_command]


def has_begun(state: State, seq: int) -> bool:
    """Return True if a run with that many events has begun, and so has dropped the questions before it.

    A run that ended before it did anything has not begun, such as one that was cancelled while it waited.
    """
    return state != "submitted" and not (state in ("canceled", "failed") and seq <= NOTHING_DONE)


def find_neighbours(task_id: str, records: Sequence[RunRecord]) -> tuple[list[RunRecord], RunRecord | None]:
    """Return the fields `waiting` and `later` of the snapshot of a run.

    Args:
        task_id: The run.
        records: The runs of its conversation, in order.
    """
    place = next((place for place, record in enumerate(records) if record.task_id == task_id), len(records))
    waiting = [record for record in reversed(records[:place]) if record.state in WAITING]
    return waiting, next((record for record in records[place + 1 :] if has_begun(record.state, record.seq)), None)
