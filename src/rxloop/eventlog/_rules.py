"""What holds for every event log, wherever it keeps its events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rxloop.errors import ConflictError, EventLogError, UnknownRun
from rxloop.protocol.events import Event, State, StatusUpdateEvent

FINISHED: tuple[State, ...] = ("completed", "failed")
"""The states of runs that have ended for good."""


def check_batch(task_id: str, events: Sequence[Event], expected_seq: int, transient: bool) -> None:
    """See that a batch can be appended behind `expected_seq`.

    Raises:
        EventLogError: An event has the wrong number, or is transient where those are not kept.
    """
    seq, sub = expected_seq, 0
    for event in events:
        if event.durable:
            seq += 1
            sub = 0
            if event.seq != seq:
                raise EventLogError(
                    f"run {task_id}: {event.kind} has seq {event.seq} where {seq} comes next", retryable=False
                )
        elif not transient:
            raise EventLogError(
                f"run {task_id}: {event.kind} is transient and does not belong in the log", retryable=False
            )
        elif event.seq != seq or event.sub <= sub:
            raise EventLogError(
                f"run {task_id}: {event.kind} has the number {event.seq}.{event.sub} behind {seq}.{sub}",
                retryable=False,
            )
        else:
            sub = event.sub


def not_there(events: Sequence[Event], held: int) -> int | None:
    """The place in a batch behind what a log that holds `held` may have of it; None if it cannot have any of it.

    A writer that did not hear whether a batch was written appends it again, with what has come since behind it.
    """
    return next((place + 1 for place, event in enumerate(events) if event.durable and event.seq == held), None)


def conflict(task_id: str, expected_seq: int, held: int) -> ConflictError:
    """The error of a writer that is not the only one."""
    return ConflictError(
        f"run {task_id}: the writer expected seq {expected_seq} to be the last, but the log holds {held}; "
        "somebody else writes this run"
    )


def unknown(task_id: str) -> UnknownRun:
    """The error of a reader that asks for a run that is not there."""
    return UnknownRun(f"the log holds no run {task_id}")


def check_finished(task_id: str, state: State) -> None:
    """See that a run may be removed.

    Raises:
        EventLogError: It can still go on.
    """
    if state not in FINISHED:
        raise EventLogError(
            f"run {task_id} is {state} and can still go on: only runs that are completed or failed are deleted",
            retryable=False,
        )


def state_after(state: State, events: Iterable[Event]) -> State:
    """The state of a run after some more events; those of nested runs do not count."""
    for event in events:
        if isinstance(event, StatusUpdateEvent) and event.parent_task_id is None:
            state = event.state
    return state
