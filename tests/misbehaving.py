"""Operators, tools, providers and subscribers that misbehave, for the promise that every run ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from reactivex import Observable, abc
from reactivex.disposable import Disposable

from rxloop import Operator, Signal


class Bad(BaseException):
    """What is no Exception, like the outcomes of pytest and some timeouts of libraries."""


Raise = Callable[[], None]


def raising(error: type[BaseException]) -> Raise:
    """A function that raises."""

    def boom() -> None:
        raise error("boom")

    return boom


def fine() -> None:
    """Nothing is wrong."""


def troubled(
    *,
    together: Raise = fine,
    subscribed: Raise = fine,
    item: Raise = fine,
    at: int = 0,
    completed: Raise = fine,
    disposed: Raise = fine,
    after: int = 0,
) -> Operator:
    """An operator that passes everything on, and calls the functions given at those places.

    Args:
        together: Called when the operator is applied to its source.
        subscribed: Called when the result is subscribed.
        item: Called before the item number `at` of an iteration is passed on.
        at: See `item`.
        completed: Called at the end of the source.
        disposed: Called when the subscription is disposed.
        after: The first so many iterations go well.
    """
    made = 0

    def troubled(source: Observable[Signal]) -> Observable[Signal]:
        nonlocal made
        made += 1
        well = made <= after
        if not well:
            together()

        def subscribe(
            observer: abc.ObserverBase[Signal], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            count = 0

            def on_next(signal: Signal) -> None:
                nonlocal count
                if count == at and not well:
                    item()
                count += 1
                observer.on_next(signal)

            def on_completed() -> None:
                if not well:
                    completed()
                observer.on_completed()

            def dispose() -> None:
                inner.dispose()
                if not well:
                    disposed()

            if not well:
                subscribed()
            inner = source.subscribe(on_next, observer.on_error, on_completed, scheduler=scheduler)
            return Disposable(dispose)

        return Observable(subscribe)

    return troubled


def elsewhere(change: Callable[[abc.ObserverBase[Any]], None]) -> Operator:
    """An operator that lets a thread do something to its observer at the first item, and waits for it."""

    def elsewhere(source: Observable[Signal]) -> Observable[Signal]:
        def subscribe(
            observer: abc.ObserverBase[Signal], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            def on_next(signal: Signal) -> None:
                threading.Thread(target=change, args=[observer], daemon=True).start()

            return source.subscribe(on_next, observer.on_error, fine, scheduler=scheduler)

        return Observable(subscribe)

    return elsewhere
