"""Run records, snapshots and filters."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple, TypedDict, get_args

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
from rxloop.protocol.ids import make_conversation_key
from rxloop.protocol.json_data import canonical_json
from rxloop.protocol.messages import ErrorInfo, Usage
from rxloop.state.fold import fold_all
from rxloop.state.run_state import RunFold, RunState
from rxloop.support.threads import compute, free_in_thread


@dataclass(frozen=True, slots=True)
class RunRecord:
    """Run metadata, available without reading events."""

    task_id: str
    context_id: str
    agent_name: str
    state: State
    attempt: int
    seq: int
    created: int
    """Creation time in milliseconds since 1970."""
    updated: int
    """Time of the last event in milliseconds since 1970."""
    model: str = ""
    """Initial model name."""
    owner: str | None = field(default=None, repr=False)
    """Owner, such as a user or tenant. Not sent to clients."""
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False, hash=False)
    """Metadata from the `task` event. Only the value of the key `public` is sent to clients."""
    usage: Usage | None = None
    """Total usage from the latest final event, or None before the first one."""
    error: ErrorInfo | None = field(default=None, repr=False)
    """Error of the last attempt, if it failed."""

    @property
    def finished(self) -> bool:
        """True if the run is completed or failed. A run that failed with a retryable error can still be resumed."""
        return self.state in FINISHED

    @property
    def conversation(self) -> str:
        """Key of the conversation, made from its id and owner."""
        return make_conversation_key(self.context_id, self.owner)

    @property
    def cursor(self) -> str:
        """Cursor of the last event."""
        return f"{self.task_id}/{self.attempt}.{self.seq}.0"

    @property
    def is_over(self) -> bool:
        """True if the run cannot be resumed."""
        if self.state == "failed":
            return self.error is not None and not self.error.retryable
        return self.state == "completed" or (self.error is not None and self.error.code == SUPERSEDED)

    def apply_end(self, end: StatusUpdateEvent) -> RunRecord:
        """Return an updated record after an attempt with this final event."""
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
        """Return a run record built from durable events. At least one event is required."""
        first, last, end = events[0], events[-1], find_last_end(events)
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
            state=compute_state("submitted", events),
            attempt=last.attempt,
            seq=last.seq,
            created=find_creation_time(events),
            updated=last.timestamp,
        )


def find_creation_time(events: Sequence[Event]) -> int:
    """Return the time of the first event that belongs to the run itself, not to the run from which it was forked."""
    first = events[0]
    copied = (first.fork_seq or 0) if isinstance(first, TaskEvent) else 0
    return events[min(bisect_right(events, copied, key=lambda event: event.seq), len(events) - 1)].timestamp


@dataclass(frozen=True, slots=True)
class Mark:
    """Conversation position, which also detects changes to earlier runs."""

    runs: int
    """Number of runs."""
    events: int
    """Number of durable events."""
    updated: int
    """Sum of the last event times, in milliseconds. It detects a restored log with different events but equal
    numbers."""
    last: str
    """ID of the last run, or an empty string."""

    @classmethod
    def after(cls, records: Sequence[RunRecord]) -> Mark:
        """Return the mark that follows these runs, which must be the first ones of the conversation."""
        events, updated = sum(record.seq for record in records), sum(record.updated for record in records)
        return cls(len(records), events, updated, records[-1].task_id if records else "")


@dataclass(frozen=True, slots=True)
class RunEvents:
    """Run without a stored fold."""

    task_id: str
    complete: bool
    """True if the last attempt has ended and no event is missing. Such a run only changes if it is resumed."""
    events: Sequence[Event]
    """Durable events."""


@dataclass(frozen=True, slots=True)
class ConversationPage:
    """Page of conversation runs, as stored folds or events."""

    parts: Sequence[RunFold | RunEvents]
    """Parts in run order."""
    mark: Mark
    """Mark after the last run."""
    from_start: bool
    """True if the page starts with the first run, because no valid mark was passed."""


Until = Literal["attempt", "end"]
"""Stop condition for followers, either the end of an attempt or the final end of the run."""

FINISHED: tuple[State, ...] = ("completed", "failed")
"""Final run states."""


def get_conversation(first: Event) -> str:
    """Return the conversation key of a run from its first event."""
    return make_conversation_key(first.context_id, first.owner if isinstance(first, TaskEvent) else None)


def compute_state(state: State, events: Iterable[Event]) -> State:
    """Return the run state after additional events, ignoring nested runs."""
    for event in events:
        if isinstance(event, StatusUpdateEvent) and event.parent_task_id is None:
            state = event.state
    return state


def finishes(event: Event) -> bool:
    """Return True if the event ends its run, with no further attempt expected."""
    if not (isinstance(event, StatusUpdateEvent) and ends_attempt(event)):
        return False
    return event.state in FINISHED or is_superseded(event)


def is_finished(state: State, error: str | None) -> bool:
    """Return True if an idle run has ended, with no further attempt expected.

    Args:
        state: Run state.
        error: Error from the last final event, as JSON.
    """
    return state in FINISHED or (
        state == "canceled" and error is not None and ErrorInfo.model_validate_json(error).code == SUPERSEDED
    )


def find_last_end(events: Iterable[Event]) -> StatusUpdateEvent | None:
    """Return the latest final event, containing the run's usage and error."""
    ends = [event for event in events if isinstance(event, StatusUpdateEvent) and ends_attempt(event)]
    return ends[-1] if ends else None


class ConversationQuery(TypedDict, total=False):
    """Filters and page of `EventLog.list_conversation`."""

    unfinished: bool
    """If True, exclude completed and failed runs."""
    states: Collection[State] | None
    """Allowed run states."""
    newest_first: bool
    """If True, return newer runs first."""
    after: str | None
    """Last run ID of the previous page."""
    limit: int | None
    """Maximum number of runs. None returns all runs."""


class RunQuery(ConversationQuery, total=False):
    """Filters and page of `EventLog.list_runs`."""

    context_id: str | None
    """Conversation ID. Several owners can have a conversation with this ID."""
    agent_name: str | None
    """Agent name."""
    owner: str | None
    """Owner. An empty string selects runs without an owner, if the log has `accepts_empty_owner`."""
    since: int | None
    """Minimum creation time in milliseconds since 1970."""
    until: int | None
    """Creation time limit in milliseconds since 1970, exclusive."""
    metadata: Mapping[str, Any] | None
    """Required metadata values. Other keys are ignored."""
    latest_only: bool
    """If True, return only the newest matching run per conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Validated `RunQuery` with default values.

    Raises:
        ConfigurationError: If `limit` is less than one, or a state is unknown.
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
            raise ConfigurationError(f"limit must be at least 1, or None for all runs, got limit={self.limit!r}")
        if isinstance(self.states, str) or any(state not in get_args(State) for state in self.states or ()):
            raise ConfigurationError(f"states must be a list of {', '.join(get_args(State))}, got {self.states!r}")

    def matches(self, record: RunRecord) -> bool:
        """Return True if a record matches the filters. Paging options are ignored."""
        # The most selective filter comes first, because most listings look for the few waiting runs of a conversation.
        return (
            (self.states is None or record.state in self.states)
            and (not self.unfinished or record.state not in FINISHED)
            and self.context_id in (None, record.context_id)
            and self.agent_name in (None, record.agent_name)
            and self.owner in (None, record.owner or "")
            and (self.since is None or record.created >= self.since)
            and (self.until is None or record.created < self.until)
            and all(
                key in record.metadata and canonical_json(record.metadata[key]) == canonical_json(value)
                for key, value in (self.metadata or {}).items()
            )
        )

    def select(self, records: Iterable[RunRecord]) -> list[RunRecord]:
        """Return the requested page of matching records.

        Args:
            records: All run records, in order of arrival.

        Raises:
            UnknownRun: If the run `after` does not exist.
        """
        ordered = list(records)[::-1] if self.newest_first else list(records)
        start = 0
        if self.after is not None:
            positions = [index for index, record in enumerate(ordered) if record.task_id == self.after]
            if not positions:
                raise UnknownRun(f"the log has no run {self.after}")
            start = positions[0] + 1
        matching = [(index, record) for index, record in enumerate(ordered) if self.matches(record)]
        if self.latest_only:
            newest = matching if self.newest_first else matching[::-1]
            latest = {record.conversation: record.task_id for _, record in reversed(newest)}
            matching = [each for each in matching if latest[each[1].conversation] == each[1].task_id]
        return [record for index, record in matching if index >= start][: self.limit]


IDLE_RUN_EVENTS = 3
"""Number of events in a run that ended without doing anything: task, start and end."""


class HistoryQuery(NamedTuple):
    """Requested part of the conversation history."""

    after: Mark | None
    """Mark from a previous page, as in `EventLog.read_conversation`."""
    version: int
    """Supported version of the fold format."""


@dataclass(frozen=True)
class Snapshot:
    """Run with its commands and conversation neighbours.

    Fields are read in order. A command may therefore have become an event that is not included yet, but no command is
    missing.
    """

    record: RunRecord
    events: Sequence[Event]
    """Durable events."""
    commands: Sequence[tuple[int, Command]]
    """Numbered commands in order. Commands applied by an earlier snapshot may be omitted."""
    waiting: Sequence[RunRecord]
    """Earlier runs waiting for input, newest first."""
    later: RunRecord | None
    """First later run that has started, superseding open questions."""
    history: ConversationPage | None
    """Conversation history, if requested."""

    @property
    def task_id(self) -> str:
        """Run ID."""
        return self.record.task_id

    @cached_property
    def state(self) -> RunState:
        """Folded run state."""
        return fold_all(self.events)

    async def fold(self) -> None:
        """Fold the events before `state` is read. Long runs are folded in a thread."""
        if "state" not in vars(self):
            # The lock of a cached property would block the event loop.
            vars(self)["state"] = await compute(partial(fold_all, self.events), steps=len(self.events))

    def __del__(self) -> None:
        if events := vars(self).pop("events", None):
            holder = [events]
            del events
            free_in_thread(holder)

    @property
    def new_commands(self) -> Sequence[tuple[int, Command]]:
        """Commands that were not applied by an event."""
        return [command for command in self.commands if command[0] > self.state.last_command]


def has_started(state: State, seq: int) -> bool:
    """Return True if a run has started, which supersedes earlier questions in the conversation.

    Runs that ended without doing anything, for example because they were cancelled while waiting, have not started.
    """
    return state != "submitted" and not (state in ("canceled", "failed") and seq <= IDLE_RUN_EVENTS)


def find_neighbours(task_id: str, records: Sequence[RunRecord]) -> tuple[list[RunRecord], RunRecord | None]:
    """Return the snapshot fields `waiting` and `later`.

    Args:
        task_id: Run ID.
        records: Conversation runs, in order.
    """
    index = next((index for index, record in enumerate(records) if record.task_id == task_id), len(records))
    waiting = [record for record in reversed(records[:index]) if record.state in WAITING]
    return waiting, next((record for record in records[index + 1 :] if has_started(record.state, record.seq)), None)
