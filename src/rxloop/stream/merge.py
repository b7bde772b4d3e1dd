"""Several runs as one stream."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar, cast

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
    """All that the sources give, and their errors when all have ended."""

    def subscribe(observer: abc.ObserverBase[T], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        merging = Merging(observer, scheduler)
        for source in sources:
            merging.add(source)
        merging.no_more()
        return merging.subscriptions

    return Observable(subscribe)


class Merging(Generic[T]):
    """The sources of one subscription, to which others may come: all that they give, in one order for its subscriber.

    Not the stock `merge`, which ends with the first error, subscribes on a trampoline, and lets an event that comes
    while another one is delivered overtake it.
    """

    def __init__(self, observer: abc.ObserverBase[T], scheduler: abc.SchedulerBase | None = None) -> None:
        """Merge nothing yet.

        Args:
            observer: The subscriber.
            scheduler: With which the sources are subscribed.
        """
        self.subscriptions = CompositeDisposable()
        """Those to the sources."""
        self._observer = observer
        self._scheduler = scheduler
        self._waiting: deque[T] = deque()
        self._errors: list[Exception] = []
        self._count = 0
        self._under_way = 1
        self._delivering = False

    def add(self, source: Observable[T]) -> None:
        """Subscribe one source more."""
        subscription = SingleAssignmentDisposable()

        def ended(error: Exception | None = None) -> None:
            # One that has ended is not kept, however many come.
            self.subscriptions.remove(subscription)
            self._ended(error)

        self._count += 1
        self._under_way += 1
        self.subscriptions.add(subscription)
        subscription.disposable = source.subscribe(self._on_next, ended, ended, scheduler=self._scheduler)

    def no_more(self) -> None:
        """End with the last of the sources."""
        self._ended()

    def _on_next(self, item: T) -> None:
        self._waiting.append(item)
        self._deliver()

    def _ended(self, error: Exception | None = None) -> None:
        self._under_way -= 1
        if error is not None:
            self._errors.append(error)
        self._deliver()

    def _deliver(self) -> None:
        if self._delivering:
            return
        self._delivering = True
        try:
            while self._waiting:
                self._observer.on_next(self._waiting.popleft())
        finally:
            self._delivering = False
        if not self._under_way:
            self._end()

    def _end(self) -> None:
        if len(self._errors) > 1:
            text = f"{len(self._errors)} of {self._count} merged streams failed"
            self._observer.on_error(ExceptionGroup(text, self._errors))
        elif self._errors:
            self._observer.on_error(self._errors[0])
        else:
            self._observer.on_completed()
