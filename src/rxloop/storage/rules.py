"""Validation rules shared by event logs, including custom ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from rxloop.errors import ConflictError, EventLogError, LogRolledBack, UnknownRun
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.records import FINISHED, Until, finishes
from rxloop.protocol.events import Event, State, ends_attempt


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
                    f"run {task_id}: {event.kind} has seq {event.seq}, but {seq} comes next", retryable=False
                )
        elif not keeps_deltas:
            raise EventLogError(
                f"run {task_id}: {event.kind} is transient and does not belong in this log", retryable=False
            )
        elif not seq:
            raise EventLogError(
                f"run {task_id}: {event.kind} is transient, and a run begins with a durable event", retryable=False
            )
        elif event.seq != seq or event.sub <= sub:
            raise EventLogError(
                f"run {task_id}: {event.kind} has the number {event.seq}.{event.sub}, after {seq}.{sub}",
                retryable=False,
            )
        else:
            sub = event.sub


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
    held = stored[-1].seq if stored else 0
    if held == expected_seq or not events:
        return events
    count = repeated(events, held) if writer and writer == last_writer else None
    if count is None or not all(same(*pair) for pair in zip(events[:count], stored[expected_seq:], strict=True)):
        raise conflict(task_id, expected_seq, held)
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
            if not events or not same(events[0], last):
                raise went_back(task_id, last.seq)
            events = events[1:]
        for event in events:
            newest = last = event
            yield event
        if not events:
            if ends_attempt(newest) and (until == "attempt" or finishes(newest)):
                return
            await asyncio.sleep(seconds)
            newest = last or (await log.read(task_id))[-1]


def repeated(events: Sequence[Event], held: int) -> int | None:
    """Return the number of leading batch events that may already be stored, given the last stored `seq`.

    A writer that does not know if a batch was stored appends the batch again, followed by newer events. Compare the
    leading events with the stored ones byte for byte and append the remainder. Raise a `conflict` if they differ or
    have another writer.

    Returns:
        None if no event of the batch can be stored already.
    """
    return next((place + 1 for place, event in enumerate(events) if event.durable and event.seq == held), None)


def conflict(task_id: str, expected_seq: int, held: int) -> ConflictError:
    """Create an error for a conflict between two writers.

    Args:
        task_id: Run ID.
        expected_seq: Last `seq` expected by the writer.
        held: Last stored `seq`.
    """
    return ConflictError(
        f"run {task_id}: the writer expected seq {expected_seq} to be the last, but the log holds {held}; "
        "somebody else writes this run"
    )


def unknown_run(task_id: str) -> UnknownRun:
    """Create an error for a missing run."""
    return UnknownRun(f"the log holds no run {task_id}")


def went_back(task_id: str, seq: int) -> LogRolledBack:
    """Create an error for a rolled-back log, which lacks an event that was already read."""
    return LogRolledBack(
        f"the log has gone back: the event {seq} of the run {task_id} is not there any more, or another one is in its "
        "place, as after a restore or a failover; what was read of the run is void, so read it from its beginning"
    )


def same(one: Event, other: Event) -> bool:
    """Return True if two events with equal numbers are identical."""
    return one is other or one.to_json() == other.to_json()


def check_finished(task_id: str, state: State) -> None:
    """Check that a run can be deleted.

    Raises:
        EventLogError: If the run is not finished.
    """
    if state not in FINISHED:
        raise EventLogError(
            f"run {task_id} is {state} and can still go on: only completed and failed runs are deleted",
            retryable=False,
        )
