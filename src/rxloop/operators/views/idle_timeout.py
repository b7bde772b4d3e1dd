"""The view that fails when nothing comes any more."""

from __future__ import annotations

from typing import TypeVar

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable

from rxloop.errors import ConfigurationError
from rxloop.operators.views._types import View
from rxloop.stream.scheduler import Timer

T = TypeVar("T")


def idle_timeout(seconds: float) -> View[T, T]:
    """Fail with a `TimeoutError` after that many seconds of silence.

    The time starts with the subscription and again with each event. Only this view fails; the run goes on. Time comes
    from the scheduler of the subscription, which for a view of a run is the run's.

    ::

        source               --a--b---------c--|
        idle_timeout(5)      --a--b----#

    Args:
        seconds: The longest silence, in seconds.

    Returns:
        A view of everything, in order.

    Raises:
        ConfigurationError: The time is not positive; raised at once.
    """
    if seconds <= 0:
        raise ConfigurationError(f"idle_timeout needs a time above 0, not {seconds}")

    def operator(source: Observable[T]) -> Observable[T]:
        def subscribe(observer: abc.ObserverBase[T], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
            timer = Timer(scheduler)
            last = timer.now()

            # A timer for each event would cost more than the event. This one looks when the last came, and waits on.
            def check() -> None:
                rest = last + seconds - timer.now()
                # Timers may be a little early.
                if rest > 1e-6:
                    timer.start(rest, check)
                else:
                    observer.on_error(TimeoutError(f"no event came for {seconds:g} s"))

            def on_next(value: T) -> None:
                nonlocal last
                last = timer.now()
                observer.on_next(value)

            timer.start(seconds, check)
            subscription = source.subscribe(on_next, observer.on_error, observer.on_completed, scheduler=scheduler)
            return CompositeDisposable(subscription, timer)

        return Observable(subscribe)

    return operator
