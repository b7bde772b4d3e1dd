"""Subject of a run: one order, late subscribers, isolated failures."""

from __future__ import annotations

import logging
from contextlib import suppress
from heapq import merge

from reactivex import Observable, abc
from reactivex.disposable import Disposable

from rxloop.errors import RxloopError
from rxloop.protocol.events import Event, ToolProgressEvent
from rxloop.stream.deltas import FRESH, Key, OpenMessage, event_order, make_gap, release_complete, slot_name
from rxloop.support.foreign_errors import leave_to_loop

log = logging.getLogger("rxloop")


class Hub:
    """Publishes the events of a run to all its subscribers, in one order.

    * A late subscriber first gets the durable events and the transient events of open messages and calls.
    * An event that is published during the delivery of another event waits, so that all subscribers see the same order.
    * A subscriber that raises is detached and logged. Other subscribers are not affected.

    `reactivex.Subject` has none of these properties. docs/design.md compares `ReplaySubject`.
    """

    def __init__(self, retain: int = 10_000, retain_open: int = 4_096) -> None:
        """Create a hub without subscribers.

        Args:
            retain: Maximum number of durable events for late subscribers.
            retain_open: Maximum number of transient events of one open message before the older half is merged.
        """
        self.events: Observable[Event] = Observable(self._subscribe)
        self.trimmed = 0
        """Number of durable events that are no longer retained."""
        self._retain_open = retain_open
        self._retain = retain
        # An empty deque would take 600 bytes per run, so use lists.
        self._durable: list[Event] = []
        self._open: dict[Key, OpenMessage] = {}
        self._observers: tuple[abc.ObserverBase[Event], ...] = ()
        self._waiting: list[Event | None] = []
        self._delivering = False
        self._completed = False
        self._error: Exception | None = None

    @property
    def subscribers(self) -> int:
        """Number of subscribers."""
        return len(self._observers)

    def publish(self, event: Event) -> None:
        """Deliver an event to all subscribers, after the event that is being delivered."""
        if self._delivering:
            self._waiting.append(event)
            return
        self._delivering = True
        try:
            self._deliver(event)
            if self._waiting:
                self._deliver_waiting()
        finally:
            self._delivering = False

    def complete(self, error: Exception | None = None) -> None:
        """End the stream for present and later subscribers, with an error if the run was refused."""
        self._error = error
        if self._delivering:
            self._waiting.append(None)
        else:
            self._finish()

    def open_text(self, task_id: str, step: str | None) -> str:
        """Return the text of an open message so far."""
        message = self._open.get((task_id, step))
        return "" if message is None else message.text()

    def open_thought(self, task_id: str, step: str | None) -> str:
        """Return the text of the open thought of an open message so far."""
        message = self._open.get((task_id, step))
        return "" if message is None else message.reasoning()

    def _deliver(self, event: Event) -> None:
        if event.durable:
            self._keep(event)
        else:
            key = (event.task_id, slot_name(event) if type(event) is ToolProgressEvent else event.step)
            message = self._open.get(key)
            if message is None:
                message = self._open[key] = OpenMessage()
            message.fresh.append(event)
            message.count += 1
            if len(message.fresh) >= FRESH or message.count > self._retain_open:
                message.shorten(self._retain_open)
        for observer in self._observers:
            try:
                observer.on_next(event)
            except BaseException as error:
                log.exception("a subscriber raised at %r and was detached", event)
                self._fail(observer, error)

    def _deliver_waiting(self) -> None:
        while self._waiting:
            following = self._waiting.pop(0)
            if following is None:
                self._finish()
            else:
                self._deliver(following)

    def _keep(self, event: Event) -> None:
        self._durable.append(event)
        if len(self._durable) > self._retain:
            del self._durable[0]
            self.trimmed += 1
        if self._open:
            release_complete(self._open, event)

    def _finish(self) -> None:
        self._completed = True
        observers, self._observers = self._observers, ()
        for observer in observers:
            self._end(observer)

    def _end(self, observer: abc.ObserverBase[Event]) -> None:
        try:
            if self._error is None:
                observer.on_completed()
            else:
                observer.on_error(self._error)
        except BaseException as error:
            log.exception("a subscriber raised at the end of the stream")
            leave_to_loop(error)

    def _fail(self, observer: abc.ObserverBase[Event], error: BaseException) -> None:
        """Detach a subscriber that raised, and end its stream with the error."""
        self._detach(observer)
        # A subscriber without `on_error` raises the error again, but it is already logged.
        with suppress(BaseException):
            observer.on_error(error if isinstance(error, Exception) else RxloopError(f"a subscriber raised {error!r}"))
        leave_to_loop(error)

    def _detach(self, observer: abc.ObserverBase[Event]) -> None:
        self._observers = tuple(other for other in self._observers if other is not observer)

    def _subscribe(
        self, observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None
    ) -> abc.DisposableBase:
        # A callback can publish during the replay. The new event follows the past events for this subscriber too.
        nested, self._delivering = self._delivering, True
        try:
            self._begin(observer)
            if not nested:
                self._deliver_waiting()
        finally:
            self._delivering = nested
        return Disposable(lambda: self._detach(observer))

    def _begin(self, observer: abc.ObserverBase[Event]) -> None:
        try:
            self._replay(observer)
        except BaseException as error:
            log.exception("a subscriber raised while it got the past events, and was detached")
            self._fail(observer, error)
            return
        if self._completed:
            self._end(observer)
        else:
            self._observers = (*self._observers, observer)

    def _replay(self, observer: abc.ObserverBase[Event]) -> None:
        if self.trimmed:
            observer.on_next(make_gap(self._durable[0], self.trimmed))
        messages = [list(message.events()) for message in self._open.values()]
        for event in merge(self._durable.copy(), *messages, key=event_order):
            observer.on_next(event)
