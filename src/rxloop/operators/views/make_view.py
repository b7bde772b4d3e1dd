"""Factory for stateful views."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cached_property
from typing import Any, Generic, TypeVar

from reactivex import Observable, abc
from reactivex.disposable import Disposable, SerialDisposable, SingleAssignmentDisposable

from rxloop.errors import ConfigurationError
from rxloop.operators.views import View, name_view
from rxloop.stream.rx import Connection, Connections, RunScheduler, resolve_scheduler
from rxloop.stream.stream import JOINS
from rxloop.support.misuse import check_argument

A = TypeVar("A")
T = TypeVar("T")


class ViewOutput(Generic[T]):
    """Output of a single view subscription.

    Values emitted after completion or disposal are ignored.
    """

    emit: Callable[[T], None]
    """Function that emits a value.

    It is the subscriber's `on_next` method. Do not call it in a `try` block, because that would also catch the errors
    of the subscriber.
    """

    def __init__(self, observer: abc.ObserverBase[T], scheduler: abc.SchedulerBase | None) -> None:
        self.emit = observer.on_next if type(observer) is not Connection else _call_link(observer)
        self._observer = observer
        self._scheduler = scheduler
        self._resources = Connections()
        self._end_actions: list[tuple[Callable[[], None], bool]] = []
        self._error_actions: list[Callable[[Exception], None]] = []
        self._failed = False

    def complete(self) -> None:
        """Complete the view and unsubscribe from the source."""
        self._run_end_actions()
        self._observer.on_completed()

    def fail(self, error: Exception) -> None:
        """Fail the view with an error and unsubscribe from the source."""
        self._failed = True
        self._run_end_actions()
        self._observer.on_error(error)

    @cached_property
    def now(self) -> Callable[[], float]:
        """Return the current time of the subscription's scheduler in seconds. Only differences are meaningful."""
        clock = self._clock
        return clock.monotonic if isinstance(clock, RunScheduler) else lambda: clock.to_seconds(clock.now)

    def schedule(self, seconds: float, action: Callable[[], None]) -> abc.DisposableBase:
        """Schedule a callback.

        There is only one timer per subscription, so this replaces a callback that is still pending. The timer uses the
        scheduler of the subscription. It is cancelled when the view ends or the subscription is disposed.

        Args:
            seconds: The delay in seconds.
            action: The callback.

        Returns:
            A disposable that cancels the callback.
        """

        def due(_scheduler: abc.SchedulerBase, _state: object = None) -> None:
            action()

        # Schedulers may run the callback immediately, which may schedule further callbacks.
        self._timer.disposable = call = SingleAssignmentDisposable()
        call.disposable = self._clock.schedule_relative(seconds, due)
        return call

    def on_end(self, action: Callable[[], None], *, also_on_error: bool = False) -> None:
        """Add a callback that runs before the view completes, for example to emit a final value.

        It runs once, when the source completes or when `complete` is called. The callback may call `fail`.

        Args:
            action: The callback. If it raises an exception, the view fails with it.
            also_on_error: Whether to run the callback before the view fails, too.
        """
        self._end_actions.append((action, also_on_error))

    def on_error(self, action: Callable[[Exception], None]) -> None:
        """Add a callback that handles an error of the source, for example by emitting a value.

        Afterwards the view fails with the same error, unless the callback has called `complete` or `fail`.

        Args:
            action: The callback. If it raises an exception, the view fails with it.
        """
        self._error_actions.append(action)

    def on_dispose(self, action: Callable[[], None]) -> None:
        """Add a callback for resource cleanup.

        Called exactly once, either on completion or on disposal.

        Args:
            action: Cleanup callback. Must not emit values.
        """
        self._resources.add(Disposable(action))

    @cached_property
    def _clock(self) -> abc.SchedulerBase:
        return resolve_scheduler(self._scheduler)

    @cached_property
    def _timer(self) -> SerialDisposable:
        timer = SerialDisposable()
        self._resources.add(timer)
        return timer

    def _fail_with_source(self, error: Exception) -> None:
        self._failed = True
        for action in self._error_actions:
            self._guard(action, error)
        self.fail(error)

    def _run_end_actions(self) -> None:
        actions, self._end_actions = self._end_actions, []
        for action, also_on_error in actions:
            if also_on_error or not self._failed:
                self._guard(action)

    def _guard(self, action: Callable[..., None], *arguments: Exception) -> None:
        try:
            action(*arguments)
        except Exception as error:
            # The source has ended and cannot report the error, so readers would wait forever.
            self._observer.on_error(error)
            raise


class _Connection(ViewOutput[T], abc.DisposableBase):
    """Source subscription of a view."""

    def connect(
        self, source: Observable[A], make: Callable[[ViewOutput[T]], Callable[[A], None]], name: str
    ) -> abc.DisposableBase:
        """Subscribe to the source and return this subscription."""
        self._subscription: abc.DisposableBase | None = None
        try:
            handle = _check_handler(make(self), name)
            self._subscription = source.subscribe(
                handle, self._fail_with_source, self.complete, scheduler=self._scheduler
            )
        except BaseException:
            self.dispose()
            raise
        return self

    def dispose(self) -> None:
        """Unsubscribe from the source, then release the resources."""
        # The callbacks and the subscription hold references to this object. Break the reference cycles.
        self._end_actions.clear()
        self._error_actions.clear()
        subscription, self._subscription = self._subscription, None
        try:
            if subscription is not None:
                subscription.dispose()
        finally:
            self._resources.dispose()


def make_view(
    make: Callable[[ViewOutput[T]], Callable[[A], None]], *, name: str | None = None, joins: bool = False
) -> View[A, T]:
    """Create a view that keeps state.

    `make` is called for each subscription and returns the function that handles the items of the source. Local
    variables of `make` hold the state of the subscription. The view ends when the source ends.

    ::

        source                --a--b--a--|
        make_view(counter)    --1--1--2--|      counter emits how often an item has occurred

    Example:
        >>> def counter(out: ViewOutput[int]) -> Callable[[str], None]:
        ...     counts = Counter[str]()
        ...
        ...     def handle(item: str) -> None:
        ...         counts[item] += 1
        ...         out.emit(counts[item])
        ...
        ...     return handle
        >>> counted = stream.pipe(op.make_view(counter))

    If the function raises an exception, the run logs it and unsubscribes the view, which fails with the exception. The
    run and its other subscribers continue.

    Args:
        make: A function that is called with the output of the subscription. It returns the function that is called with
            each item.
        name: The name of the view in messages. The default is the name of the function that contains `make`, or that of
            `make` if it is defined at module level.
        joins: Whether the values are parts of one text. If so, several of them may be joined for a slow reader.

    Returns:
        A view of the emitted values.

    Raises:
        ConfigurationError: `make` is not a function.
    """
    check_argument("make", make, callable(make), "a function of the output of a subscription")
    name = name or _derive_name(make)

    def view(source: Observable[A]) -> Observable[T]:
        def subscribe(observer: abc.ObserverBase[T], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
            return _Connection(observer, scheduler).connect(source, make, name)

        return Observable(subscribe)

    view.__qualname__ = view.__name__ = name
    if joins:
        setattr(view, JOINS, True)
    return name_view(view, f"op.{name}" if make.__module__.startswith("rxloop.operators.") else name)


def _call_link(link: Connection) -> Callable[[Any], None]:
    """Create a function that delegates to the link's current `on_next` method, which changes on completion."""

    def emit(value: Any) -> None:
        link.on_next(value)

    return emit


def _derive_name(make: Callable[..., Any]) -> str:
    *makers, own = getattr(make, "__qualname__", type(make).__qualname__).split(".<locals>.")
    return makers[-1] if makers else own


def _check_handler(handle: Callable[[A], None], name: str) -> Callable[[A], None]:
    handler: Any = handle
    if not callable(handler):
        raise ConfigurationError(
            f"The function passed to make_view for {name!r} must return the function that handles each item, "
            f"got {handler!r}."
        )
    # Each subscription gets here, so we do without the eleven calls of inspect.iscoroutinefunction().
    if getattr(getattr(handler, "__code__", None), "co_flags", 0) & inspect.CO_COROUTINE:
        raise ConfigurationError(
            f"The function of {name!r} that handles each item must not be async, because it is not awaited."
        )
    return handle
