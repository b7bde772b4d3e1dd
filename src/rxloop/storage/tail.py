"""Newest events of a followed run, read once for all readers."""

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
"""Events of a run that are kept in memory; a reader that is further behind reads the log."""

PAGE = 500
"""Events that are read from a log at once, so that a long run is never in memory as a whole."""

Place = tuple[int, int]
"""The `seq` and `sub` of an event."""


@dataclass(frozen=True, slots=True)
class Page:
    """The events of a run after a place, behind the durable one at that place; and how the run stood at that moment."""

    events: Sequence[Event]
    rows: int
    """How many there are, with those that were left out."""
    end: Place
    """The last of them, or the place."""
    seq: int
    """The last durable event of the run."""
    at_rest: bool
    finished: bool
    """Whether nothing more can come of the run."""
    number: int
    """That of the run in its log."""

    def over(self, until: Until) -> bool:
        """Whether nothing comes after this page, if it is the last one, that a follower waits for."""
        return self.at_rest and (until == "attempt" or self.finished)


def unread(events: Sequence[Event], place: Place, last: Event | None, task_id: str) -> list[Event]:
    """What of a page comes after its place, for a reader that has the durable event there.

    Args:
        events: Those of the page.
        place: Where it begins.
        last: The last durable event that the reader has; None if that is not known.
        task_id: The run.

    Raises:
        LogRolledBack: The log does not have that event any more.
    """
    if last is not None and last.seq == place[0] and not (events and same(events[0], last)):
        raise went_back(task_id, last.seq)
    return [event for event in events if place_of(event) > place]


class Tail:
    """The newest events of a run, as they come; and who waits for more of them."""

    def __init__(self, task_id: str, page: Page) -> None:
        """Begin with nothing, after what a page has shown."""
        self.task_id, self.number = task_id, page.number
        self.place: Place = (page.seq, 0)
        """That of the last event."""
        self.readers = 0
        self._since = page.seq
        """The durable events after this one are here."""
        self._at_rest = page.at_rest
        self._finished = page.finished
        self._before = self._last = last_of(page.events, None)
        """The durable event before those that are here, and the last one."""
        self._events = deque[Event]()
        self._early: list[Event] = []
        """Transient events whose durable one has not come yet."""
        self._waiting: tuple[set[asyncio.Future[None]], set[asyncio.Future[None]]] = (set(), set())
        """Those who wait for durable events, and those who wait for all."""
        self._error: EventLogError | None = None

    def grow(self, events: Sequence[Event], place: Place) -> None:
        """Take the events of a page that begins at that place.

        Raises:
            LogRolledBack: The log is not the one that the events here are from.
        """
        self._take(unread(events, place, self._last, self.task_id), [])

    def told(self, event: Event) -> None:
        """Take a transient event that came by itself, in whatever order; what is here already is passed over."""
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
        """Whether a transient event that was told is one of those after the last durable one.

        The log may have gone back, which shows in what is read alone: the number may be that of another run by now.
        """
        last = self._last
        if last is None:
            return True
        # Nobody has stamped those that have no run.
        of = {event.root_task_id, last.root_task_id} - {""}
        return len(of) < 2 and event.attempt == last.attempt

    def stand(self, page: Page) -> None:
        """Take note of how the run stands, after all of its events: the last of them may have been left out."""
        changed = (self._at_rest, self._finished) != (page.at_rest, page.finished)
        self._at_rest, self._finished = page.at_rest, page.finished
        if changed:
            self._wake(durable=True)

    def fail(self, error: EventLogError) -> None:
        """End the readers with an error."""
        self._error = error
        self._wake(durable=True)

    def _wake(self, *, durable: bool) -> None:
        for waiting in self._waiting if durable else self._waiting[1:]:
            for waiter in waiting:
                if not waiter.done():
                    waiter.set_result(None)
            waiting.clear()

    def after(self, place: Place, deltas: bool) -> list[Event] | None:
        """The events after a place; None if some of them are not here any more."""
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
        """Whether the last durable event of a reader is here; False if the tail is not as far, or has forgotten it.

        Raises:
            LogRolledBack: Another one is in its place.
        """
        for event in (*reversed(self._events), self._before):
            if event is not None and event.durable and event.seq <= last.seq:
                if event.seq == last.seq and not same(event, last):
                    raise went_back(self.task_id, last.seq)
                return event.seq == last.seq
        return False

    def over(self, until: Until) -> bool:
        """Whether nothing more comes that a follower waits for.

        Raises:
            EventLogError: The run cannot be followed any more.
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
    """The events of a run after `after_seq`, then those that come, as `EventLog.follow` gives them.

    Args:
        task_id: The run.
        page: Reads the next events after a place from the log, at most `PAGE` of them.
        joined: Gives the tail of the run, which goes on after a page at the latest.
        after_seq: The last `seq` that is not wanted.
        deltas: Give the transient events too.
        until: Where to stop.

    Raises:
        LogRolledBack: The log lacks an event that was given.
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
        # The reader is ahead of the log: the tail is not.
        found = await page((found.seq, 0))
    with joined(found) as tail:
        known = False
        while True:
            events = tail.after(place, deltas)
            if events is None or (not events and not known and last is not None and tail.over(until)):
                # It has forgotten what comes next; or it is over, and may never have had what the reader has.
                found = await page(place)
                events = unread(found.events, place, last, task_id)
                if found.end == place:
                    if found.over(until):
                        return
                    # What came after it was here once.
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
    """The tails of the runs that are followed in one event loop."""

    def __init__(self, begun: Callable[[Tail], None], ended: Callable[[Tail], None] | None = None) -> None:
        """Begin with none.

        Args:
            begun: Called with each new tail, which has to be fed with everything after its place.
            ended: Called with a tail when its last reader has left.
        """
        self._begun, self._ended = begun, ended
        self.of_task: dict[str, Tail] = {}
        self.of_number: dict[int, Tail] = {}

    @contextmanager
    def joined(self, task_id: str, page: Page) -> Generator[Tail]:
        """The tail of a run, while the block lasts; a new one begins after the page."""
        tail = self.of_task.get(task_id)
        if tail is None or tail.number != page.number:
            # The log has gone back: the run has another number now, and its number was that of another run.
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
        """Feed a tail no more."""
        if self.of_task.get(tail.task_id) is tail:
            del self.of_task[tail.task_id]
        if self.of_number.get(tail.number) is tail:
            del self.of_number[tail.number]
            if self._ended is not None:
                self._ended(tail)

    def fail(self, error: EventLogError) -> None:
        """End all readers with an error."""
        for tail in list(self.of_task.values()):
            self.forget(tail)
            tail.fail(error)


def place_of(event: Event) -> Place:
    """The place of an event in its run."""
    return event.seq, event.sub


def last_of(events: Sequence[Event], last: Event | None) -> Event | None:
    """The last durable event, `last` where there is none."""
    return next((event for event in reversed(events) if event.durable), last)
