"""The rules that every event log keeps, whatever it stores its events in: for logs of your own.

`rxloop.testing.event_log_contract` tests a log against them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rxloop.errors import ConflictError, EventLogError, LogWentBack, UnknownRun
from rxloop.protocol.events import Event, State, StatusUpdateEvent, ends_attempt

FINISHED: tuple[State, ...] = ("completed", "failed")
"""The states of runs that have ended for good."""


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


def went_back(task_id: str, seq: int) -> LogWentBack:
    """The error of a reader that has an event which the log does not have any more."""
    return LogWentBack(
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


def state_after(state: State, events: Iterable[Event]) -> State:
    """The state of a run after some more events, for its `RunRecord`; events of nested runs do not count."""
    for event in events:
        if isinstance(event, StatusUpdateEvent) and event.parent_task_id is None:
            state = event.state
    return state


def last_end(events: Iterable[Event]) -> StatusUpdateEvent | None:
    """The last event that ends an attempt of the run itself, for the usage and the error of its `RunRecord`."""
    ends = [event for event in events if isinstance(event, StatusUpdateEvent) and ends_attempt(event)]
    return ends[-1] if ends else None
