"""Several runs as one stream."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, cast

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, SingleAssignmentDisposable

from rxloop.errors import ConfigurationError, RxloopError
from rxloop.stream.buffer import Overflow
from rxloop.stream.scheduler import RunScheduler
from rxloop.stream.scope import Gates
from rxloop.stream.stream import Hold, Readable, Stream, check_reader

T = TypeVar("T")
A = TypeVar("A", bound=Readable, covariant=True)


class HasStream(Protocol[A]):
    """Something with a stream, such as a run."""

    @property
    def events(self) -> Stream[A]:
        """The stream."""
        ...


def merge(
    *sources: HasStream[A] | Stream[A] | Observable[A], overflow: Overflow = "coalesce", buffer: int = 1024
) -> Stream[A]:
    """Merge runs, and streams of runs, into one stream.

    ::

        a               --1-----2-----3|
        b               ----x#
        merge(a, b)     --1-x---2-----3#

    It starts all of them when it is first used, and ends with the last one. How a run fails is told by its final
    event, and the others go on; an error of a source, such as that of a run which was refused, comes when all have
    ended. Dropping or closing the stream lets go of the runs that it holds: one that nobody else holds is cancelled.

    Args:
        *sources: Runs, streams, and other Observables, whose time operators then go by the event loop. Runs that such
            an Observable makes by `agent.observe` are held back, too, by a reader that blocks.
        overflow: As for `Run.stream`. With `block`, one slow reader holds all runs back.
        buffer: The number of items that may wait to be read.

    Returns:
        A stream. Its error is that of the source that failed, or an `ExceptionGroup` of several.

    Raises:
        ConfigurationError: A source is none, or `overflow` or `buffer` is wrong.
    """
    check_reader(overflow, buffer)
    streams = [_observable(source) for source in sources]
    held = [(each._source, each._hold) if isinstance(each, Stream) else (each, None) for each in streams]  # pyright: ignore[reportPrivateUsage]
    holds = Holds([hold for _, hold in held if hold is not None])
    return Stream(_merged([source for source, _ in held]), holds, overflow=overflow, buffer=buffer)


def _observable(source: Any) -> Observable[Any]:
    found: Any = getattr(source, "events", source)
    if not isinstance(found, Observable):
        raise ConfigurationError(f"merge(*sources) takes runs, streams and Observables, not {source!r}")
    return cast("Observable[Any]", found)


class Holds:
    """The holds of several runs as one; of none, where the runs are made by the subscription."""

    def __init__(self, holds: Sequence[Hold] = ()) -> None:
        self.gate = Gates(hold.gate for hold in holds)
        self._holds = holds

    def scheduler(self) -> abc.SchedulerBase:
        """Start the runs."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise RxloopError(
                "a merged stream needs a running event loop of asyncio (trio is not supported): use it in async code"
            ) from None
        for hold in self._holds:
            hold.scheduler()
        return RunScheduler(loop, for_readers=True, gates=self.gate)

    def keep(self) -> Callable[[], None]:
        """Keep the runs going until the function that is returned is called."""
        releases = [hold.keep() for hold in self._holds]

        def release() -> None:
            for each in releases:
                each()

        return release


def _merged(sources: Sequence[Observable[T]]) -> Observable[T]:
    """All that the sources give, in one order for its subscriber, and their errors when all have ended.

    Not the stock `merge`, which ends with the first error, subscribes on a trampoline, and lets an event that comes
    while another one is delivered overtake it.
    """

    def subscribe(observer: abc.ObserverBase[T], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        waiting: deque[T] = deque()
        errors: list[Exception] = []
        under_way = len(sources) + 1  # and this subscription
        delivering = False

        def deliver() -> None:
            nonlocal delivering
            if delivering:
                return
            delivering = True
            try:
                while waiting:
                    observer.on_next(waiting.popleft())
            finally:
                delivering = False
            if not under_way:
                end()

        def end() -> None:
            if len(errors) > 1:
                observer.on_error(ExceptionGroup(f"{len(errors)} of {len(sources)} merged streams failed", errors))
            elif errors:
                observer.on_error(errors[0])
            else:
                observer.on_completed()

        def on_next(item: T) -> None:
            waiting.append(item)
            deliver()

        def ended(error: Exception | None = None) -> None:
            nonlocal under_way
            under_way -= 1
            if error is not None:
                errors.append(error)
            deliver()

        subscriptions = CompositeDisposable()
        for source in sources:
            subscription = SingleAssignmentDisposable()
            subscriptions.add(subscription)
            subscription.disposable = source.subscribe(on_next, ended, ended, scheduler=scheduler)
        ended()
        return subscriptions

    return Observable(subscribe)
