"""Phase, time limit and cause of ending for attempts. The first cause wins."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future, wait
from contextlib import suppress
from enum import Enum
from typing import Any, Final, NamedTuple, TypeVar

from rxloop.errors import RunOver, RxloopError
from rxloop.operators.loop.checks import make_thread_error
from rxloop.pipeline.requests import Operator
from rxloop.state.run_state import LimitHit
from rxloop.stream.rx import RunScheduler
from rxloop.stream.scope import TimeLimit, TimeScope
from rxloop.stream.sources import TaskCancelled
from rxloop.support.foreign_errors import free_memory, is_out_of_memory, leave_to_loop, to_error
from rxloop.support.tasks import is_cancelled

log = logging.getLogger("rxloop")

T = TypeVar("T")

_CHECK_INTERVAL = 1.0
"""Seconds between checks on whether the run's event loop has closed, while waiting in another thread."""


class Phase(Enum):
    """Attempt phase, in ascending order. Set by `lifecycle`, `attempt_end` and `Lifetime.open`."""

    NEW = "new"
    """Not started yet."""
    LOADING = "loading"
    """Waiting for the conversation lease, and reading the log."""
    ANNOUNCING = "announcing"
    """Publishing its first events."""
    OPEN = "open"
    """Started. Events are published."""
    CLOSED = "closed"
    """Final event recorded. No more events are accepted."""
    OVER = "over"
    """Final event published, and stream completed."""
    REFUSED = "refused"
    """Failed to start. The stream ended with an error."""


class Canceled(NamedTuple):
    """Cancellation of a run."""

    reason: str
    command_number: int | None = None
    """Cancel command number, if applicable."""
    code: str = "canceled"
    """Reason and error code for the final event."""


class Released(NamedTuple):
    """Release of a run, so that any process can resume it."""

    grace: float = 0
    """Seconds to wait for running calls to tools that aren't idempotent."""
    counts: bool = False
    """True if the attempt counts as one that ended with its process."""


CLOSING = Canceled("the event loop is closing")
"""End used when a closing event loop cancels the run's task."""

PARENT_ENDED = Canceled("the parent run has ended")
"""End of nested runs that are still running when their parent ends."""

End = Exception | Canceled | Released | None
"""Cause of an attempt's end: error, limit, cancellation or release. None if the run has no work left."""


class _Undecided(Enum):
    UNDECIDED = "undecided"


_UNDECIDED: Final = _Undecided.UNDECIDED
"""Placeholder for an undecided end."""


class Lifetime:
    """Lifetime of an attempt, including its phase, cause of ending, and event loop thread."""

    def __init__(self, task_id: str, operator: Operator) -> None:
        """Create a lifetime in the phase NEW.

        Args:
            task_id: Id of the run.
            operator: Loop of the run, for error messages.
        """
        self.phase = Phase.NEW
        self.thread = threading.get_ident()
        """Thread running the event loop. Before starting, the thread that created the run."""
        self.event_loop: asyncio.AbstractEventLoop | None = None
        self.scheduler: RunScheduler | None = None
        self._end: End | _Undecided = _UNDECIDED
        self.is_ending = False
        """True once the end has been decided. An attribute, because each iteration reads it several times."""
        self._task_id = task_id
        self._operator = operator
        self._on_end: Callable[[], object] | None = None
        """Called when the end is decided."""
        self.time_scope = TimeScope(TimeScope.current())
        """Time limits for the run, paused while waiting for an answer."""
        self._started = 0.0
        self._limit: TimeLimit | None = None
        self.task: asyncio.Task[None] | None = None
        """Task executing the attempt."""
        self.only_executes = False
        """True if a worker executes the attempt, so that trouble of the process must not end the run."""
        self._on_open: asyncio.Future[None] | None = None

    @property
    def end(self) -> End:
        """Cause of ending. None if undecided, or if the run has no work left."""
        return None if self._end is _UNDECIDED else self._end

    @property
    def closing_end(self) -> Canceled | Released:
        """End used when the event loop is closing."""
        return Released() if self.only_executes else CLOSING

    @property
    def is_used(self) -> bool:
        """True once the run has been started or cancelled."""
        return self.phase is not Phase.NEW or self.is_ending

    @property
    def is_starting(self) -> bool:
        """True until the run has been accepted or refused."""
        return self.phase in (Phase.NEW, Phase.LOADING, Phase.ANNOUNCING)

    def open(self) -> None:
        """Mark the run as started, which allows publishing events."""
        self.phase = Phase.OPEN
        if self._on_open is not None:
            self._on_open.set_result(None)

    async def wait_open(self, task: asyncio.Task[None]) -> None:
        """Wait for the run to start, or for its task to finish."""
        if self.is_starting:
            if self._on_open is None:
                self._on_open = asyncio.get_running_loop().create_future()
            await asyncio.wait([task, self._on_open], return_when=asyncio.FIRST_COMPLETED)

    def bind(self, event_loop: asyncio.AbstractEventLoop) -> None:
        """Bind the attempt to its event loop."""
        self.event_loop = event_loop
        self._started = event_loop.time()
        self.scheduler = RunScheduler(event_loop, detached=True)
        self.thread = self.scheduler.thread

    def limit(self, seconds: float | None, *, restart: bool = False) -> None:
        """Set or replace the time limit. Time spent waiting for answers doesn't count.

        Args:
            seconds: Seconds from the start of the attempt, or None for no limit.
            restart: Whether to start counting from now instead.
        """
        if restart and self.event_loop is not None:
            self._started = self.event_loop.time()
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None
        if seconds is not None and self.event_loop is not None:
            hit = LimitHit("timeout", f"the run took longer than {seconds} s (limits.seconds)")
            remaining = self._started + seconds - self.event_loop.time()
            self._limit = self.time_scope.start_limit(remaining, lambda: self.finish(hit))

    def finish(self, end: End) -> None:
        """Decide the end, unless already decided."""
        if threading.get_ident() != self.thread and self.event_loop is not None:
            self.finish_from_thread(end if isinstance(end, Exception) else None)
        elif not self.is_ending:
            self._end = self._convert(end)
            self.is_ending = True
            if self._on_end is not None:
                self._on_end()

    def _convert(self, end: End) -> End:
        """Convert an error that does not fail the run."""
        if isinstance(end, TaskCancelled):
            is_closing = self.task is not None and self.task.cancelling()
            return self.closing_end if is_closing else Canceled(str(end))
        if isinstance(end, Exception) and self.only_executes and is_out_of_memory(end):
            # Another run may have used up the memory.
            log.error("Out of memory in run %s, which will be tried again", self._task_id, exc_info=end)
            free_memory()
            return Released(counts=True)
        if isinstance(end, LimitHit):
            # The frames of its traceback refer to this object.
            end.__traceback__ = None
        return end

    def revise(self, end: End) -> None:
        """Replace the cause of ending after it turned out to be wrong."""
        self._end = end

    def complete(self) -> None:
        """End normally, because the run has no work left."""
        self.finish(None)

    def fail(self, error: Exception) -> None:
        """End with an error that was raised outside of the pipeline."""
        if self.is_ending:
            log.error("Error after the end of run %s", self._task_id, exc_info=error)
        else:
            self.finish(error)

    def cancel(self, reason: str | None = None) -> None:
        """Cancel the run. Can be called from any thread."""
        self.call_in_loop(self.finish, Canceled(reason or "cancelled"))

    def finish_from_thread(self, cause: Exception | None = None) -> None:
        """Fail the attempt because its pipeline used another thread."""
        self.call_in_loop(self.finish, make_thread_error(self._operator, cause))

    def call_in_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        """Run a function in the event loop thread."""
        if self.event_loop is None or threading.get_ident() == self.thread:
            function(*arguments)
        else:
            with suppress(RuntimeError):  # The loop may already be closed.
                self.event_loop.call_soon_threadsafe(self._call_safely, function, *arguments)

    def run_in_loop(self, function: Callable[[], T]) -> T:
        """Run a function in the event loop thread, and wait for its result. Can be called from any thread.

        Raises:
            RunOver: The event loop is closed.
        """
        loop = self.event_loop
        if loop is None or threading.get_ident() == self.thread:
            return function()
        done: Future[T] = Future()

        def call() -> None:
            try:
                done.set_result(function())
            except BaseException as error:
                done.set_exception(error)

        with suppress(RuntimeError):  # The loop may already be closed.
            loop.call_soon_threadsafe(call)
        while not wait([done], _CHECK_INTERVAL).done:
            if loop.is_closed():
                raise RunOver(f"run {self._task_id} is over, because its event loop is closed")
        return done.result()

    def _call_safely(self, function: Callable[..., None], *arguments: Any) -> None:
        try:
            function(*arguments)
        except BaseException as error:
            self.fail(to_error(error))
            leave_to_loop(error)

    async def wait_end(self) -> None:
        """Wait for the end to be decided. Only supports a single waiter."""
        if self.is_ending:
            return
        # Using `asyncio.Event` would take ten times the memory.
        decided: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._on_end = lambda: None if decided.done() else decided.set_result(None)
        try:
            await decided
        except asyncio.CancelledError:
            self.finish(self.closing_end)

    async def run_to_completion(self, step: Callable[[], Awaitable[T]]) -> T:
        """Run a step to completion, even if a closing event loop cancels it."""
        while True:
            try:
                return await step()
            except asyncio.CancelledError:
                self.finish(self.closing_end)

    async def prepare(self, work: Coroutine[Any, Any, T], grace: float = 0) -> T | None:
        """Await setup work before the first request. Return None if the end is decided first.

        Args:
            work: Coroutine to run in its own task.
            grace: Seconds the work may continue after the end was decided. It has at least half of this time, even if
                the process is frozen.
        """
        if self.is_ending and not grace:
            work.close()
            return None
        loop = asyncio.get_running_loop()
        preparing = loop.create_task(work, name=f"rxloop-preparation-{self._task_id}")
        timers: list[asyncio.TimerHandle] = []

        def cancel_later() -> None:
            # If the process is frozen, the first timer is late, and the work still has the time of the second one.
            timers.append(loop.call_later(grace / 2, preparing.cancel))

        def interrupt() -> None:
            if grace:
                timers.append(loop.call_later(grace / 2, cancel_later))
            else:
                preparing.cancel()

        self._on_end = interrupt
        if self.is_ending:
            interrupt()
        try:
            return await preparing
        except asyncio.CancelledError as error:
            if is_cancelled(error):
                self.finish(self.closing_end)
            elif not self.is_ending:
                raise RxloopError("a task awaited during run startup was cancelled") from None
            return None
        finally:
            self._on_end = None
            for timer in timers:
                timer.cancel()
