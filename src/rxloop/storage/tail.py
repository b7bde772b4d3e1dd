"""Recent events of followed runs, shared by all readers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from rxloop.errors import EventLogError
from rxloop.pipeline.records import Until, finishes
from rxloop.protocol.events import Event, ends_attempt
from rxloop.storage.rules import same, went_back

_MOST = 256
"""Maximum number of buffered events per run. Slower readers read from the log."""

PAGE = 500
"""Page size for log reads, so that long runs are never loaded at once."""

Place = tuple[int, int]
"""`seq` and `sub` of an event."""


@dataclass(frozen=True, slots=True)
class Page:
    """Events read from a position, including the durable event at that position, with the status of the run."""

    events: Sequence[Event]
    rows: int
    """Number of rows, including skipped events."""
    end: Place
    """Position of the last row, or the start position."""
    seq: int
    """`seq` of the last durable event."""
    at_rest: bool
    finished: bool
    """True if the run cannot produce further events."""
    number: int
    """Run number in the log."""

    def over(self, until: Until) -> bool:
        """Return True if a follower can stop after this page, assuming it is the last page."""
        return self.at_rest and (until == "attempt" or self.finished)


def unread(events: Sequence[Event], place: Place, last: Event | None, task_id: str) -> list[Event]:
    """Return the events after a position.

    Args:
        events: Events of the page.
        place: Start position of the page.
        last: Last durable event received by the reader, or None if unknown.
        task_id: Run ID.

    Raises:
        LogRolledBack: If the log no longer contains `last`.
    """
    if last is not None and last.seq == place[0] and not (events and same(events[0], last)):
        raise went_back(task_id, last.seq)
    return [event for event in events if place_of(event) > place]


class Tail:
    """Buffer for recent events, with its waiting readers."""

    def __init__(self, task_id: str, page: Page) -> None:
        """Start an empty buffer after a page."""
        self.task_id, self.number = task_id, page.number
        self.place: Place = (page.seq, 0)
        """Position of the last event."""
        self.readers = 0
        self._since = page.seq
        """All durable events after this `seq` are buffered."""
        self._at_rest = page.at_rest
        self._finished = page.finished
        self._before = self._last = last_of(page.events, None)
        """Last durable event before the buffer, and last durable event."""
        self._events = deque[Event]()
        self._early: list[Event] = []
        """Transient events that arrived before their durable event."""
        self._waiting: tuple[set[asyncio.Future[None]], set[asyncio.Future[None]]] = (set(), set())
        """Readers waiting for durable events, and readers waiting for any event."""
        self._error: EventLogError | None = None

    def grow(self, events: Sequence[Event], place: Place) -> None:
        """Add a page of events, starting at `place`.

        Raises:
            LogRolledBack: If the page does not match the buffered events.
        """
        self._take(unread(events, place, self._last, self.task_id), [])

    def told(self, event: Event) -> None:
        """Add a transient event that was delivered separately, in any order. Duplicates are ignored."""
        self._take([], [event])

    def _take(self, found: Sequence[Event], told: Sequence[Event]) -> None:
        told, self._early = [*self._early, *told], []
        doubtful = {*map(id, told)}
        durable = new = False
        for event in sorted([*found, *told], key=place_of):
            if place_of(event) <= self.place:
                continue
            if event.durable:
                durable = True
                self._last = event
                self._at_rest, self._finished = ends_attempt(event), finishes(event)
            elif event.seq > self.place[0]:
                self._early = [*self._early[1 - _MOST :], event]
                continue
            elif id(event) in doubtful and not self._belongs(event):
                continue
            new = True
            self.place = place_of(event)
            self._events.append(event)
            if len(self._events) > _MOST and (oldest := self._events.popleft()).durable:
                self._before, self._since = oldest, oldest.seq
        if new:
            self._wake(durable=durable)

    def _belongs(self, event: Event) -> bool:
        """Return True if a notified transient event follows the last durable event of the same run and attempt.

        After a log rollback, the run number may belong to another run. Notifications alone do not reveal this.
        """
        last = self._last
        if last is None:
            return True
        # Events created outside a run have no root run ID.
        of = {event.root_task_id, last.root_task_id} - {""}
        return len(of) < 2 and event.attempt == last.attempt

    def stand(self, page: Page) -> None:
        """Update the run status after its last page. The last event itself may have been skipped."""
        changed = (self._at_rest, self._finished) != (page.at_rest, page.finished)
        self._at_rest, self._finished = page.at_rest, page.finished
        if changed:
            self._wake(durable=True)

    def fail(self, error: EventLogError) -> None:
        """Raise an error in all readers."""
        self._error = error
        self._wake(durable=True)

    def _wake(self, *, durable: bool) -> None:
        for waiting in self._waiting if durable else self._waiting[1:]:
            for waiter in waiting:
                if not waiter.done():
                    waiter.set_result(None)
            waiting.clear()

    def after(self, place: Place, deltas: bool) -> list[Event] | None:
        """Return the buffered events after a position, or None if some of them were dropped."""
        if place[0] < self._since:
            return None
        found: list[Event] = []
        for event in reversed(self._events):
            if place_of(event) <= place:
                break
            if deltas or event.durable:
                found.append(event)
        found.reverse()
        return found

    def knows(self, last: Event) -> bool:
        """Return True if the buffer contains the last durable event of a reader.

        Raises:
            LogRolledBack: If the buffer contains a different event with this `seq`.
        """
        for event in (*reversed(self._events), self._before):
            if event is not None and event.durable and event.seq <= last.seq:
                if event.seq == last.seq and not same(event, last):
                    raise went_back(self.task_id, last.seq)
                return event.seq == last.seq
        return False

    def over(self, until: Until) -> bool:
        """Return True if a follower can stop.

        Raises:
            EventLogError: If the run can no longer be followed.
        """
        if self._error is not None:
            raise self._error
        return self._at_rest and (until == "attempt" or self._finished)

    async def more(self, deltas: bool) -> None:
        """Wait for the next event."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting[deltas]
        waiting.add(waiter)
        try:
            await waiter
        finally:
            waiting.discard(waiter)


async def followed(
    task_id: str,
    page: Callable[[Place], Awaitable[Page]],
    joined: Callable[[Page], AbstractContextManager[Tail]],
    after_seq: int,
    deltas: bool,
    until: Until,
) -> AsyncIterator[Event]:
    """Implement `EventLog.follow` by reading pages, then the shared tail.

    Args:
        task_id: Run ID.
        page: Function that reads up to `PAGE` events after a position.
        joined: Context manager for the shared tail, which continues no later than the given page.
        after_seq: Skip events up to this `seq`.
        deltas: Include transient events.
        until: When to stop.

    Raises:
        LogRolledBack: If an event that was already yielded is missing from the log.
    """
    place: Place = (after_seq, 0)
    last: Event | None = None
    while True:
        found = await page(place)
        events, more, place = unread(found.events, place, last, task_id), found.end > place, found.end
        last = last_of(found.events, last)
        for event in events:
            yield event
        if not more and found.over(until):
            return
        if not more or (found.rows < PAGE and not found.at_rest):
            break
    if found.seq < place[0]:
        # The reader is ahead of the log, but the tail must start at the end of the log.
        found = await page((found.seq, 0))
    with joined(found) as tail:
        known = False
        while True:
            events = tail.after(place, deltas)
            if events is None or (not events and not known and last is not None and tail.over(until)):
                # Read the log if the buffer has dropped events, or to verify the last event of the reader before
                # stopping.
                found = await page(place)
                events = unread(found.events, place, last, task_id)
                if found.end == place:
                    if found.over(until):
                        return
                    # The buffer had later events, so the log was rolled back.
                    raise went_back(task_id, place[0])
                known, place = False, found.end
            elif events:
                known = known or last is None or tail.knows(last)
                place = place_of(events[-1])
            elif tail.over(until):
                return
            else:
                await tail.more(deltas)
            last = last_of(events, last)
            for event in events:
                yield event


class Tails:
    """Shared tails of the runs followed in one event loop."""

    def __init__(self, begun: Callable[[Tail], None], ended: Callable[[Tail], None] | None = None) -> None:
        """Create an empty collection.

        Args:
            begun: Called with each new tail. The callback must feed all events after the tail's position.
            ended: Called when the last reader of a tail has left.
        """
        self._begun, self._ended = begun, ended
        self.of_task: dict[str, Tail] = {}
        self.of_number: dict[int, Tail] = {}

    @contextmanager
    def joined(self, task_id: str, page: Page) -> Generator[Tail]:
        """Join the tail of a run for the duration of the block. A new tail starts after the page."""
        tail = self.of_task.get(task_id)
        if tail is None or tail.number != page.number:
            # After a log rollback, runs have new numbers, and old numbers may belong to other runs.
            for other in (tail, self.of_number.get(page.number)):
                if other is not None:
                    self.forget(other)
                    other.fail(went_back(other.task_id, other.place[0]))
            tail = self.of_task[task_id] = self.of_number[page.number] = Tail(task_id, page)
            self._begun(tail)
        tail.readers += 1
        try:
            yield tail
        finally:
            tail.readers -= 1
            if not tail.readers:
                self.forget(tail)

    def forget(self, tail: Tail) -> None:
        """Stop feeding a tail."""
        if self.of_task.get(tail.task_id) is tail:
            del self.of_task[tail.task_id]
        if self.of_number.get(tail.number) is tail:
            del self.of_number[tail.number]
            if self._ended is not None:
                self._ended(tail)

    def fail(self, error: EventLogError) -> None:
        """Raise an error in all readers."""
        for tail in list(self.of_task.values()):
            self.forget(tail)
            tail.fail(error)


def place_of(event: Event) -> Place:
    """Return an event's position."""
    return event.seq, event.sub


def last_of(events: Sequence[Event], last: Event | None) -> Event | None:
    """Return the last durable event, or `last` if there is none."""
    return next((event for event in reversed(events) if event.durable), last)
