"""Observables of asyncio work."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from reactivex import Observable, abc
from reactivex.disposable import Disposable

from rxloop.errors import InvalidEvent, Paused, RxloopError
from rxloop.protocol.events import ContentCompleteEvent, Event, UsageEvent
from rxloop.protocol.messages import Usage
from rxloop.stream.rx import Cold, RunScheduler
from rxloop.stream.scope import ScopeOwner, report
from rxloop.support.foreign_errors import leave_to_loop, to_error
from rxloop.support.tasks import close_iterator

if TYPE_CHECKING:
    from anyio import CancelScope

T = TypeVar("T")

Push = Callable[[T], None]
"""Delivers a value at once; what `from_task` hands to its async function."""

log = logging.getLogger("rxloop")


def from_task(
    work: Callable[[Push[T]], Awaitable[None]],
    ctx: ScopeOwner | None = None,
    *,
    name: str = "rxloop-leaf",
    shielded: bool = False,
    stop: Callable[[], None] | None = None,
    abandoned: Callable[[], None] | None = None,
) -> Observable[T]:
    """Make a cold Observable whose values an async function pushes.

    ::

        work   push(a)  push(b)   return
        out  -----a--------b--------|

    Args:
        work: Called once for each subscription with a function that takes a value and delivers it at once. It ends the
            Observable by returning, or by an exception.
        ctx: The run whose scope owns the task; without one the event loop does.
        name: The name of the task.
        shielded: Stop by an anyio cancel scope and not by cancelling the task. For work that holds a connection of
            httpx: a bare cancel leaves connections behind in its pool, whose clean-up is safe against anyio's
            cancellation only.
        stop: How else to stop the work, which has begun by then.
        abandoned: Called when the subscription is disposed before the end of the work.
    """

    def subscribe(observer: abc.ObserverBase[T], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        loop = asyncio.get_running_loop()
        owner = ctx.owner_scope() if ctx is not None else None
        run = owner or (scheduler.scope if isinstance(scheduler, RunScheduler) else None)
        leaf = _Leaf(work, observer, name, report if run is None else run.failed, shielded, stop, abandoned)
        leaf.task = (
            owner.spawn(leaf.run(), name, leaf.dispose)
            if owner is not None
            else loop.create_task(leaf.run(), name=name)
        )
        return Disposable(leaf.dispose)

    return Cold(subscribe)


_NOTHING = Disposable()


class TaskCancelled(RxloopError):
    """A task of a run was cancelled, and not by the run: its event loop is closing."""


class _Leaf:
    """One subscription of `from_task`."""

    __slots__ = (
        "_abandoned",
        "_cancel",
        "_disposed",
        "_ended",
        "_failed",
        "_name",
        "_observer",
        "_over",
        "_shielded",
        "_started",
        "_stop",
        "_work",
        "task",
    )

    def __init__(
        self,
        work: Callable[[Push[Any]], Awaitable[None]],
        observer: abc.ObserverBase[Any],
        name: str,
        failed: Callable[[Exception], None],
        shielded: bool,
        stop: Callable[[], None] | None,
        abandoned: Callable[[], None] | None,
    ) -> None:
        self.task: asyncio.Task[None] | None = None
        self._work = work
        self._observer = observer
        self._name = name
        self._failed = failed
        self._shielded = shielded
        self._stop = stop
        self._abandoned = abandoned
        self._cancel: CancelScope | None = None
        self._started = False
        self._ended = False
        self._disposed = False
        self._over = False
        """Whether nothing more is delivered."""

    async def run(self) -> None:
        """Run the work, and deliver its end unless nobody listens any more."""
        self._started = True
        if self._disposed:
            return
        try:
            if self._shielded:
                # Not before it is needed: importing rxloop is quicker without.
                from anyio import CancelScope

                with CancelScope() as self._cancel:
                    await self._work(self._push)
            else:
                await self._work(self._push)
        except asyncio.CancelledError:
            if self._disposed:
                return
            if self.task is not None and self.task.cancelling():
                self._end(TaskCancelled(f"the task {self.task.get_name()} was cancelled"))
                return
            # A task that the work awaited was cancelled. Let through, it would end this task and tell nobody.
            self._end(RxloopError("something that this task waited for was cancelled"))
        except Paused:
            # The question is pending in the state of the run, so that the run ends as `input-required`.
            self._end()
        except Exception as error:
            self._end(error)
        except BaseException as error:
            if isinstance(error, GeneratorExit) and not _loop_runs():
                # The task itself is thrown away, long after its loop was closed.
                raise
            if _pauses(error):
                self._end()
                return
            # Let through, it would end this task, and tell nobody either.
            self._end(to_error(error, f"the {self._name.removeprefix('rxloop-').replace('-', ' ', 1)}"))
            leave_to_loop(error)
        else:
            self._end()

    def _push(self, value: Any) -> None:
        if not self._over:
            try:
                self._observer.on_next(value)
            except (InvalidEvent, Paused):
                raise
            except BaseException as error:
                # Told at once, and not through the work, which may take it for a failure of its own.
                self._tell(error if isinstance(error, Exception) else to_error(error))
                leave_to_loop(error)
                raise

    def _end(self, error: Exception | None = None) -> None:
        # Ended before the delivery: the observer disposes on completion, which must not cancel the task delivering it.
        self._ended = True
        if not self._over:
            self._tell(error)
        elif error is not None:
            log.debug("%s failed after it was over", self.task, exc_info=error)

    def _tell(self, error: Exception | None) -> None:
        """Deliver the end, to the run itself if those who listen cannot take it."""
        self._over = True
        try:
            if error is None:
                self._observer.on_completed()
            else:
                self._observer.on_error(error)
        except BaseException as raised:
            self._failed(to_error(raised))
            leave_to_loop(raised)

    def dispose(self) -> None:
        """Stop the work; the scope's `join` tells when it has stopped."""
        if self._ended or self._disposed:
            return
        self._disposed = self._over = True
        if self._started and self.task is not None:
            if self._stop is not None:
                self._stop()
            elif self._cancel is not None:
                self._cancel.cancel()
            else:
                self.task.cancel()
        if self._abandoned is not None:
            self._abandoned()


def _pauses(error: BaseException) -> bool:
    """True for a question in a task group, which wraps what its tasks raise."""
    return isinstance(error, BaseExceptionGroup) and cast("Any", error).subgroup(Paused) is not None


def _loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def from_async_iter(
    make: Callable[[], AsyncIterator[T]], ctx: ScopeOwner | None = None, *, name: str = "rxloop-iterator"
) -> Observable[T]:
    """Make a cold Observable of an async iterator that is made for each subscription, and closed at its end."""

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
    """Make a cold Observable of the one value of an awaitable that is made for each subscription."""

    async def work(push: Push[T]) -> None:
        push(await make())

    return from_task(work, ctx, name=name)


def emit(*values: T) -> Observable[T]:
    """Make a cold Observable that delivers its values inside `subscribe`.

    Not `reactivex.of`, which goes over a trampoline and so may deliver after what was published later.
    """

    def subscribe(observer: abc.ObserverBase[T], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        for value in values:
            observer.on_next(value)
        observer.on_completed()
        return _NOTHING

    return Cold(subscribe)


async def collect_answer(events: Observable[Event]) -> tuple[ContentCompleteEvent, Usage]:
    """Subscribe to one call of a model and return its message and the tokens that it used.

    Cancelling the task closes the connection.

    Args:
        events: The events of the call, as `Provider.call` returns them.

    Raises:
        ProviderError: The model failed.
    """
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    answer, used = ContentCompleteEvent(), Usage()

    def on_next(event: Event) -> None:
        nonlocal answer, used
        if isinstance(event, ContentCompleteEvent):
            answer = event
        elif isinstance(event, UsageEvent):
            used = used + event.usage

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
    return answer, used
