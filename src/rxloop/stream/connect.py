"""Subscriptions between the operators of the loop, at the cost of one call for each event."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cached_property
from threading import RLock
from typing import Any, TypeVar

from reactivex import Observable, abc

from rxloop.stream.foreign_errors import as_error, leave_to_loop

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
        link.on_error(error if isinstance(error, Exception) else as_error(error))
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
