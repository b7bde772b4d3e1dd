"""Rules of every event log, for logs of your own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from rxloop.errors import ConflictError, EventLogError, LogRolledBack, UnknownRun
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.records import FINISHED, Until, finishes
from rxloop.protocol.events import Event, State, ends_attempt


def check_batch(task_id: str, events: Sequence[Event], expected_seq: int, keeps_deltas: bool) -> None:
    """Check that a batch continues a run after `expected_seq`. Call it before anything is written.

    Args:
        task_id: The run.
        events: The batch.
        expected_seq: The last `seq` that its writer expects in the log.
        keeps_deltas: Whether the log keeps transient events.

    Raises:
        EventLogError: An event has the wrong number, or is transient although the log does not keep those.
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
    """Return the events of a batch that a log has to store. Call it before anything is written.

    It is for logs that keep no transient events.

    Args:
        task_id: The run.
        events: The batch.
        stored: The events of the run in the log.
        expected_seq: The last `seq` that the writer of the batch expects in the log.
        writer: The writer of the batch.
        last_writer: The writer of the last batch that was stored; empty for a new run.

    Raises:
        ConflictError: The log holds another last `seq`, and the batch is not a repetition.
        EventLogError: An event has the wrong number, or is transient.
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
    """Yield the durable events of a run as `EventLog.follow` says, by reading again and again.

    Args:
        log: The log.
        task_id: The run.
        after_seq: The last `seq` that is not wanted.
        until: Where to stop, as for `EventLog.follow`.
        seconds: Pause between two reads.

    Raises:
        UnknownRun: The log does not have the run.
        LogRolledBack: The log lacks an event that was yielded.
    """
    last: Event | None = None
    newest = (await log.read(task_id))[-1]
    while True:
        # The last event is read again, to see that it is still there.
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
    """How many events at the head of a batch a log may have already, if the last `seq` that it holds is `held`.

    A writer that did not hear whether a batch was written appends it again, followed by what has come since. Compare
    these events with those in the log, byte for byte, and append the rest; if they differ, or another writer wrote
    them, it is a `conflict`.

    Returns:
        None if the log cannot have any event of the batch.
    """
    return next((place + 1 for place, event in enumerate(events) if event.durable and event.seq == held), None)


def conflict(task_id: str, expected_seq: int, held: int) -> ConflictError:
    """The error of a writer that is not the only one.

    Args:
        task_id: The run.
        expected_seq: The last `seq` that the writer expects.
        held: The last `seq` in the log.
    """
    return ConflictError(
        f"run {task_id}: the writer expected seq {expected_seq} to be the last, but the log holds {held}; "
        "somebody else writes this run"
    )


def unknown_run(task_id: str) -> UnknownRun:
    """The error of a reader that asks for a run that is not in the log."""
    return UnknownRun(f"the log holds no run {task_id}")


def went_back(task_id: str, seq: int) -> LogRolledBack:
    """The error of a reader that has an event which the log does not have any more."""
    return LogRolledBack(
        f"the log has gone back: the event {seq} of the run {task_id} is not there any more, or another one is in its "
        "place, as after a restore or a failover; what was read of the run is void, so read it from its beginning"
    )


def same(one: Event, other: Event) -> bool:
    """Tell whether two events with the same number are the same event."""
    return one is other or one.to_json() == other.to_json()


def check_finished(task_id: str, state: State) -> None:
    """Check that a run may be deleted.

    Raises:
        EventLogError: The run can still go on.
    """
    if state not in FINISHED:
        raise EventLogError(
            f"run {task_id} is {state} and can still go on: only completed and failed runs are deleted",
            retryable=False,
        )
