"""Observable with support for `async for` and `await`."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, TypeVar, cast, overload

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, Disposable

from rxloop.errors import ConfigurationError
from rxloop.stream.back_pressure import Gate, Overflow, ReadBuffer
from rxloop.stream.cancelled_reads import observe_reading_task, release_frames, release_frames_if_cancelled
from rxloop.stream.rx import RunScheduler
from rxloop.stream.scope import get_running_loop
from rxloop.stream.sources import select_events
from rxloop.support.misuse import check_argument, check_minimum
from rxloop.support.tasks import has_running_loop


class Readable(Protocol):
    """Type of stream items. Requests are excluded, because they stay in the loop. This only affects type checkers."""

    def __sizeof__(self) -> int:
        """Match all objects except `Request`, which declares an incompatible type for type checkers."""
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
"""Type of views."""

VIEW = "rxloop_view"
"""View attribute with its name for messages, for example `op.text`."""

JOINS = "rxloop_joins"
"""View attribute, set if items can be joined."""

HANDLING = "rxloop_handling"
"""Loop operator attribute for handled requests."""
PARTS = "rxloop_parts"
"""Loop operator attribute for composed operators."""


class Hold(Protocol):
    """Keeps a run alive."""

    @property
    def gate(self) -> Gate:
        """Socket gate."""
        ...

    def scheduler(self) -> abc.SchedulerBase:
        """Return the run's scheduler. This requires a running event loop."""
        ...

    def keep(self) -> Callable[[], None]:
        """Keep the run alive until the returned function is called."""
        ...


def check_reader(overflow: Overflow, buffer: int) -> None:
    """Validate slow reader options.

    Raises:
        ConfigurationError: The policy is unknown, or the buffer size is less than 1.
    """
    if overflow not in ("coalesce", "block", "drop_oldest", "error"):
        raise ConfigurationError(f"overflow must be coalesce, block, drop_oldest or error, got {overflow!r}")
    check_minimum(1, buffer=buffer)


class Pipeable(Generic[T]):
    """Base class of runs and streams, which can be piped through views."""

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
        """Apply views or other reactivex operators, as in `run.pipe(op.thoughts())`.

        If the last operator returns an Observable, the result is a Stream.

        Raises:
            ConfigurationError: An operator only works in the loop.
        """
        return self._pipe(operators)

    def _pipe(self, operators: Sequence[Callable[[Any], Any]]) -> Any:
        raise NotImplementedError

    if TYPE_CHECKING:
        # Type checkers report `for` loops, which the base class of streams would allow by its `__getitem__`.
        __iter__: None
    else:

        def __iter__(self) -> NoReturn:
            raise TypeError(
                "a run or stream must be iterated with `async for event in run`; in Rx pipelines use `run.events`"
            )


# The base class returns the result of the last operator. Here, an Observable is returned as a Stream.
class Stream(Pipeable[T], Observable[T]):  # pyright: ignore[reportIncompatibleMethodOverride]
    """Observable of a run that can be iterated with `async for` and awaited for its last item.

    Subscribing or iterating starts the run. All subscribers and iterators receive all events from the beginning, except
    for the deltas of complete messages. A subscription keeps the run alive until it is disposed, and an iterator until
    it is dropped.
    """

    def __init__(
        self,
        source: Observable[T],
        hold: Hold,
        *,
        overflow: Overflow = "coalesce",
        buffer: int = 1024,
        join_text: bool = False,
        piped: bool = False,
    ) -> None:
        """Create a stream.

        Args:
            source: Observable that provides the items.
            hold: Hold of the run.
            overflow: Policy if a reader has `buffer` unread items; see `Run.stream`.
            buffer: Maximum number of unread items.
            join_text: Whether the items are pieces of one text, which can be joined.
            piped: Whether the source starts the run itself, because it was piped through views.
        """
        super().__init__()
        self._source = source
        self._hold = hold
        self._overflow: Overflow = overflow
        self._buffer = buffer
        self._join_text = join_text
        self._piped = piped

    # Like the base class, accept an observer or functions.
    def subscribe(
        self,
        on_next: abc.ObserverBase[T] | Callable[[T], None] | None = None,
        on_error: Callable[[Exception], None] | None = None,
        on_completed: Callable[[], None] | None = None,
        *,
        scheduler: abc.SchedulerBase | None = None,
    ) -> abc.DisposableBase:
        """Subscribe an observer or callbacks.

        Raises:
            ConfigurationError: A callback is async. Nothing would await it.
        """
        methods = [getattr(on_next, name, None) for name in ("on_next", "on_error", "on_completed")]
        for callback in (on_next, on_error, on_completed, *methods):
            if callback is not None and inspect.iscoroutinefunction(callback):
                raise ConfigurationError(
                    f"subscribers must not be async, got {callback.__qualname__}. "
                    "Use `async for event in run.events` to wait between events, or pass a plain function."
                )
        subscribe: Any = super().subscribe
        return subscribe(on_next, on_error, on_completed, scheduler=scheduler)

    def _subscribe_core(
        self, observer: abc.ObserverBase[T], scheduler: abc.SchedulerBase | None = None
    ) -> abc.DisposableBase:
        # Views such as `subscribe_on` may move the subscription from a GUI thread to the event loop.
        default = None if self._piped and not has_running_loop() else self._hold.scheduler()
        release = self._hold.keep()
        # The observer is already wrapped by `subscribe`.
        try:
            subscription = self._source._subscribe_core(observer, scheduler or default)  # pyright: ignore[reportPrivateUsage]
        except BaseException:
            release()
            raise
        return CompositeDisposable(subscription, Disposable(release))

    def _pipe(self, operators: Sequence[Callable[[Any], Any]]) -> Any:
        # Operators subscribe to the source. A subscription to the stream would let iterators keep the run alive.
        result: Any = _StartingSource(select_events(self._source, *operators[:1]), self._hold)
        for operator in operators:
            check_view(operator)
            result = operator(result)
            if not isinstance(result, Observable) and inspect.isfunction(result):
                raise _make_factory_error(operator)
        if not isinstance(result, Observable):
            return result
        return Stream(
            cast("Observable[Any]", result),
            self._hold,
            overflow=self._overflow,
            buffer=self._buffer,
            join_text=getattr(operators[-1], JOINS, False) if operators else self._join_text,
            piped=True,
        )

    def run(self, scheduler: abc.SchedulerBase | None = None) -> NoReturn:
        """Raise an error, because the method of the base class would block the event loop forever.

        Raises:
            ConfigurationError: Always.
        """
        raise ConfigurationError(
            "a stream has no run(), which would block the event loop; use `await stream` for its last item"
        )

    def __await__(self) -> Generator[Any, None, T]:
        """Return the last item."""
        return self._wait_for_last().__await__()

    async def _wait_for_last(self) -> T:
        from reactivex import operators as ops

        # Use a subscription to keep the run alive. The base class would use `pipe` instead.
        to_future: Callable[[Observable[T]], asyncio.Future[T]] = ops.to_future()
        try:
            return await to_future(self)
        except asyncio.CancelledError as error:
            release_frames(error)
            raise

    def __aiter__(self) -> Reader[T]:
        buffer = ReadBuffer(self._overflow, self._buffer, self._hold.gate, self._join_text)
        return Reader(self._source, self._hold, buffer)


def check_view(operator: Any) -> None:
    """Check that a stream can be piped through an operator.

    Raises:
        ConfigurationError: The operator works in the loop, is not callable, or was not created by calling its factory.
    """
    if hasattr(operator, HANDLING) or hasattr(operator, PARTS):
        combine = " To combine views, use reactivex.compose(...)." if hasattr(operator, PARTS) else ""
        raise ConfigurationError(
            f"a stream must be piped through views, got the loop operator {operator.__qualname__}. "
            f"Pass it to the agent, as in Agent(..., loop=op.standard(before_tools=[...])).{combine}"
        )
    expected = "piped through views, as in run.pipe(op.public(), op.text())"
    check_argument("a stream", operator, callable(operator), expected)
    # Factories are functions of these modules, and the views that they return have a name for messages.
    module = getattr(operator, "__module__", None) or ""
    if module.startswith("rxloop.operators.") and not hasattr(operator, VIEW) and "<locals>" not in str(operator):
        raise _make_factory_error(operator)


def _make_factory_error(operator: Callable[..., Any]) -> ConfigurationError:
    name = getattr(operator, "__name__", repr(operator))
    return ConfigurationError(f"a stream must be piped through views, got the function {name}; call it: {name}(...)")


class _StartingSource(Observable[T], Generic[T]):
    """Source for operators that starts the run on any subscription, even from a future."""

    def __init__(self, source: Observable[T], hold: Hold) -> None:
        super().__init__()
        self._source = source
        self._hold = hold

    def _subscribe_core(
        self, observer: abc.ObserverBase[T], scheduler: abc.SchedulerBase | None = None
    ) -> abc.DisposableBase:
        default = self._hold.scheduler()
        # `subscribe` would wrap the observer, which costs extra calls per event.
        return self._source._subscribe_core(observer, scheduler or default)


class Reader(AsyncIterator[T], Generic[T]):
    """Stream iterator. Close or drop it to unsubscribe."""

    def __init__(self, source: Observable[T], hold: Hold, buffer: ReadBuffer) -> None:
        self._origin: tuple[Observable[T], Hold] | None = (source, hold)
        self._buffer = buffer
        self.observed = False
        """True if the end of the reading task is observed."""

    @property
    def is_over(self) -> bool:
        """True if the source has ended or the reader is closed."""
        return self._buffer.is_over

    def __anext__(self) -> Coroutine[Any, Any, T]:
        return self.read(None)

    async def read(self, time_limit: float | None) -> T:
        """Wait for the next item.

        Unlike a timeout around `anext`, this creates no timer if an item is already available.

        Args:
            time_limit: Maximum time to wait in seconds, or None to wait without limit.

        Raises:
            StopAsyncIteration: The stream has ended.
            ReadTimeout: No item arrived in time. The caller may try again.
        """
        try:
            if not self.observed:
                self._start()
            return await self._buffer.get(time_limit)
        except asyncio.CancelledError as error:
            self.observed = False
            # Otherwise, the traceback would keep this reader and the run's handle alive.
            release_frames(error)
            raise

    def _start(self) -> None:
        """Subscribe before the first read, and observe the reading task."""
        if self._buffer.subscription is None and self._origin is not None:
            self._subscribe(*self._origin)
        observe_reading_task(self)

    def _subscribe(self, source: Observable[T], hold: Hold) -> None:
        buffer, scheduler = self._buffer, hold.scheduler()
        buffer.attach(source.subscribe(buffer.push, buffer.end, buffer.end, scheduler=scheduler))

    def drain(self) -> Iterator[T]:
        """Yield available items without waiting."""
        return self._buffer.drain()

    async def aclose(self) -> None:
        """Unsubscribe and release the run."""
        # Do not wait for the last reference. If a task is canceled, it often disappears only with a garbage collection.
        self._origin = None
        self._buffer.close()

    def __del__(self) -> None:
        if not self._buffer.is_over:
            release_frames_if_cancelled(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
        self._buffer.close()


class ReadOnlyHold:
    """Hold used for runs executed elsewhere. Closing its gate only pauses the reader."""

    def __init__(self) -> None:
        self.gate = Gate()

    def scheduler(self) -> abc.SchedulerBase:
        """Return a scheduler for the running event loop, without starting a run."""
        return RunScheduler(get_running_loop("reading a run"), detached=True)

    def keep(self) -> Callable[[], None]:
        """Return a no-op function."""
        return lambda: None
