"""Recent events of followed runs, shared by all readers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace

from rxloop.errors import EventLogError
from rxloop.pipeline.records import Until, finishes
from rxloop.protocol.events import Event, ends_attempt
from rxloop.storage.rules import is_same, make_rollback_error

_MAX_EVENTS = 256
"""Maximum number of buffered events per run. Slower readers read from the log."""

_MAX_BYTES = 1 << 20
"""Maximum size of the buffered events per run, unless a single event is larger."""

PAGE_SIZE = 500
"""Maximum number of events per page for log reads, so that long runs are never loaded at once."""

PAGE_BYTES = 1 << 18
"""Size in bytes after which a page ends. A page has at least one event."""

Position = tuple[int, int]
"""`seq` and `sub` of an event."""


@dataclass(frozen=True, slots=True)
class Page:
    """Events read from a position, including the durable event at that position, with the status of the run."""

    events: Sequence[Event]
    is_full: bool
    """True if the page has ended because of its size, so that further events may exist."""
    end: Position
    """Position of the last row, or the start position."""
    seq: int
    """`seq` of the last durable event."""
    idle: bool
    finished: bool
    """True if the run cannot produce further events."""
    number: int
    """Run number in the log."""

    def is_over(self, until: Until) -> bool:
        """Return True if a follower can stop after this page, assuming it is the last page."""
        return self.idle and (until == "attempt" or self.finished)


def select_unread(events: Sequence[Event], position: Position, last: Event | None, task_id: str) -> list[Event]:
    """Return the events after a position.

    Args:
        events: Events of the page.
        position: Start position of the page.
        last: Last durable event received by the reader, or None if unknown.
        task_id: Run ID.

    Raises:
        LogRolledBack: If the log no longer contains `last`.
    """
    if last is not None and last.seq == position[0] and not (events and is_same(events[0], last)):
        raise make_rollback_error(task_id, last.seq)
    return [event for event in events if get_position(event) > position]


class Tail:
    """Buffer for recent events, with its waiting readers."""

    def __init__(self, task_id: str, page: Page) -> None:
        """Start an empty buffer after a page."""
        self.task_id, self.number = task_id, page.number
        self.position: Position = (page.seq, 0)
        """Position of the last event."""
        self.readers = 0
        self._since = page.seq
        """All durable events after this `seq` are buffered."""
        self._idle = page.idle
        self._finished = page.finished
        self._last_dropped = self._last = find_last_durable(page.events, None)
        """Last durable event before the buffer, and last durable event."""
        self._events = deque[Event]()
        self._size = 0
        """Size of the buffered events."""
        self._early: list[Event] = []
        """Transient events that arrived before their durable event."""
        self._waiting: tuple[set[asyncio.Future[None]], set[asyncio.Future[None]]] = (set(), set())
        """Readers waiting for durable events, and readers waiting for any event."""
        self._error: EventLogError | None = None

    def add_page(self, events: Sequence[Event], position: Position) -> None:
        """Add a page of events, starting at `position`.

        Raises:
            LogRolledBack: If the page does not match the buffered events.
        """
        self._add(select_unread(events, position, self._last, self.task_id), [])

    def add_transient(self, event: Event) -> None:
        """Add a transient event that was delivered separately, in any order. Duplicates are ignored."""
        self._add([], [event])

    def _add(self, stored: Sequence[Event], transient: Sequence[Event]) -> None:
        transient, self._early = [*self._early, *transient], []
        transient_ids = {*map(id, transient)}
        durable = has_new = False
        for event in sorted([*stored, *transient], key=get_position):
            if get_position(event) <= self.position:
                continue
            if event.durable:
                durable = True
                self._last = event
                self._idle, self._finished = ends_attempt(event), finishes(event)
            elif event.seq > self.position[0]:
                self._early = [*self._early[1 - _MAX_EVENTS :], event]
                continue
            elif id(event) in transient_ids and not self._belongs(event):
                continue
            has_new = True
            self.position = get_position(event)
            self._events.append(event)
            self._size += event.decoded_size
            while len(self._events) > _MAX_EVENTS or (self._size > _MAX_BYTES and len(self._events) > 1):
                self._drop_oldest()
        if has_new:
            self._wake(durable=durable)

    def _drop_oldest(self) -> None:
        oldest = self._events.popleft()
        self._size -= oldest.decoded_size
        if oldest.durable:
            self._last_dropped, self._since = oldest, oldest.seq

    def _belongs(self, event: Event) -> bool:
        """Return True if a notified transient event follows the last durable event of the same run and attempt.

        After a log rollback, the run number may belong to another run. Notifications alone do not reveal this.
        """
        last = self._last
        if last is None:
            return True
        # Events created outside a run have no root run ID.
        root_ids = {event.root_task_id, last.root_task_id} - {""}
        return len(root_ids) < 2 and event.attempt == last.attempt

    def set_status(self, page: Page) -> None:
        """Update the run status after its last page. The last event itself may have been skipped."""
        changed = (self._idle, self._finished) != (page.idle, page.finished)
        self._idle, self._finished = page.idle, page.finished
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

    def get_events(self, position: Position, deltas: bool) -> list[Event] | None:
        """Return the buffered events after a position, or None if some of them were dropped."""
        if position[0] < self._since:
            return None
        events: list[Event] = []
        for event in reversed(self._events):
            if get_position(event) <= position:
                break
            if deltas or event.durable:
                events.append(event)
        events.reverse()
        return events

    def contains(self, last: Event) -> bool:
        """Return True if the buffer contains the last durable event of a reader.

        Raises:
            LogRolledBack: If the buffer contains a different event with this `seq`.
        """
        for event in (*reversed(self._events), self._last_dropped):
            if event is not None and event.durable and event.seq <= last.seq:
                if event.seq == last.seq and not is_same(event, last):
                    raise make_rollback_error(self.task_id, last.seq)
                return event.seq == last.seq
        return False

    def is_over(self, until: Until) -> bool:
        """Return True if a follower can stop.

        Raises:
            EventLogError: If the run can no longer be followed.
        """
        if self._error is not None:
            raise self._error
        return self._idle and (until == "attempt" or self._finished)

    async def wait(self, deltas: bool) -> None:
        """Wait for the next event."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting[deltas]
        waiting.add(waiter)
        try:
            await waiter
        finally:
            waiting.discard(waiter)


async def follow_events(
    task_id: str,
    read_page: Callable[[Position], Awaitable[Page]],
    join: Callable[[Page], AbstractContextManager[Tail]],
    after_seq: int,
    deltas: bool,
    until: Until,
) -> AsyncIterator[Event]:
    """Implement `EventLog.follow` by reading pages, then the shared tail.

    Args:
        task_id: Run ID.
        read_page: Function that reads a page of events after a position.
        join: Context manager for the shared tail, which continues no later than the given page.
        after_seq: Skip events up to this `seq`.
        deltas: Include transient events.
        until: When to stop.

    Raises:
        LogRolledBack: If an event that was already yielded is missing from the log.
    """
    position: Position = (after_seq, 0)
    last: Event | None = None
    while True:
        page = await read_page(position)
        events, has_more, position = select_unread(page.events, position, last, task_id), page.end > position, page.end
        last = find_last_durable(page.events, last)
        is_over, is_last = page.is_over(until), not has_more or not (page.is_full or page.idle)
        if not is_last:
            # Do not keep large events while the reader is waiting.
            page = replace(page, events=())
        for event in events:
            yield event
        if not has_more and is_over:
            return
        if is_last:
            break
    if page.seq < position[0]:
        # The reader is ahead of the log, but the tail must start at the end of the log.
        page = await read_page((page.seq, 0))
    with join(page) as tail:
        is_verified = False
        while True:
            events = tail.get_events(position, deltas)
            if events is None or (not events and not is_verified and last is not None and tail.is_over(until)):
                # Read the log if the buffer has dropped events, or to verify the last event of the reader before
                # stopping.
                is_behind = tail.position < position
                page = await read_page(position)
                events = select_unread(page.events, position, last, task_id)
                is_verified = page.end == position
                if page.end == position:
                    if page.is_over(until):
                        return
                    if page.seq < position[0] or not is_behind:
                        # The buffer had later events, so the log was rolled back.
                        raise make_rollback_error(task_id, position[0])
                    # The reader has read the log before the tail received the events of a new attempt.
                position = page.end
            elif events:
                is_verified = is_verified or last is None or tail.contains(last)
                position = get_position(events[-1])
            elif tail.is_over(until) and not (is_verified and tail.position < position):
                return
            else:
                await tail.wait(deltas)
            last = find_last_durable(events, last)
            for event in events:
                yield event


class Tails:
    """Shared tails of the runs followed in one event loop."""

    def __init__(self, on_start: Callable[[Tail], None], on_end: Callable[[Tail], None] | None = None) -> None:
        """Create the collection without any tails.

        Args:
            on_start: Called with each new tail. The callback must feed all events after the tail's position.
            on_end: Called when the last reader of a tail has left.
        """
        self._on_start, self._on_end = on_start, on_end
        self.by_task: dict[str, Tail] = {}
        self.by_number: dict[int, Tail] = {}

    @contextmanager
    def join(self, task_id: str, page: Page) -> Generator[Tail]:
        """Join the tail of a run for the duration of the block. A new tail starts after the page."""
        tail = self.by_task.get(task_id)
        if tail is None or tail.number != page.number:
            # After a log rollback, runs have new numbers, and old numbers may belong to other runs.
            for other in (tail, self.by_number.get(page.number)):
                if other is not None:
                    self.forget(other)
                    other.fail(make_rollback_error(other.task_id, other.position[0]))
            tail = self.by_task[task_id] = self.by_number[page.number] = Tail(task_id, page)
            self._on_start(tail)
        tail.readers += 1
        try:
            yield tail
        finally:
            tail.readers -= 1
            if not tail.readers:
                self.forget(tail)

    def forget(self, tail: Tail) -> None:
        """Stop feeding a tail."""
        if self.by_task.get(tail.task_id) is tail:
            del self.by_task[tail.task_id]
        if self.by_number.get(tail.number) is tail:
            del self.by_number[tail.number]
            if self._on_end is not None:
                self._on_end(tail)

    def fail(self, error: EventLogError) -> None:
        """Raise an error in all readers."""
        for tail in list(self.by_task.values()):
            self.forget(tail)
            tail.fail(error)


def get_position(event: Event) -> Position:
    """Return an event's position."""
    return event.seq, event.sub


def find_last_durable(events: Sequence[Event], last: Event | None) -> Event | None:
    """Return the last durable event, or `last` if there is none."""
    return next((event for event in reversed(events) if event.durable), last)
