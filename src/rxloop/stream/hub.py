"""The one subject of a run."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from heapq import merge
from typing import Any

from reactivex import Observable, abc
from reactivex.disposable import Disposable

from rxloop.errors import RxloopError
from rxloop.protocol.events import (
    ContentCompleteEvent,
    Event,
    GapEvent,
    LLMCallEvent,
    ThoughtStreamEvent,
    ToolCallDeltaEvent,
    ToolCompleteEvent,
    ToolProgressEvent,
    ends_attempt,
)
from rxloop.stream.deltas import MergedDeltas, PackedDeltas, delta_text, packed
from rxloop.support.foreign_errors import leave_to_loop

log = logging.getLogger("rxloop")
Key = tuple[str, str | None]

_FRESH = 16
"""So many deltas of an open message are packed together: an event takes a hundred times the memory of a token."""


class _Transient:
    """The transient events of a message or call that is not complete, for late subscribers."""

    __slots__ = ("count", "fresh", "merged", "past", "thought")

    def __init__(self) -> None:
        self.merged: dict[tuple[str, int], MergedDeltas] = {}
        """The oldest, each kind of text by itself, and each tool call."""
        self.past: list[Event | PackedDeltas] = []
        self.fresh: list[Event] = []
        """The newest, which are not packed yet."""
        self.count = 0
        """All that are not merged."""
        self.thought = 0
        """The `seq` of the last thought that is complete."""

    def merge(self, deltas: Event | PackedDeltas) -> None:
        """Merge what comes next with what is merged of its text."""
        first = deltas if isinstance(deltas, Event) else deltas.first
        key = (first.kind, first.index if isinstance(first, ToolCallDeltaEvent) else 0)
        text = self.merged.get(key)
        # The next thought is another text, and the last one has a durable event by now.
        if text is None or (first.kind == "thought-delta" and text.seq < self.thought <= first.seq):
            text = self.merged[key] = MergedDeltas()
        text.add(deltas)

    def events(self) -> Iterator[Event]:
        """Return all of them, in order."""
        yield from sorted((text.event() for text in self.merged.values()), key=_order)
        for item in self.past:
            if isinstance(item, PackedDeltas):
                yield from item.events()
            else:
                yield item
        yield from self.fresh

    def text(self) -> str:
        """Return the text that has streamed."""
        pieces = [
            delta_text(item) or "" if isinstance(item, Event) else item.text
            for item in (*self.past, *self.fresh)
            if item.kind == "content-delta"
        ]
        old = self.merged.get(("content-delta", 0))
        return "".join(pieces if old is None else (old.text, *pieces))

    def reasoning(self) -> str:
        """Return the text that has streamed of a thought that is not complete."""
        pieces = [event for event in self.events() if event.kind == "thought-delta" and event.seq >= self.thought]
        return "".join(delta_text(event) or "" for event in pieces)


class Hub:
    """Publishes the events of a run to all its subscribers, in one order.

    * A late subscriber gets what is retained first: the durable events, and the transient ones of what is still open.
    * An event that is published while another one is being delivered waits its turn, so that all subscribers see the
      same order.
    * A subscriber that raises is detached and logged, and the others do not notice.

    Not a `reactivex.Subject`, which lacks all three; docs/design.md says why `ReplaySubject` is not a substitute.
    """

    def __init__(self, retain: int = 10_000, retain_open: int = 4_096) -> None:
        """Make a hub.

        Args:
            retain: How many durable events late subscribers get.
            retain_open: How many transient events of one open message are kept before the older half of them is merged.
        """
        self.events: Observable[Event] = Observable(self._subscribe)
        self.trimmed = 0
        """Durable events that are not retained any more."""
        self._retain_open = retain_open
        self._retain = retain
        # No deques: an empty one takes 600 bytes in each run.
        self._durable: list[Event] = []
        self._open: dict[Key, _Transient] = {}
        self._observers: tuple[abc.ObserverBase[Event], ...] = ()
        self._waiting: list[Event | None] = []
        self._delivering = False
        self._completed = False
        self._error: Exception | None = None

    @property
    def subscribers(self) -> int:
        """How many are subscribed."""
        return len(self._observers)

    def publish(self, event: Event) -> None:
        """Deliver an event to all subscribers, after those that are being delivered."""
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
        """End the stream for all subscribers, present and later ones; with an error if the run was refused."""
        self._error = error
        if self._delivering:
            self._waiting.append(None)
        else:
            self._finish()

    def open_text(self, task_id: str, step: str | None) -> str:
        """Return the text that has streamed of an open message."""
        kept = self._open.get((task_id, step))
        return "" if kept is None else kept.text()

    def open_thought(self, task_id: str, step: str | None) -> str:
        """Return the text that has streamed of a thought of an open message, which is not complete either."""
        kept = self._open.get((task_id, step))
        return "" if kept is None else kept.reasoning()

    def _deliver(self, event: Event) -> None:
        if event.durable:
            self._keep(event)
        else:
            key = (event.task_id, _place(event) if type(event) is ToolProgressEvent else event.step)
            kept = self._open.get(key)
            if kept is None:
                kept = self._open[key] = _Transient()
            kept.fresh.append(event)
            kept.count += 1
            if len(kept.fresh) >= _FRESH or kept.count > self._retain_open:
                self._shorten(kept)
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

    def _shorten(self, kept: _Transient) -> None:
        fresh = packed(kept.fresh)
        kept.fresh.clear()
        last = kept.past[-1] if kept.past else None
        if isinstance(last, PackedDeltas) and isinstance(fresh[0], PackedDeltas) and last.take(fresh[0]):
            del fresh[0]
        kept.past += fresh
        if kept.count > self._retain_open:
            self._thin(kept)

    def _thin(self, kept: _Transient) -> None:
        places = 0
        for item in kept.past:
            if kept.count <= self._retain_open // 2:
                break
            places += 1
            kept.count -= len(item) if isinstance(item, PackedDeltas) else 1
            # Of progress the newest will do; of text nothing may be lost.
            if isinstance(item, PackedDeltas) or delta_text(item) is not None:
                kept.merge(item)
        del kept.past[:places]

    def _keep(self, event: Event) -> None:
        self._durable.append(event)
        if len(self._durable) > self._retain:
            del self._durable[0]
            self.trimmed += 1
        if self._open:
            self._close(event)

    def _close(self, event: Event) -> None:
        """Forget the transient events of what an event completes."""
        if isinstance(event, ContentCompleteEvent | LLMCallEvent):
            # A second call of a step makes the deltas of the first void.
            self._open.pop((event.task_id, event.step), None)
        elif isinstance(event, ToolCompleteEvent):
            self._open.pop((event.task_id, _place(event)), None)
        elif isinstance(event, ThoughtStreamEvent) and event.source in ("reasoning", "tag"):
            kept = self._open.get((event.task_id, event.step))
            if kept is not None:
                kept.thought = event.seq
        elif ends_attempt(event):
            self._open.clear()

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
        """Detach a subscriber that raised. The end of its own stream is how its readers and its share learn of it."""
        self._detach(observer)
        # Without an on_error of its own it raises the error again, which is in the logs already.
        with suppress(BaseException):
            observer.on_error(error if isinstance(error, Exception) else RxloopError(f"a subscriber raised {error!r}"))
        leave_to_loop(error)

    def _detach(self, observer: abc.ObserverBase[Event]) -> None:
        self._observers = tuple(other for other in self._observers if other is not observer)

    def _subscribe(
        self, observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None
    ) -> abc.DisposableBase:
        # What is published meanwhile, by a callback, comes after the past for this subscriber too.
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
            observer.on_next(self._gap())
        for event in merge(self._durable.copy(), *(list(kept.events()) for kept in self._open.values()), key=_order):
            observer.on_next(event)

    def _gap(self) -> GapEvent:
        first = self._durable[0]
        return GapEvent(
            reason="trimmed",
            count=self.trimmed,
            context_id=first.context_id,
            task_id=first.root_task_id,
            attempt=first.attempt,
            seq=first.seq - 1,
            sub=1,
            timestamp=first.timestamp,
        )


def _place(event: ToolProgressEvent | ToolCompleteEvent) -> str:
    return f"{event.step}#{event.index}"


def _order(event: Event) -> tuple[Any, ...]:
    return event.attempt, event.seq, event.sub
