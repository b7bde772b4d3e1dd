"""The view of the speed at which the model writes."""

from __future__ import annotations

from collections import deque

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable

from rxloop.errors import ConfigurationError
from rxloop.operators.views._types import View
from rxloop.protocol.events import ContentDeltaEvent, Event, ThoughtDeltaEvent, ToolCallDeltaEvent, ends_attempt
from rxloop.stream.scheduler import Timer


def token_rate(window: float = 1.0) -> View[Event, float]:
    """Emit the tokens per second over the last `window` seconds: at each delta, and once a window while there are none.

    A delta counts as one token, be it text, a thought or the arguments of a tool call. So a stall shows as 0.0, and
    `rx.filter(lambda r: r < 5)` notices it. Until a window has passed since the first delta after a stall, the rate is
    that of the time since then, so that a start is not taken for a stall; the first delta alone gives none. The deltas
    that a late subscriber is given again count as if they came just then. Time comes from the scheduler of the
    subscription, which for a view of a run is the run's.

    ::

        source             --d-d-d-------------F      d a delta each 100 ms, F the final status-update
        token_rate(1)      ----r-r-----0-----0-|      r 10.0

    Args:
        window: The seconds to look back.

    Returns:
        A view of rates, which completes with the final event of the run.

    Raises:
        ConfigurationError: The window is not positive; raised at once.
    """
    if window <= 0:
        raise ConfigurationError(f"token_rate needs a window above 0, not {window}")

    def operator(source: Observable[Event]) -> Observable[float]:
        def subscribe(
            observer: abc.ObserverBase[float], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            timer = Timer(scheduler)
            rate = _Rate(window, timer, observer)
            subscription = source.subscribe(rate.on_next, observer.on_error, observer.on_completed, scheduler=scheduler)
            return CompositeDisposable(subscription, timer)

        return Observable(subscribe)

    return operator


class _Rate:
    """The deltas of the last window, and what one subscriber is told of them."""

    def __init__(self, window: float, timer: Timer, observer: abc.ObserverBase[float]) -> None:
        self._window, self._timer, self._observer = window, timer, observer
        self._times = deque[float]()
        self._emitted = self._begin = timer.now()
        timer.start(window, self._check)

    def on_next(self, event: Event) -> None:
        if isinstance(event, ContentDeltaEvent | ThoughtDeltaEvent | ToolCallDeltaEvent):
            self._count(self._timer.now())
        elif ends_attempt(event):
            self._observer.on_completed()

    def _count(self, now: float) -> None:
        self._forget(now)
        times = self._times
        if not times:
            self._begin = now
        times.append(now)
        passed = now - self._begin
        if passed >= self._window:
            self._emit(now, len(times) / self._window)
        elif passed > 0:
            self._emit(now, (len(times) - 1) / passed)

    def _check(self) -> None:
        now, window = self._timer.now(), self._window
        # Timers may be a little early.
        if now - self._emitted >= window - 1e-6:
            self._forget(now)
            self._emit(now, len(self._times) / window)
        self._timer.start(self._emitted + window - now, self._check)

    def _forget(self, now: float) -> None:
        while self._times and self._times[0] <= now - self._window + 1e-6:
            self._times.popleft()

    def _emit(self, now: float, rate: float) -> None:
        self._emitted = now
        self._observer.on_next(rate)
