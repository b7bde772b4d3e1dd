"""Run of the event log in memory."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import merge
from typing import NamedTuple

from rxloop.pipeline.records import RunRecord, compute_state, find_creation_time, find_last_end
from rxloop.protocol.events import Event, State, StatusUpdateEvent, TaskEvent, ends_attempt


class BatchParts(NamedTuple):
    """Batch events grouped by type."""

    durable: Sequence[Event]
    transient: Sequence[Event]
    statuses: Sequence[StatusUpdateEvent]
    """Durable events that can affect a run's record."""


def split_batch(events: Sequence[Event]) -> BatchParts:
    """Split a batch into durable, transient and status events."""
    durable = [event for event in events if event.durable]
    transient = [event for event in events if not event.durable]
    return BatchParts(durable, transient, [event for event in durable if isinstance(event, StatusUpdateEvent)])


@dataclass(slots=True)
class MemoryRun:
    """Stored run of a memory log. The event with `seq` n has index n - 1."""

    task_id: str
    context_id: str
    conversation: str
    """Conversation key."""
    number: int
    """Position of the run in order of arrival."""
    inserted_at: float
    """Monotonic arrival time in seconds."""
    events: list[Event] = field(default_factory=list[Event])
    deltas: list[Event] = field(default_factory=list[Event])
    state: State = "submitted"
    end: StatusUpdateEvent | None = None
    writer: str = ""
    cached_record: RunRecord | None = None
    # One future per waiting follower, created in the follower's event loop.
    waiters: set[asyncio.Future[None]] = field(default_factory=set[asyncio.Future[None]])

    def extend(self, parts: BatchParts, writer: str) -> None:
        """Append a batch of events and notify followers."""
        if parts.durable:
            self.writer, self.cached_record = writer, None
        self.events.extend(parts.durable)
        self.deltas.extend(parts.transient)
        self.state = compute_state(self.state, parts.statuses)
        self.end = find_last_end(parts.statuses) or self.end
        for waiter in self.waiters:
            # Setting a result on a closed loop would raise an exception.
            if not waiter.done() and not waiter.get_loop().is_closed():
                waiter.set_result(None)
        self.waiters.clear()

    def contains(self, events: Sequence[Event]) -> bool:
        """Return True if identical events are already stored."""
        stored = {_sort_key(event): event for event in (*self.events, *self.deltas)}
        pairs = ((stored.get(_sort_key(event)), event) for event in events)
        return all(one is not None and one.to_json() == event.to_json() for one, event in pairs)

    def get_events(self, position: tuple[int, int], deltas: bool) -> list[Event]:
        """Return sorted events after a position."""
        durable = self.events[position[0] :]
        if not (deltas and self.deltas):
            return durable
        return list(merge(durable, self.deltas[bisect_right(self.deltas, position, key=_sort_key) :], key=_sort_key))

    @property
    def idle(self) -> bool:
        """True if the last attempt has ended. The end of a nested run does not count."""
        last = self.events[-1]
        return ends_attempt(last)

    async def wait_for_events(self) -> None:
        """Suspend the caller until another batch is added."""
        waiter = asyncio.get_running_loop().create_future()
        self.waiters.add(waiter)
        try:
            await waiter
        finally:
            self.waiters.discard(waiter)

    def record(self) -> RunRecord:
        """Return the record of the run."""
        # Starting a turn reads the records of all earlier turns, so use a cached record.
        self.cached_record = self.cached_record or self._make_record()
        return self.cached_record

    def _make_record(self) -> RunRecord:
        first, last = self.events[0], self.events[-1]
        task = first if isinstance(first, TaskEvent) else None
        return RunRecord(
            task_id=self.task_id,
            context_id=self.context_id,
            agent_name=task.agent_name if task else "",
            model=task.model if task else "",
            owner=task.owner if task else None,
            metadata=first.metadata,
            usage=self.end.usage if self.end else None,
            error=self.end.error if self.end else None,
            state=self.state,
            attempt=last.attempt,
            seq=last.seq,
            created=find_creation_time(self.events),
            updated=last.timestamp,
        )


def _sort_key(event: Event) -> tuple[int, int]:
    return event.seq, event.sub
