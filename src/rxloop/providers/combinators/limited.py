"""Provider with rate limits and a queue."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from datetime import datetime, timedelta
from typing import Any

from reactivex import Observable, abc
from reactivex.disposable import Disposable, SerialDisposable, SingleAssignmentDisposable

from rxloop.pipeline.interfaces import Provider
from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol.events import Event
from rxloop.providers.combinators import Combined, ask
from rxloop.stream.rx import resolve_scheduler
from rxloop.stream.scope import Scope
from rxloop.support.misuse import check_minimum

MINUTE = timedelta(minutes=1)

log = logging.getLogger("rxloop")


def limited(model: Provider | str, *, concurrent: int | None = None, per_minute: int | None = None) -> Limited:
    """Create a rate-limited provider.

    Limits apply to all runs using this provider, so share it between agents if needed. Calls start in order of arrival.
    Disposing a waiting call removes it from the queue. Each event loop uses a separate queue.

    ::

        calls                          a-b--c-----
        limited(m, concurrent=2)  a    --d-d-C|
                                  b      ----d-C|
                                  c          ---d-C|     starts when a ends

    Example:
        >>> zai = limited("zai:glm-4.7", concurrent=5, per_minute=60)
        >>> writer, critic = Agent(zai, name="writer"), Agent(zai, name="critic")

    Args:
        model: Provider or model string. Retries do not count as separate calls.
        concurrent: Maximum number of concurrent calls.
        per_minute: Maximum number of calls started within 60 seconds.

    Raises:
        ConfigurationError: A limit is less than 1, or the model string is invalid.
    """
    return Limited(model, concurrent, per_minute)


class Limited(Combined):
    """Provider with limits, created by `limited`."""

    def __init__(self, model: Provider | str, concurrent: int | None, per_minute: int | None) -> None:
        check_minimum(1, optional=True, concurrent=concurrent, per_minute=per_minute)
        super().__init__(model)
        (self.provider,) = self.providers
        self.concurrent = concurrent
        self.per_minute = per_minute
        self._queues: dict[asyncio.AbstractEventLoop | None, _CallQueue] = {}

    @property
    def name(self) -> str:
        """The model's name."""
        return self.provider.name

    @property
    def running(self) -> int:
        """Number of running calls in this event loop."""
        queue = self._queues.get(_loop())
        return 0 if queue is None else queue.running

    @property
    def waiting(self) -> int:
        """Number of waiting calls in this event loop."""
        queue = self._queues.get(_loop())
        return 0 if queue is None else len(queue.waiting)

    def call(self, request: ModelRequest) -> Observable[Event]:
        """Call the model once limits allow it."""

        def subscribe(
            observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            queue = self._get_queue(scheduler)
            scope = request.ctx.info.scope if request.ctx.run is not None else None
            queued_call = _QueuedCall(queue, ask(self.provider, request), observer, scheduler, scope)
            queue.enter(queued_call)
            return Disposable(queued_call.leave)

        return Observable(subscribe)

    def _get_queue(self, scheduler: abc.SchedulerBase | None) -> _CallQueue:
        loop = _loop()
        queue = self._queues.get(loop)
        if queue is None:
            for closed in [other for other in self._queues if other is not None and other.is_closed()]:
                del self._queues[closed]
            queue = self._queues[loop] = _CallQueue(self.concurrent, self.per_minute, scheduler)
        return queue


def _loop() -> asyncio.AbstractEventLoop | None:
    """Return the running event loop, or None in a test that only uses a virtual scheduler."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class _CallQueue:
    """Queue for a single event loop, with running calls and recent start times."""

    def __init__(self, concurrent: int | None, max_starts: int | None, scheduler: abc.SchedulerBase | None) -> None:
        self.running = 0
        self.waiting: dict[_QueuedCall, None] = {}
        """Waiting calls in order of arrival. A dict allows removal in constant time."""
        self._concurrent = concurrent
        # Shared clock, so times are comparable.
        self._clock = resolve_scheduler(scheduler) if max_starts is not None else None
        self._starts: deque[datetime] = deque(maxlen=max_starts or 0)
        self._timer = SerialDisposable()
        self._advancing = False

    def enter(self, queued_call: _QueuedCall) -> None:
        """Enqueue a call."""
        self.waiting[queued_call] = None
        self.advance()
        if queued_call in self.waiting:
            queued_call.wait()

    def leave(self, queued_call: _QueuedCall) -> bool:
        """Remove a call from the queue. Return False if it was not waiting."""
        if queued_call not in self.waiting:
            return False
        del self.waiting[queued_call]
        if not self.waiting:
            self._timer.disposable = Disposable()
        return True

    def ended(self) -> None:
        """Finish a call and start the next one."""
        self.running -= 1
        self.advance()

    def advance(self, _scheduler: abc.SchedulerBase | None = None, _state: Any = None) -> None:
        """Start the waiting calls that the limits allow."""
        # Use a loop, because calls may end immediately.
        if self._advancing:
            return
        self._advancing = True
        try:
            while self.waiting and (self._concurrent is None or self.running < self._concurrent) and self._can_start():
                queued_call = next(iter(self.waiting))
                del self.waiting[queued_call]
                self.running += 1
                queued_call.begin()
        finally:
            self._advancing = False

    def _can_start(self) -> bool:
        """Return True if a call may start now. Otherwise set a timer."""
        clock = self._clock
        if clock is None:
            return True
        now = clock.now
        if len(self._starts) == self._starts.maxlen and (rest := self._starts[0] + MINUTE - now) > timedelta(0):
            slot = SingleAssignmentDisposable()
            self._timer.disposable = slot
            slot.disposable = clock.schedule_relative(rest, self.advance)
            return False
        self._starts.append(now)
        return True


class _QueuedCall:
    """Call in the queue."""

    def __init__(
        self,
        queue: _CallQueue,
        source: Observable[Event],
        observer: abc.ObserverBase[Event],
        scheduler: abc.SchedulerBase | None,
        scope: Scope | None,
    ) -> None:
        self._queue = queue
        self._scope = scope
        self._source = source
        self._observer = observer
        self._scheduler = scheduler
        self._answer = SingleAssignmentDisposable()
        self._over = False

    def wait(self) -> None:
        """Keep the run active while waiting, since no task is running."""
        if self._scope is not None:
            self._scope.timers[self] = None

    def _stop_waiting(self) -> None:
        if self._scope is not None and self in self._scope.timers:
            del self._scope.timers[self]
            self._scope.check_idle()

    def begin(self) -> None:
        """Call the model."""
        try:
            self._answer.disposable = self._source.subscribe(
                self._observer.on_next, self._on_error, self._on_completed, scheduler=self._scheduler
            )
        except Exception:
            # Raising here would affect a different call.
            log.exception("Subscriber failed after a model call")
        finally:
            self._stop_waiting()

    def leave(self) -> None:
        """Cancel a running or waiting call."""
        if self._over:
            return
        if self._queue.leave(self):
            self._over = True
            self._stop_waiting()
            return
        self._answer.dispose()
        self._end()

    def _on_error(self, error: Exception) -> None:
        if not self._over:
            self._end()
            self._observer.on_error(error)

    def _on_completed(self) -> None:
        self._end()
        self._observer.on_completed()

    def _end(self) -> None:
        if not self._over:
            self._over = True
            self._queue.ended()
