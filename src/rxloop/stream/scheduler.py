"""The scheduler of a run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TypeVar

from reactivex import abc, typing
from reactivex.disposable import Disposable, SerialDisposable
from reactivex.scheduler import CurrentThreadScheduler, HistoricalScheduler
from reactivex.scheduler.eventloop import AsyncIOScheduler

from rxloop.stream.foreign_errors import as_error, leave_to_loop
from rxloop.stream.scope import Gates, Scope, outside

S = TypeVar("S")


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
                scope.failed(as_error(error))
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


class Timer(SerialDisposable):
    """The one timer of an operator, by the clock of its subscription."""

    def __init__(self, scheduler: abc.SchedulerBase | None) -> None:
        super().__init__()
        clock = self._clock = timers(scheduler)
        self.now: Callable[[], float] = (
            clock.seconds if isinstance(clock, RunScheduler) else lambda: clock.to_seconds(clock.now)
        )
        """Tells the time in seconds; only differences mean something."""

    def start(self, seconds: float, action: Callable[[], None]) -> None:
        """Run the action once, after that many seconds, in the place of what was to run."""

        def due(_scheduler: abc.SchedulerBase, _state: object = None) -> None:
            action()

        self.disposable = self._clock.schedule_relative(max(seconds, 0.0), due)

    def stop(self) -> None:
        """Run nothing; it can be started again."""
        self.disposable = None
