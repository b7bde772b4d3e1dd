"""Validation rules shared by event logs, including custom ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from rxloop.errors import ConflictError, EventLogError, LogRolledBack, UnknownRun
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.records import FINISHED, RunFilter, Until, finishes
from rxloop.protocol.events import Event, State, TaskEvent, ends_attempt
from rxloop.protocol.ids import make_conversation_key


def check_batch(task_id: str, events: Sequence[Event], expected_seq: int, keeps_deltas: bool) -> None:
    """Check that a batch continues a run after `expected_seq`. Call this before writing.

    Args:
        task_id: Run ID.
        events: The batch.
        expected_seq: Last stored `seq` expected by the writer.
        keeps_deltas: True if the log stores transient events.

    Raises:
        EventLogError: If an event has the wrong number, or is transient and the log does not store transient events.
    """
    seq, sub = expected_seq, 0
    for event in events:
        if event.durable:
            seq += 1
            sub = 0
            if event.seq != seq:
                raise EventLogError(
                    f"run {task_id}: the seq of {event.kind} must be {seq}, got {event.seq}.", retryable=False
                )
        elif not keeps_deltas:
            raise EventLogError(
                f"run {task_id}: this log does not store transient events such as {event.kind}.", retryable=False
            )
        elif not seq:
            raise EventLogError(f"run {task_id}: the first event must be durable, got {event.kind}.", retryable=False)
        elif event.seq != seq or event.sub <= sub:
            raise EventLogError(
                f"run {task_id}: the number of {event.kind} must follow {seq}.{sub}, got {event.seq}.{event.sub}.",
                retryable=False,
            )
        else:
            sub = event.sub


def count_items(events: Sequence[Event]) -> int:
    """Return the number of events in a batch, plus the number of messages if it starts a run with a history."""
    first = events[0] if events else None
    return len(events) + (len(first.messages) if isinstance(first, TaskEvent) else 0)


def check_append(
    task_id: str, events: Sequence[Event], stored: Sequence[Event], *, expected_seq: int, writer: str, last_writer: str
) -> Sequence[Event]:
    """Return the events of a batch that need to be stored. Call this before writing.

    For logs that do not store transient events.

    Args:
        task_id: Run ID.
        events: The batch.
        stored: Stored events of the run.
        expected_seq: Last stored `seq` expected by the writer.
        writer: Writer of the batch.
        last_writer: Writer of the last stored batch; empty for a new run.

    Raises:
        ConflictError: If the last stored `seq` is different and the batch is not a repetition.
        EventLogError: If an event has the wrong number, or is transient.
    """
    check_batch(task_id, events, expected_seq, keeps_deltas=False)
    last_seq = stored[-1].seq if stored else 0
    if last_seq == expected_seq or not events:
        return events
    count = count_repeats(events, last_seq) if writer and writer == last_writer else None
    if count is None or not all(is_same(*pair) for pair in zip(events[:count], stored[expected_seq:], strict=True)):
        raise make_conflict_error(task_id, expected_seq, last_seq)
    return events[count:]


async def poll_events(
    log: EventLog, task_id: str, *, after_seq: int = 0, until: Until = "attempt", seconds: float = 0.05
) -> AsyncIterator[Event]:
    """Implement `EventLog.follow` for durable events by polling.

    Args:
        log: The log.
        task_id: Run ID.
        after_seq: Skip events up to this `seq`.
        until: When to stop, as in `EventLog.follow`.
        seconds: Polling interval.

    Raises:
        UnknownRun: If the run does not exist.
        LogRolledBack: If an event that was already yielded is missing from the log.
    """
    last: Event | None = None
    newest = (await log.read(task_id))[-1]
    while True:
        # Read the last event again to detect a rollback.
        events = await log.read(task_id, after_seq=after_seq if last is None else last.seq - 1)
        if last is not None:
            if not events or not is_same(events[0], last):
                raise make_rollback_error(task_id, last.seq)
            events = events[1:]
        for event in events:
            newest = last = event
            yield event
        if not events:
            if ends_attempt(newest) and (until == "attempt" or finishes(newest)):
                return
            await asyncio.sleep(seconds)
            newest = last or (await log.read(task_id))[-1]


def count_repeats(events: Sequence[Event], last_seq: int) -> int | None:
    """Return the number of leading batch events that may already be stored, given the last stored `seq`.

    A writer that does not know if a batch was stored appends the batch again, followed by newer events. Compare the
    leading events with the stored ones byte for byte and append the remainder. Raise a `conflict` if they differ or
    have another writer.

    Returns:
        None if no event of the batch can be stored already.
    """
    return next((index + 1 for index, event in enumerate(events) if event.durable and event.seq == last_seq), None)


def make_conflict_error(task_id: str, expected_seq: int, last_seq: int) -> ConflictError:
    """Create an error for a conflict between two writers.

    Args:
        task_id: Run ID.
        expected_seq: Last `seq` expected by the writer.
        last_seq: Last stored `seq`.
    """
    return ConflictError(
        f"run {task_id}: the writer expected {expected_seq} as the last seq, got {last_seq}. Another writer appends to "
        "this run."
    )


def make_unknown_run_error(task_id: str) -> UnknownRun:
    """Create an error for a missing run."""
    return UnknownRun(f"the log has no run {task_id}")


def make_rollback_error(task_id: str, seq: int) -> LogRolledBack:
    """Create an error for a rolled-back log, which lacks an event that was already read."""
    return LogRolledBack(
        f"The log was rolled back: event {seq} of run {task_id} is missing or different, for example after a restore "
        "or a failover. Discard the events that were read, and read the run from the beginning."
    )


def is_same(one: Event, other: Event) -> bool:
    """Return True if two events with equal numbers are identical."""
    return one is other or one.to_json() == other.to_json()


def check_finished(task_id: str, state: State) -> None:
    """Check that a run can be deleted.

    Raises:
        EventLogError: If the run is not finished.
    """
    if state not in FINISHED:
        raise EventLogError(
            f"run {task_id} is {state} and may continue. Only completed and failed runs can be deleted.",
            retryable=False,
        )


def find_owner_conditions(criteria: RunFilter, mark: str) -> list[tuple[str, str | None]]:
    """Return the SQL conditions for the conversation and the owner, with their values. None means no condition.

    Args:
        criteria: Filter.
        mark: Parameter mark of the SQL dialect.
    """
    context_id, owner = criteria.context_id, criteria.owner
    if context_id is not None and owner is not None:
        return [(f"conversation = {mark}", make_conversation_key(context_id, owner))]
    has_owner = f"owner = {mark}" if owner else f"coalesce(owner, '') = {mark}"
    return [(f"context_id = {mark}", context_id), (has_owner, owner)]
