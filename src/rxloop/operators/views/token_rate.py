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
            times = deque[float]()
            emitted = begin = timer.now()

            def forget(now: float) -> None:
                while times and times[0] <= now - window + 1e-6:
                    times.popleft()

            def emit(now: float, rate: float) -> None:
                nonlocal emitted
                emitted = now
                observer.on_next(rate)

            def check() -> None:
                now = timer.now()
                # Timers may be a little early.
                if now - emitted >= window - 1e-6:
                    forget(now)
                    emit(now, len(times) / window)
                timer.start(emitted + window - now, check)

            def on_next(event: Event) -> None:
                nonlocal begin
                if isinstance(event, ContentDeltaEvent | ThoughtDeltaEvent | ToolCallDeltaEvent):
                    now = timer.now()
                    forget(now)
                    if not times:
                        begin = now
                    times.append(now)
                    passed = now - begin
                    if passed >= window:
                        emit(now, len(times) / window)
                    elif passed > 0:
                        emit(now, (len(times) - 1) / passed)
                elif ends_attempt(event):
                    observer.on_completed()

            timer.start(window, check)
            subscription = source.subscribe(on_next, observer.on_error, observer.on_completed, scheduler=scheduler)
            return CompositeDisposable(subscription, timer)

        return Observable(subscribe)

    return operator
