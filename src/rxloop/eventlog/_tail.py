"""The newest events of a run that is followed, read and parsed once for all of its readers in an event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from rxloop.errors import EventLogError
from rxloop.eventlog.rules import FINISHED, state_after
from rxloop.pipeline.values import Until
from rxloop.protocol.events import Event, State, ends_attempt

_MOST = 256
"""Events of a run that are kept in memory; a reader that is further behind reads the log."""
PAGE = 500
"""Events that are read from a log at once, so that a long run is never in memory as a whole."""
Place = tuple[int, int]
"""The `seq` and `sub` of an event."""


@dataclass(frozen=True, slots=True)
class Page:
    """Some events of a run, and how the run stood at that moment."""

    events: Sequence[Event]
    rows: int
    """How many there are, with those that were left out."""
    end: Place
    """The last of them, or where the page begins."""
    seq: int
    """The last durable event of the run."""
    at_rest: bool
    state: State
    number: int
    """That of the run in its log."""

    def last(self, until: Until) -> bool:
        """Whether nothing comes after this page that a follower waits for."""
        return not self.rows and self.at_rest and (until == "attempt" or self.state in FINISHED)


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
        self._state: State = page.state
        self._events = deque[Event]()
        self._early: list[Event] = []
        """Transient events whose durable one has not come yet."""
        self._waiting: tuple[set[asyncio.Future[None]], set[asyncio.Future[None]]] = (set(), set())
        """Those who wait for durable events, and those who wait for all."""
        self._error: EventLogError | None = None

    def take(self, events: Iterable[Event]) -> None:
        """Take what is new, in whatever order it comes; what is here already is passed over."""
        early, self._early = self._early, []
        durable = new = False
        for event in sorted([*events, *early], key=place_of):
            if place_of(event) <= self.place:
                continue
            if event.durable:
                durable = True
                self._state = state_after(self._state, [event])
                self._at_rest = ends_attempt(event)
            elif event.seq > self.place[0]:
                self._early = [*self._early[1 - _MOST :], event]
                continue
            new = True
            self.place = place_of(event)
            self._events.append(event)
            if len(self._events) > _MOST and (oldest := self._events.popleft()).durable:
                self._since = oldest.seq
        if new:
            self._wake(durable=durable)

    def continues(self, expected_seq: int) -> bool:
        """Whether events after that `seq` come next, with nothing missing between them and those that are here."""
        return expected_seq <= self.place[0]

    def stand(self, page: Page) -> None:
        """Take note of how the run stands, after all of its events: the last of them may have been left out."""
        changed = (self._at_rest, self._state) != (page.at_rest, page.state)
        self._at_rest, self._state = page.at_rest, page.state
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

    def over(self, until: Until) -> bool:
        """Whether nothing more comes that a follower waits for.

        Raises:
            EventLogError: The run cannot be followed any more.
        """
        if self._error is not None:
            raise self._error
        return self._at_rest and (until == "attempt" or self._state in FINISHED)

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
    page: Callable[[Place], Awaitable[Page]],
    joined: Callable[[Page], AbstractContextManager[Tail]],
    after_seq: int,
    deltas: bool,
    until: Until,
) -> AsyncIterator[Event]:
    """The events of a run after `after_seq`, then those that come, as `EventLog.follow` gives them.

    Args:
        page: Reads the next events after a place from the log, at most `PAGE` of them.
        joined: Gives the tail of the run, which goes on after a page at the latest.
        after_seq: The last `seq` that is not wanted.
        deltas: Give the transient events too.
        until: Where to stop.
    """
    place: Place = (after_seq, 0)
    while True:
        found = await page(place)
        place = found.end
        for event in found.events:
            yield event
        if found.last(until):
            return
        if not found.rows or (found.rows < PAGE and not found.at_rest):
            break
    with joined(found) as tail:
        while True:
            events = tail.after(place, deltas)
            if events is None:
                found = await page(place)
                if not found.rows:
                    # What came after it was here once.
                    tail.over(until)
                    said = f"the log holds nothing after event {place[0]} of the run {tail.task_id} any more"
                    raise EventLogError(f"{said}: it has gone back; follow it anew, from the last event that you have")
                events, place = found.events, found.end
            elif events:
                place = place_of(events[-1])
            elif tail.over(until):
                return
            else:
                await tail.more(deltas)
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
