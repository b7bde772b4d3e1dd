"""Pending questions of recorded runs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

from typing_extensions import Unpack

from rxloop.coordination.answers import describe_drop, read_snapshot
from rxloop.coordination.inbox import apply_commands
from rxloop.errors import ConfigurationError, UnknownRun
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.log_retry import read_log
from rxloop.pipeline.records import RunRecord, has_started
from rxloop.protocol.commands import MessageCommand
from rxloop.protocol.events import (
    SUPERSEDED,
    WAITING,
    InputReceivedEvent,
    PendingInput,
    State,
    StatusUpdateEvent,
    ends_attempt,
)
from rxloop.protocol.messages import ErrorInfo
from rxloop.run.ownership import read_open_questions

IDLE_STATES: tuple[State, ...] = ("completed", "failed", "canceled", "input-required", "auth-required")
"""Idle run states."""

_PAGE = 50
"""Number of runs per query."""


class PendingQuery(TypedDict, total=False):
    """Filters and page of `list_pending`."""

    owner: str | None
    """Owner of the runs."""
    context_id: str | None
    """Conversation ID."""
    agent_name: str | None
    """Agent name."""
    newest_first: bool
    """If True, return newer runs first."""
    after: str | None
    """Last run ID of the previous page."""
    limit: int | None
    """Maximum number of runs. None returns all runs."""


@dataclass(frozen=True, slots=True)
class PendingRun:
    """Run with unanswered questions."""

    record: RunRecord
    inputs: Sequence[PendingInput]
    """Unanswered questions. Answer them by their `input_id`."""


async def list_pending(log: EventLog, **query: Unpack[PendingQuery]) -> list[PendingRun]:
    """Return the runs with unanswered questions, including runs in which other calls are still executed.

    A question is unanswered until an answer is stored, its call ends, or its run ends, is cancelled, or is superseded
    by a later run of the conversation.

    Args:
        log: Event log with the runs.
        **query: See `PendingQuery`.

    Raises:
        ConfigurationError: If `limit` is less than one.
        TypeError: If a filter is unknown.
        UnknownRun: If the run `after` does not exist.
    """
    for name in query.keys() - PendingQuery.__annotations__.keys():
        # Imported lazily, because correct programs do not need it.
        from rxloop._names import explain_argument

        remedy = explain_argument("list_pending", (), name, PendingQuery.__annotations__)
        raise TypeError(f"list_pending() got an unknown argument {name!r}; {remedy}")
    filters: dict[str, Any] = {**query}
    limit, after = filters.pop("limit", None), filters.pop("after", None)
    if limit is not None and limit < 1:
        raise ConfigurationError(f"limit must be at least 1, or None for all runs, got limit={limit!r}")
    pending: list[PendingRun] = []
    while limit is None or len(pending) < limit:
        records = await read_log(log.list_runs, states=(*WAITING, "working"), after=after, limit=_PAGE, **filters)
        found = await asyncio.gather(*(_read_if_pending(log, record) for record in records))
        pending += [each for each in found if each is not None]
        if len(records) < _PAGE:
            break
        after = records[-1].task_id
    return pending[:limit]


@dataclass(frozen=True, slots=True)
class RunStatus:
    """Status of a run, from consistent reads of its log, including commands that the run has not applied yet."""

    record: RunRecord
    """Record of the run, possibly newer than the record passed to `read_status`."""
    state: State
    """State of the record, with two exceptions. A waiting run is `working` if it was answered or cancelled and will
    continue. It is `canceled` if a later run of the conversation dropped its questions."""
    pending: Sequence[PendingInput] = ()
    """Unanswered questions. A run that is `input-required` or `auth-required` has at least one."""
    last: StatusUpdateEvent | None = None
    """Final event of the last attempt if the run is idle, with the same state and questions."""


async def read_status(log: EventLog, record: RunRecord) -> RunStatus:
    """Return the status of a run. All lists of pending questions use this function.

    Args:
        log: Event log with the run.
        record: Record of the run. It may be outdated.

    Raises:
        UnknownRun: If the run was deleted.
    """
    while record.state in IDLE_STATES:
        events = await read_log(log.read, record.task_id, after_seq=record.seq - 1)
        last = events[-1] if events else None
        if last is not None and last.seq == record.seq:
            end = last if isinstance(last, StatusUpdateEvent) and ends_attempt(last) else None
            return await _read_idle(log, record, end)
        outdated, record = record, await read_log(log.get_record, record.task_id)
        if record.seq == outdated.seq:
            break  # damaged log without its last event
    else:
        if record.state == "working" and (questions := await read_open_questions(log, record.task_id)):
            return RunStatus(record, record.state, (await _apply_inbox(log, record, questions)).pending)
    return RunStatus(record, record.state)


async def _read_idle(log: EventLog, record: RunRecord, last: StatusUpdateEvent | None) -> RunStatus:
    """Return the status of an idle run with this final event."""
    if last is None or record.state not in WAITING or not last.pending:
        return RunStatus(record, record.state, last=last)
    later = await read_log(log.list_conversation, record.conversation, after=record.task_id)
    inbox = await _apply_inbox(log, record, last.pending)
    if inbox.seq > record.seq:
        return await read_status(log, await read_log(log.get_record, record.task_id))
    dropped_by = next((each.task_id for each in later if has_started(each.state, each.seq)), inbox.dropped_by)
    if dropped_by is not None:
        # The later run normally logs this event. Its process may have died before.
        error = ErrorInfo(code=SUPERSEDED, message=describe_drop(dropped_by, record.context_id))
        end: dict[str, Any] = {"state": "canceled", "reason": SUPERSEDED, "error": error, "pending": []}
        return RunStatus(record, "canceled", last=last.model_copy(update=end))
    if not inbox.pending:
        return RunStatus(record, "working")
    return RunStatus(record, record.state, inbox.pending, last.model_copy(update={"pending": list(inbox.pending)}))


class _Inbox(NamedTuple):
    """Effect of unapplied commands on the questions of a run."""

    pending: Sequence[PendingInput]
    """Questions that no command answers."""
    dropped_by: str | None = None
    """Later run that drops all questions."""
    seq: int = 0
    """Last event that was read, or 0 if no events were read."""


async def _apply_inbox(log: EventLog, record: RunRecord, questions: Sequence[PendingInput]) -> _Inbox:
    commands = await read_log(log.read_commands, record.task_id)
    if all(isinstance(each, MessageCommand) and each.superseding_task_id is None for _, each in commands):
        # Most runs have no other commands, so avoid loading their events.
        return _Inbox(questions)
    snapshot = await read_snapshot(log, record.task_id)
    state = snapshot.state
    applied = apply_commands(record.task_id, state, snapshot.new_commands, warn=False)
    answered = {event.input_id for event in applied.events if isinstance(event, InputReceivedEvent)}
    is_open = applied.cancel is None and applied.dropped_by is None
    open_ids = state.pending.keys() - answered - applied.credentials.keys() if is_open else ()
    return _Inbox([each for each in questions if each.input_id in open_ids], applied.dropped_by, state.seq)


async def _read_if_pending(log: EventLog, record: RunRecord) -> PendingRun | None:
    try:
        status = await read_status(log, record)
    except UnknownRun:
        return None  # deleted since the page was read
    return PendingRun(status.record, status.pending) if status.pending else None
