"""Observable that can be iterated and awaited."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar, cast, overload

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, Disposable

from rxloop.errors import ConfigurationError
from rxloop.stream.back_pressure import Gate, Overflow, ReadBuffer
from rxloop.stream.cancelled_reads import observe_reading_task, release_frames_if_cancelled, release_frames_of
from rxloop.stream.rx import RunScheduler, running_loop


class Readable(Protocol):
    """What a stream may have: anything but requests, which stay in the loop. Only a type checker asks for it."""

    def __sizeof__(self) -> int:
        """All have this, and of a `Request` type checkers are told that it is not so."""
        ...


T = TypeVar("T", covariant=True)

A = TypeVar("A", bound=Readable)

B = TypeVar("B", bound=Readable)

C = TypeVar("C", bound=Readable)

D = TypeVar("D", bound=Readable)

E = TypeVar("E", bound=Readable)

F = TypeVar("F", bound=Readable)

G = TypeVar("G", bound=Readable)

V = Callable[[Observable[A]], Observable[B]]
"""A view."""

JOINS = "rxloop_joins"
"""An attribute of the views whose items are pieces of one text."""

HANDLING = "rxloop_handling"
"""An attribute of the operators of the loop: what they handle there."""

PARTS = "rxloop_parts"
"""An attribute of the operators of the loop that are composed of others."""


class Hold(Protocol):
    """The hold that somebody has of a run: while there is one, the run goes on."""

    @property
    def gate(self) -> Gate:
        """Holds the sockets of the run back."""
        ...

    def scheduler(self) -> abc.SchedulerBase:
        """Return the scheduler of the run; an error outside an event loop."""
        ...

    def keep(self) -> Callable[[], None]:
        """Keep the run going, whoever lets go of it, until the function that is returned is called."""
        ...


def check_reader(overflow: Overflow, buffer: int) -> None:
    """Check how a slow reader is to be treated.

    Raises:
        ConfigurationError: There is no such policy, or the buffer holds nothing.
    """
    if overflow not in ("coalesce", "block", "drop_oldest", "error"):
        raise ConfigurationError(f"overflow must be coalesce, block, drop_oldest or error, not {overflow!r}")
    if buffer < 1:
        raise ConfigurationError(f"buffer must be at least 1, not {buffer}")


class Pipes(Generic[T]):
    """What is piped through views, a run as well as a stream of its events."""

    @overload
    def pipe(self, /) -> Stream[T]: ...
    @overload
    def pipe(self, a: V[T, A], /) -> Stream[A]: ...
    @overload
    def pipe(self, a: V[T, A], b: V[A, B], /) -> Stream[B]: ...
    @overload
    def pipe(self, a: V[T, A], b: V[A, B], c: V[B, C], /) -> Stream[C]: ...
    @overload
    def pipe(self, a: V[T, A], b: V[A, B], c: V[B, C], d: V[C, D], /) -> Stream[D]: ...
    @overload
    def pipe(self, a: V[T, A], b: V[A, B], c: V[B, C], d: V[C, D], e: V[D, E], /) -> Stream[E]: ...
    @overload
    def pipe(self, a: V[T, A], b: V[A, B], c: V[B, C], d: V[C, D], e: V[D, E], f: V[E, F], /) -> Stream[F]: ...
    @overload
    def pipe(
        self, a: V[T, A], b: V[A, B], c: V[B, C], d: V[C, D], e: V[D, E], f: V[E, F], g: V[F, G], /
    ) -> Stream[G]: ...
    @overload
    def pipe(
        self,
        a: V[T, A],
        b: V[A, B],
        c: V[B, C],
        d: V[C, D],
        e: V[D, E],
        f: V[E, F],
        g: V[F, G],
        h: V[G, Any],
        /,
        *more: Callable[[Any], Any],
    ) -> Any: ...
    def pipe(self, *operators: Callable[[Any], Any]) -> Any:
        """A stream through views, or any reactivex operators: `run.pipe(op.thoughts())`.

        What comes out is a Stream again if it is an Observable.

        Raises:
            ConfigurationError: One of them works in the loop.
        """
        return self._through(operators)

    def _through(self, operators: Sequence[Callable[[Any], Any]]) -> Any:
        raise NotImplementedError


# The base declares that the last operator's own result comes out; here an Observable comes out as a Stream.
class Stream(Pipes[T], Observable[T]):  # pyright: ignore[reportIncompatibleMethodOverride]
    """An Observable with the scheduler of its run, that can be iterated with `async for` and awaited for its last item.

    Subscribing or iterating starts the run. Each subscriber and each iterator gets everything from the beginning,
    but for the deltas of messages that are complete. A
    subscription keeps the run going until it is disposed; an iterator, until it is dropped.
    """

    def __init__(
        self,
        source: Observable[T],
        hold: Hold,
        *,
        overflow: Overflow = "coalesce",
        buffer: int = 1024,
        joins: bool = False,
        piped: bool = False,
    ) -> None:
        """Make a stream.

        Args:
            source: Where the items come from.
            hold: That of the run.
            overflow: What to do when a reader has not read `buffer` items; see `Run.stream`.
            buffer: The number of items.
            joins: The items are pieces of one text, which may be joined.
            piped: The source starts the run itself, through views.
        """
        super().__init__()
        self._source = source
        self._hold = hold
        self._overflow: Overflow = overflow
        self._buffer = buffer
        self._joins = joins
        self._piped = piped

    # The base has two forms, with an observer or with functions, and so has this.
    def subscribe(
        self,
        on_next: abc.ObserverBase[T] | Callable[[T], None] | None = None,
        on_error: Callable[[Exception], None] | None = None,
        on_completed: Callable[[], None] | None = None,
        *,
        scheduler: abc.SchedulerBase | None = None,
    ) -> abc.DisposableBase:
        """Subscribe an observer, or functions.

        Raises:
            ConfigurationError: One of them is async, so that nobody would ever await it.
        """
        observing = [getattr(on_next, name, None) for name in ("on_next", "on_error", "on_completed")]
        for callback in (on_next, on_error, on_completed, *observing):
            if callback is not None and inspect.iscoroutinefunction(callback):
                raise ConfigurationError(
                    f"{callback.__qualname__} is async, and a subscriber is called without being awaited: "
                    "write `async for event in run.events` to wait between events, or give a plain function"
                )
        subscribe: Any = super().subscribe
        return subscribe(on_next, on_error, on_completed, scheduler=scheduler)

    def _subscribe_core(
        self, observer: abc.ObserverBase[T], scheduler: abc.SchedulerBase | None = None
    ) -> abc.DisposableBase:
        # A view may bring the subscription to the event loop: `subscribe_on`, in the thread of a GUI.
        own = None if self._piped and not _has_loop() else self._hold.scheduler()
        release = self._hold.keep()
        # `subscribe` has put its observer between already, and would put a second one.
        try:
            subscription = self._source._subscribe_core(observer, scheduler or own)  # pyright: ignore[reportPrivateUsage]
        except BaseException:
            release()
            raise
        return CompositeDisposable(subscription, Disposable(release))

    def _through(self, operators: Sequence[Callable[[Any], Any]]) -> Any:
        # On the source and not on the stream: an iterator over the result must not hold the run by a subscription.
        result: Any = _Begun(self._source, self._hold)
        for operator in operators:
            if hasattr(operator, HANDLING) or hasattr(operator, PARTS):
                raise ConfigurationError(
                    f"a stream is piped through views, and {operator.__qualname__} is an operator of the loop: "
                    "give it to the agent, as in Agent(..., loop=op.standard(before_tools=[...]))"
                )
            result = operator(result)
        if not isinstance(result, Observable):
            return result
        return Stream(
            cast("Observable[Any]", result),
            self._hold,
            overflow=self._overflow,
            buffer=self._buffer,
            joins=getattr(operators[-1], JOINS, False) if operators else self._joins,
            piped=True,
        )

    def __await__(self) -> Generator[Any, None, T]:
        """Wait for the last item."""
        return self._last().__await__()

    async def _last(self) -> T:
        from reactivex import operators as ops

        # By a subscription, which holds the run; that of the base goes by `pipe`, which does not.
        to_future: Callable[[Observable[T]], asyncio.Future[T]] = ops.to_future()
        try:
            return await to_future(self)
        except asyncio.CancelledError as error:
            release_frames_of(error)
            raise

    def __aiter__(self) -> Reader[T]:
        buffer = ReadBuffer(self._overflow, self._buffer, self._hold.gate, self._joins)
        return Reader(self._source, self._hold, buffer)


def _has_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class _Begun(Observable[T], Generic[T]):
    """The source as operators get it: whatever subscribes it, a future as well, starts the run."""

    def __init__(self, source: Observable[T], hold: Hold) -> None:
        super().__init__()
        self._source = source
        self._hold = hold

    def _subscribe_core(
        self, observer: abc.ObserverBase[T], scheduler: abc.SchedulerBase | None = None
    ) -> abc.DisposableBase:
        own = self._hold.scheduler()
        # Not `subscribe`, which would put an observer of its own between, for each event.
        return self._source._subscribe_core(observer, scheduler or own)


class Reader(AsyncIterator[T], Generic[T]):
    """One iteration over a Stream. Dropping it, or `aclose`, ends its subscription."""

    def __init__(self, source: Observable[T], hold: Hold, buffer: ReadBuffer) -> None:
        self._origin: tuple[Observable[T], Hold] | None = (source, hold)
        self._buffer = buffer
        self.observed = False
        """True if the end of the task that reads is observed."""

    @property
    def is_over(self) -> bool:
        """True if nothing more comes, or the reader is closed."""
        return self._buffer.is_over

    def __anext__(self) -> Coroutine[Any, Any, T]:
        return self.within(None)

    async def within(self, seconds: float | None) -> T:
        """Wait for the next item for so long.

        Unlike a time limit around `anext` this takes no timer where the item is there already.

        Raises:
            StopAsyncIteration: There is none.
            Silence: It has not come; it can be asked for again.
        """
        try:
            if not self.observed:
                self._begin()
            return await self._buffer.get(seconds)
        except asyncio.CancelledError as error:
            self.observed = False
            # The traceback would keep this reader, and the handle of the run in the functions that read it.
            release_frames_of(error)
            raise

    def _begin(self) -> None:
        """Subscribe before the first read, and observe the task that reads."""
        if self._buffer.subscription is None and self._origin is not None:
            self._subscribe(*self._origin)
        observe_reading_task(self)

    def _subscribe(self, source: Observable[T], hold: Hold) -> None:
        buffer, scheduler = self._buffer, hold.scheduler()
        buffer.attach(source.subscribe(buffer.push, buffer.end, buffer.end, scheduler=scheduler))

    def there(self) -> Iterator[T]:
        """Take the next items for as long as there are any, without waiting for one."""
        return self._buffer.there()

    async def aclose(self) -> None:
        """End the subscription, and let go of the run."""
        # At once, and not with the last reference: that of a task which was cancelled often waits for the collector.
        self._origin = None
        self._buffer.close()

    def __del__(self) -> None:
        if not self._buffer.is_over:
            release_frames_if_cancelled(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
        self._buffer.close()


class Reading:
    """The hold of a run that goes on elsewhere: there is nothing to keep, and the gate stops the reading alone."""

    def __init__(self) -> None:
        self.gate = Gate()

    def scheduler(self) -> abc.SchedulerBase:
        """The scheduler of the event loop that runs; nothing is started."""
        return RunScheduler(running_loop("reading a run"), for_readers=True)

    def keep(self) -> Callable[[], None]:
        """Nothing is kept."""
        return lambda: None
