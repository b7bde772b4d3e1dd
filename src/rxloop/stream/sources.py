"""Observables created from asyncio tasks, iterators and values."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from reactivex import Observable, abc
from reactivex.disposable import Disposable

from rxloop.errors import InvalidEvent, Paused, RxloopError
from rxloop.protocol.events import ContentCompleteEvent, Event, UsageEvent
from rxloop.protocol.messages import Usage
from rxloop.stream.rx import ColdObservable, PipelineStopped, RunScheduler
from rxloop.stream.scope import ScopeOwner, log_failure
from rxloop.support.foreign_errors import leave_to_loop, to_error
from rxloop.support.tasks import close_iterator, has_running_loop

if TYPE_CHECKING:
    from anyio import CancelScope

T = TypeVar("T")

Push = Callable[[T], None]
"""Function that delivers a value immediately, passed to the async function of `from_task`."""

log = logging.getLogger("rxloop")


def from_task(
    work: Callable[[Push[T]], Awaitable[None]],
    ctx: ScopeOwner | None = None,
    *,
    name: str = "rxloop-leaf",
    shielded: bool = False,
    stop: Callable[[], None] | None = None,
    on_abandoned: Callable[[], None] | None = None,
) -> Observable[T]:
    """Create a cold Observable from an async function.

    ::

        work   push(a)  push(b)   return
        out  -----a--------b--------|

    Args:
        work: Async function, called once per subscription. It receives a function that delivers a value immediately.
            The Observable ends when it returns or raises.
        ctx: Run whose scope owns the task. By default, only the event loop does.
        name: Name of the task.
        shielded: Stop the work with an anyio cancel scope instead of cancelling its task. Use this if the work holds an
            httpx connection, because httpx only cleans up its pool correctly with anyio's cancellation.
        stop: Function that stops the work, if it has started. By default, the task is canceled.
        on_abandoned: Called if the subscription is disposed before the work has ended.
    """

    def subscribe(observer: abc.ObserverBase[T], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        loop = asyncio.get_running_loop()
        owner = ctx.owner_scope() if ctx is not None else None
        run = owner or (scheduler.scope if isinstance(scheduler, RunScheduler) else None)
        on_failure = log_failure if run is None else run.on_failure
        subscription = _TaskSubscription(work, observer, name, on_failure, shielded, stop, on_abandoned)
        subscription.task = (
            owner.spawn(subscription.run(), name, subscription.dispose, ctx)
            if owner is not None
            else loop.create_task(subscription.run(), name=name)
        )
        return Disposable(subscription.dispose)

    return ColdObservable(subscribe)


_NOTHING = Disposable()


class TaskCancelled(RxloopError):
    """Task canceled because its event loop is closing."""


class _TaskSubscription:
    """Subscription of `from_task`."""

    __slots__ = (
        "_cancel",
        "_disposed",
        "_ended",
        "_name",
        "_observer",
        "_on_abandoned",
        "_on_failure",
        "_shielded",
        "_started",
        "_stop",
        "_stopped",
        "_work",
        "task",
    )

    def __init__(
        self,
        work: Callable[[Push[Any]], Awaitable[None]],
        observer: abc.ObserverBase[Any],
        name: str,
        on_failure: Callable[[Exception], None],
        shielded: bool,
        stop: Callable[[], None] | None,
        on_abandoned: Callable[[], None] | None,
    ) -> None:
        self.task: asyncio.Task[None] | None = None
        self._work = work
        self._observer = observer
        self._name = name
        self._on_failure = on_failure
        self._shielded = shielded
        self._stop = stop
        self._on_abandoned = on_abandoned
        self._cancel: CancelScope | None = None
        self._started = False
        self._ended = False
        self._disposed = False
        self._stopped = False
        """True if nothing more must be delivered."""

    async def run(self) -> None:
        """Run the work and deliver its result."""
        self._started = True
        if self._disposed:
            return
        try:
            if self._shielded:
                # Imported on first use to speed up importing rxloop.
                from anyio import CancelScope

                with CancelScope() as self._cancel:
                    await self._work(self._push)
            else:
                await self._work(self._push)
        except asyncio.CancelledError:
            if self._disposed:
                return
            if self.task is not None and self.task.cancelling():
                self._end(TaskCancelled(f"the task {self.task.get_name()} was canceled"))
                return
            # The work awaited a task that was canceled. If we raise the error, it ends this task unnoticed.
            self._end(RxloopError("a task or future awaited by this task was canceled"))
        except Paused:
            # The run's state contains the pending question, so the run ends as `input-required`.
            self._end()
        except Exception as error:
            self._end(error)
        except BaseException as error:
            if isinstance(error, GeneratorExit) and not has_running_loop():
                # The task was garbage-collected after closing its loop.
                raise
            if _contains_pause(error):
                self._end()
                return
            # If we raise the error, it ends this task unnoticed.
            self._end(to_error(error, f"the {self._name.removeprefix('rxloop-').replace('-', ' ', 1)}"))
            leave_to_loop(error)
        else:
            self._end()

    def _push(self, value: Any) -> None:
        if not self._stopped:
            try:
                self._observer.on_next(value)
            except (InvalidEvent, Paused):
                raise
            except PipelineStopped:
                self._stopped = True
                raise
            except BaseException as error:
                # Deliver the error directly, because the work might handle it as its own failure.
                self._deliver_end(error if isinstance(error, Exception) else to_error(error))
                leave_to_loop(error)
                raise

    def _end(self, error: Exception | None = None) -> None:
        # Set this first: the observer disposes the subscription on completion, which must not cancel this task.
        self._ended = True
        if not self._stopped:
            self._deliver_end(error)
        elif error is not None:
            log.debug("%s failed after it was stopped", self.task, exc_info=error)

    def _deliver_end(self, error: Exception | None) -> None:
        """Deliver the end to the observer. If the observer raises, report its error to the run."""
        self._stopped = True
        try:
            if error is None:
                self._observer.on_completed()
            else:
                self._observer.on_error(error)
        except BaseException as raised:
            self._on_failure(to_error(raised))
            leave_to_loop(raised)

    def dispose(self) -> None:
        """Stop the work. Use the scope's `join` to wait for its end."""
        if self._ended or self._disposed:
            return
        self._disposed = self._stopped = True
        if self._started and self.task is not None:
            if self._stop is not None:
                self._stop()
            elif self._cancel is not None:
                self._cancel.cancel()
            else:
                self.task.cancel()
        if self._on_abandoned is not None:
            self._on_abandoned()


def _contains_pause(error: BaseException) -> bool:
    """Return True if an exception group contains `Paused`, because a question was asked in a task group."""
    return isinstance(error, BaseExceptionGroup) and cast("Any", error).subgroup(Paused) is not None


def from_async_iter(
    make: Callable[[], AsyncIterator[T]], ctx: ScopeOwner | None = None, *, name: str = "rxloop-iterator"
) -> Observable[T]:
    """Create a cold Observable from an async iterator. Each subscription creates and closes its own iterator."""

    async def work(push: Push[T]) -> None:
        iterator = make()
        try:
            async for value in iterator:
                push(value)
        finally:
            await close_iterator(iterator)

    return from_task(work, ctx, name=name)


def from_awaitable(
    make: Callable[[], Awaitable[T]], ctx: ScopeOwner | None = None, *, name: str = "rxloop-awaitable"
) -> Observable[T]:
    """Create a cold Observable from an awaitable. Each subscription creates its own awaitable."""

    async def work(push: Push[T]) -> None:
        push(await make())

    return from_task(work, ctx, name=name)


def emit(*values: T) -> Observable[T]:
    """Create a cold Observable that delivers its values during `subscribe`.

    `reactivex.of` uses a trampoline, so its values could arrive after later events.
    """

    def subscribe(observer: abc.ObserverBase[T], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        for value in values:
            observer.on_next(value)
        observer.on_completed()
        return _NOTHING

    return ColdObservable(subscribe)


def never() -> Observable[Any]:
    """Return an Observable that neither emits nor ends."""
    return _NEVER


_NEVER = ColdObservable[Any](lambda observer, scheduler=None: _NOTHING)


async def collect_answer(events: Observable[Event]) -> tuple[ContentCompleteEvent, Usage]:
    """Collect the message and token usage from a model call.

    If the task is canceled, the connection is closed.

    Args:
        events: Events of the call, as returned by `Provider.call`.

    Raises:
        ProviderError: The model call failed.
    """
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    answer, usage = ContentCompleteEvent(), Usage()

    def on_next(event: Event) -> None:
        nonlocal answer, usage
        if isinstance(event, ContentCompleteEvent):
            answer = event
        elif isinstance(event, UsageEvent):
            usage = usage + event.usage

    def on_error(error: Exception) -> None:
        if not done.done():
            done.set_exception(error)

    def on_completed() -> None:
        if not done.done():
            done.set_result(None)

    subscription = events.subscribe(on_next, on_error, on_completed)
    try:
        await done
    finally:
        subscription.dispose()
    return answer, usage


DURABLE = "rxloop_durable"
"""View attribute, set if the view ignores transient events. Then its source does not deliver them, if possible."""


class EventSource(Observable[Event]):
    """Observable whose subscribers can omit transient events, so that they cost nothing per token.

    Args:
        subscribe: Function that subscribes an observer. Its second argument is True to omit transient events.
        only_durable: Whether to omit transient events.
    """

    def __init__(
        self,
        subscribe: Callable[[abc.ObserverBase[Event], bool], abc.DisposableBase],
        *,
        only_durable: bool = False,
    ) -> None:
        super().__init__()
        self._attach, self._only_durable = subscribe, only_durable

    @property
    def durable(self) -> Observable[Event]:
        """The durable events."""
        return EventSource(self._attach, only_durable=True)

    def _subscribe_core(
        self, observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None
    ) -> abc.DisposableBase:
        return self._attach(observer, self._only_durable)


def select_events(source: Observable[Any], view: object = None) -> Observable[Any]:
    """Return the durable events of a source if the view ignores transient events, and otherwise the source."""
    return getattr(source, "durable", source) if hasattr(view, DURABLE) else source


def subscribe_views(
    source: Observable[Any],
    views: Iterable[Callable[[Observable[Any]], Observable[Any]]],
    scheduler: abc.SchedulerBase | None,
    is_refusal: Callable[[Exception], bool],
    task_id: str,
) -> None:
    """Subscribe views to the events of a run. Failures of views are logged.

    Args:
        source: Observable of events.
        views: Views, whose values are ignored.
        scheduler: Scheduler for the subscriptions.
        is_refusal: Function that returns True for the error of a source that was refused, which is not logged.
        task_id: Id of the run, for the log.
    """

    def report(error: Exception) -> None:
        if not is_refusal(error):
            text = "A view of run %s failed and was unsubscribed: %s: %s"
            log.warning(text, task_id, type(error).__name__, error, extra={"task": task_id})

    for view in views:
        try:
            view(select_events(source, view)).subscribe(on_error=report, scheduler=scheduler)
        except Exception:
            log.exception("A view could not be subscribed to run %s", task_id, extra={"task": task_id})
