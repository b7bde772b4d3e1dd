"""Ordered event subject of a run, with replay for late subscribers and isolated failures."""

from __future__ import annotations

import logging
from contextlib import suppress
from heapq import merge

from reactivex import Observable, abc
from reactivex.disposable import Disposable

from rxloop.errors import RxloopError
from rxloop.protocol.events import Event, ToolProgressEvent
from rxloop.stream.deltas import FRESH, Key, OpenMessage, event_order, make_trimmed_gap, release_complete, slot_name
from rxloop.stream.sources import EventSource
from rxloop.support.foreign_errors import leave_to_loop
from rxloop.support.threads import free_in_thread

log = logging.getLogger("rxloop")


class Hub:
    """Publisher of run events. All subscribers see the same order.

    * Late subscribers first receive the durable events, and the transient events of open messages and calls.
    * If an event is published while another one is being delivered, it is queued to preserve the order.
    * If a subscriber raises, it is detached, and the error is logged. Other subscribers are not affected.

    `reactivex.Subject` does none of this. See docs/design.md for a comparison with `ReplaySubject`.
    """

    def __init__(self, retain: int = 10_000, retain_open: int = 4_096) -> None:
        """Create a hub without subscribers.

        Args:
            retain: Maximum number of durable events for late subscribers.
            retain_open: Maximum number of transient events of one open message before the older half is merged.
        """
        self.trimmed = 0
        """Number of discarded durable events."""
        self._retain_open = retain_open
        self._retain = retain
        # An empty deque would take 600 bytes per run, so use lists.
        self._durable: list[Event] = []
        self._open: dict[Key, OpenMessage] = {}
        self._observers: tuple[abc.ObserverBase[Event], ...] = ()
        self._durable_observers: tuple[abc.ObserverBase[Event], ...] = ()
        self._queue: list[Event | None] = []
        self._delivering = False
        self._completed = False
        self._error: Exception | None = None

    def __del__(self) -> None:
        free_in_thread([[*self._durable]])

    @property
    def events(self) -> Observable[Event]:
        """Observable of the events."""
        # Storing it would create a reference cycle.
        return EventSource(self._subscribe)

    @property
    def subscribers(self) -> int:
        """Number of subscribers."""
        return len(self._observers) + len(self._durable_observers)

    def publish(self, event: Event) -> None:
        """Deliver an event to all subscribers, or queue it if another event is being delivered."""
        if self._delivering:
            self._queue.append(event)
            return
        self._delivering = True
        try:
            self._deliver(event)
            if self._queue:
                self._deliver_queue()
        finally:
            self._delivering = False

    def complete(self, error: Exception | None = None) -> None:
        """End the stream for current and future subscribers. Set an error if the run was refused."""
        self._error = error
        if self._delivering:
            self._queue.append(None)
        else:
            self._finish()

    def get_open_text(self, task_id: str, step: str | None) -> str:
        """Return the text received so far for an open message."""
        message = self._open.get((task_id, step))
        return "" if message is None else message.text()

    def get_open_thought(self, task_id: str, step: str | None) -> str:
        """Return the reasoning text received so far for the open thought of a message."""
        message = self._open.get((task_id, step))
        return "" if message is None else message.reasoning()

    def _deliver(self, event: Event) -> None:
        observers = self._observers
        if event.durable:
            observers += self._durable_observers
            self._retain_event(event)
        else:
            key = (event.task_id, slot_name(event) if type(event) is ToolProgressEvent else event.step)
            message = self._open.get(key)
            if message is None:
                message = self._open[key] = OpenMessage()
            message.fresh.append(event)
            message.count += 1
            if len(message.fresh) >= FRESH or message.count > self._retain_open:
                message.shorten(self._retain_open)
        for observer in observers:
            try:
                observer.on_next(event)
            except BaseException as error:
                log.exception("A subscriber raised at %r and was detached", event)
                self._fail(observer, error)

    def _deliver_queue(self) -> None:
        while self._queue:
            event = self._queue.pop(0)
            if event is None:
                self._finish()
            else:
                self._deliver(event)

    def _retain_event(self, event: Event) -> None:
        self._durable.append(event)
        if len(self._durable) > self._retain:
            del self._durable[0]
            self.trimmed += 1
        if self._open:
            release_complete(self._open, event)

    def _finish(self) -> None:
        self._completed = True
        observers, self._observers, self._durable_observers = self._observers + self._durable_observers, (), ()
        for observer in observers:
            self._end(observer)

    def _end(self, observer: abc.ObserverBase[Event]) -> None:
        try:
            if self._error is None:
                observer.on_completed()
            else:
                observer.on_error(self._error)
        except BaseException as error:
            log.exception("A subscriber raised at the end of the stream")
            leave_to_loop(error)

    def _fail(self, observer: abc.ObserverBase[Event], error: BaseException) -> None:
        """Detach a failed subscriber and send it the error."""
        self._detach(observer)
        # Subscribers without `on_error` raise the error again, but it is already logged.
        with suppress(BaseException):
            observer.on_error(error if isinstance(error, Exception) else RxloopError(f"a subscriber raised {error!r}"))
        leave_to_loop(error)

    def _detach(self, observer: abc.ObserverBase[Event]) -> None:
        self._observers = tuple(other for other in self._observers if other is not observer)
        self._durable_observers = tuple(other for other in self._durable_observers if other is not observer)

    def _subscribe(self, observer: abc.ObserverBase[Event], only_durable: bool) -> abc.DisposableBase:
        # Callbacks may publish during replay, so queue their events.
        nested, self._delivering = self._delivering, True
        try:
            self._start(observer, only_durable)
            if not nested:
                self._deliver_queue()
        finally:
            self._delivering = nested
        return Disposable(lambda: self._detach(observer))

    def _start(self, observer: abc.ObserverBase[Event], only_durable: bool) -> None:
        try:
            self._replay(observer, only_durable)
        except BaseException as error:
            log.exception("A subscriber raised during the replay of past events and was detached")
            self._fail(observer, error)
            return
        if self._completed:
            self._end(observer)
        elif only_durable:
            self._durable_observers = (*self._durable_observers, observer)
        else:
            self._observers = (*self._observers, observer)

    def _replay(self, observer: abc.ObserverBase[Event], only_durable: bool) -> None:
        if self.trimmed:
            observer.on_next(make_trimmed_gap(self._durable[0], self.trimmed))
        messages = [] if only_durable else [list(message.events()) for message in self._open.values()]
        for event in merge(self._durable.copy(), *messages, key=event_order):
            observer.on_next(event)
