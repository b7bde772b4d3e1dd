"""Subscriptions and scheduler of rxloop for RxPY."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import cached_property
from threading import RLock
from typing import Any, TypeVar

from reactivex import Observable, abc, typing
from reactivex.disposable import Disposable
from reactivex.scheduler import CurrentThreadScheduler, HistoricalScheduler
from reactivex.scheduler.eventloop import AsyncIOScheduler

from rxloop.errors import RxloopError
from rxloop.stream.back_pressure import Gates
from rxloop.stream.scope import Scope, outside
from rxloop.support.foreign_errors import leave_to_loop, to_error

T = TypeVar("T")

log = logging.getLogger("rxloop")


def connect(
    source: Observable[T],
    on_next: Callable[[T], None],
    on_error: Callable[[Exception], None],
    on_completed: Callable[[], None],
    scheduler: abc.SchedulerBase | None = None,
    among: Connections | None = None,
) -> Link:
    """Subscribe to a source, like `source.subscribe(on_next, on_error, on_completed, scheduler=scheduler)`.

    Nothing is delivered after the end or after the subscription was disposed, and the end disposes the source. The
    observer that `Observable.subscribe` puts between for this costs two calls and a check for each event, at each
    operator that a token passes; here an event goes to `on_next` itself. Disposed in the middle of `subscribe`, it may
    get what operators further up deliver until that returns.

    Args:
        source: Subscribed once, unless `among` is disposed already.
        on_next: Takes each item.
        on_error: Takes the error that ends it.
        on_completed: Called at its end.
        scheduler: That of the subscription.
        among: The connections that this one belongs to until it is over.
    """
    link = Link(on_next, on_error, on_completed, among)
    if among is not None and not among.add(link):
        return link
    try:
        # `subscribe` would put its own observer between.
        subscription = source._subscribe_core(link, scheduler)  # pyright: ignore[reportPrivateUsage]
    except BaseException as error:
        if link.stopped:
            raise
        # Whatever it is: an operator of reactivex in the middle of `subscribe` would leave behind what it holds.
        link.on_error(error if isinstance(error, Exception) else to_error(error))
        leave_to_loop(error)
        return link
    link.take(subscription)
    return link


class Cold(Observable[T]):
    """An Observable like any other, at a third of the cost: each iteration makes nine.

    The lock that others make at once is made when somebody asks for it, and to subscribe takes one call less.
    """

    def __init__(self, subscribe: abc.Subscription[T]) -> None:  # pyright: ignore[reportMissingSuperCall]
        self._subscribe = subscribe
        # In the place of the method, which would only call it.
        self._subscribe_core = subscribe  # pyright: ignore[reportAttributeAccessIssue]

    @cached_property
    def lock(self) -> RLock:  # pyright: ignore[reportIncompatibleVariableOverride]
        """What operators of reactivex hold while they deliver."""
        return RLock()


class Connections(abc.DisposableBase):
    """The open connections of an operator, disposed together.

    What reactivex's `CompositeDisposable` is for, without its locks: a run is the business of one thread.
    """

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open: dict[abc.DisposableBase, None] | None = {}

    @property
    def disposed(self) -> bool:
        """Whether nothing can be added any more."""
        return self._open is None

    def add(self, connection: abc.DisposableBase) -> bool:
        """Hold a connection; False if all are disposed, as then is this one."""
        if self._open is None:
            connection.dispose()
            return False
        self._open[connection] = None
        return True

    def remove(self, connection: abc.DisposableBase) -> None:
        """Forget a connection that is over."""
        if self._open is not None:
            self._open.pop(connection, None)

    def dispose(self) -> None:
        """Dispose the connections in the order in which they were made, and all that are added later.

        If one of them raises, the others are disposed all the same, and the first error is raised then.
        """
        open_, self._open = self._open, None
        failure: BaseException | None = None
        for connection in tuple(open_ or ()):
            try:
                connection.dispose()
            except BaseException as error:
                failure = failure or error
        if failure is not None:
            raise failure


def dispose_after(error: Exception, connection: abc.DisposableBase) -> None:
    """Dispose what an error has made useless; should that raise as well, the error is delivered, with a note of it."""
    try:
        connection.dispose()
    except BaseException as second:
        error.add_note(f"and to dispose what was still under way raised {second!r}")
        log.warning("what was under way when %r came could not be disposed", error, exc_info=second)
        leave_to_loop(second)


class Link(abc.ObserverBase[Any], abc.DisposableBase):
    """What the source of a connection delivers to; disposing it ends the connection.

    At the end it lets go of everything, so that nothing of an iteration is left for the garbage collector to find.
    """

    __slots__ = ("_among", "_on_completed", "_on_error", "_subscription", "on_next", "stopped")

    def __init__(
        self,
        on_next: Callable[[Any], None],
        on_error: Callable[[Exception], None],
        on_completed: Callable[[], None],
        among: Connections | None,
    ) -> None:
        self.stopped = False
        # In the place of the method, which would be one call more for each event.
        self.on_next = on_next  # pyright: ignore[reportAttributeAccessIssue]
        self._on_error = on_error
        self._on_completed = on_completed
        self._among = among
        self._subscription: abc.DisposableBase | None = None

    def on_error(self, error: Exception) -> None:
        """End the connection by an error."""
        if not self.stopped:
            on_error = self._on_error
            self._stop()
            try:
                on_error(error)
            finally:
                self._release()

    def on_completed(self) -> None:
        """End the connection."""
        if not self.stopped:
            on_completed = self._on_completed
            self._stop()
            self.on_next = _late  # pyright: ignore[reportAttributeAccessIssue]
            try:
                on_completed()
            finally:
                self._release()

    def pass_to(self, on_next: Callable[[Any], None]) -> None:
        """Give all that comes from now on to another function; for one who has seen what it waited for."""
        if not self.stopped:
            self.on_next = on_next  # pyright: ignore[reportAttributeAccessIssue]

    def take(self, subscription: abc.DisposableBase) -> None:
        """Hold the subscription of the source, unless it is over already."""
        self._subscription = subscription
        if self.stopped:
            self._release()

    def dispose(self) -> None:
        """End the connection from the side of the subscriber."""
        self._stop()
        self._release()

    def _stop(self) -> None:
        self.stopped = True
        self.on_next = self._on_error = _ignore
        self._on_completed = _nothing
        if self._among is not None:
            self._among.remove(self)
            self._among = None

    def _release(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            subscription.dispose()


def _late(value: Any) -> None:
    log.warning("%r came after the end of the operator that sent it, and is lost: events have to pass at once", value)


def _ignore(value: Any) -> None:
    """Take what comes after the end."""


def _nothing() -> None:
    """Take a second end."""


S = TypeVar("S")


def running_loop(what: str) -> asyncio.AbstractEventLoop:
    """Return the event loop that runs in this thread.

    Args:
        what: What needs it, for the error.

    Raises:
        RxloopError: There is none in this thread.
    """
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise RxloopError(f"{what} needs a running event loop of asyncio (trio is not supported): {_REMEDY}") from None


_REMEDY = (
    "use it in async code. In a thread without a loop, such as that of a GUI or of a pool, subscribe in the thread of "
    "the loop: stream.pipe(reactivex.operators.subscribe_on(AsyncIOThreadSafeScheduler(loop)))"
)


class RunScheduler(AsyncIOScheduler):
    """A trampoline for what is due now, the event loop for what is due later.

    The stock `AsyncIOScheduler` sends both to the loop, which makes `just` and `start_with` asynchronous; without any
    scheduler the time operators fire on threads of their own.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        scope: Scope | None = None,
        *,
        for_readers: bool = False,
        gates: Gates | None = None,
    ) -> None:
        """Make a scheduler.

        Args:
            loop: Where it schedules.
            scope: That of the run whose pipeline it is for: what a timer raises ends the run, and a run that waits for
                a timer is not stuck.
            for_readers: It is for those who read a run, whose timers are none of the run's business.
            gates: Those of somebody who reads several runs; a run that is made in the subscription adds its own.
        """
        super().__init__(loop)
        self.scope = scope
        self.gates = gates
        self._for_readers = for_readers
        self.thread = threading.get_ident()
        """That of the event loop."""
        self._began: datetime | None = None
        """When the event loop's time was zero, once somebody has asked for the time."""

    @property
    def now(self) -> datetime:
        """The time of the event loop, by which the timers go: where a test lets the loop jump, this jumps with it."""
        if self._began is None:
            self._began = super().now - timedelta(seconds=self._loop.time())
        return self._began + timedelta(seconds=self._loop.time())

    def seconds(self) -> float:
        """Return the same in seconds, since whenever: a hundredth of the work, for who asks at each token."""
        return self._loop.time()

    def schedule(self, action: abc.ScheduledAction[S], state: S | None = None) -> abc.DisposableBase:
        """Run the action now, or after what is running now."""
        return CurrentThreadScheduler.singleton().schedule(action, state)

    def schedule_relative(
        self, duetime: typing.RelativeTime, action: abc.ScheduledAction[S], state: S | None = None
    ) -> abc.DisposableBase:
        """Run the action after a time."""
        if self.to_seconds(duetime) <= 0:
            return self.schedule(action, state)
        if self.scope is not None:
            return self._watched(self.scope, duetime, action, state)
        if self._for_readers:
            return outside(super().schedule_relative, duetime, action, state)
        return super().schedule_relative(duetime, action, state)

    def _watched(
        self, scope: Scope, duetime: typing.RelativeTime, action: abc.ScheduledAction[S], state: S | None
    ) -> abc.DisposableBase:
        token = object()

        def due(scheduler: abc.SchedulerBase, state: S | None = None) -> abc.DisposableBase | None:
            try:
                return action(scheduler, state)
            except BaseException as error:
                scope.failed(to_error(error))
                leave_to_loop(error)
                return None
            finally:
                over()

        def over() -> None:
            scope.timers.pop(token, None)
            scope.settle()

        def dispose() -> None:
            timer.dispose()
            over()

        scope.timers[token] = None
        timer = super().schedule_relative(duetime, due, state)
        return Disposable(dispose)


def timers(scheduler: abc.SchedulerBase | None) -> abc.SchedulerBase:
    """Return the scheduler of a subscription, or one on the running event loop where none was given.

    Stock operators fall back on a timer of another thread instead, where a run must not be touched. And the stock
    scheduler of asyncio, which `await` on an Observable brings along, tells the time by the clock on the wall while its
    timers go by the loop: after a change of the one, what compares the two would be wrong.

    Where no event loop runs there are recorded events alone, and no time goes by between them: no timer is ever due.
    """
    if scheduler is None or type(scheduler) is AsyncIOScheduler:
        try:
            return RunScheduler(asyncio.get_running_loop())
        except RuntimeError:
            return HistoricalScheduler()
    return scheduler
