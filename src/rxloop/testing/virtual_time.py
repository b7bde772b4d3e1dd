"""Virtual time for running agents and tools without real delays.

    with virtual_time() as time:
        result = time.run(Agent(model, tools=[slow_weather]).run("Weather?"))
        assert time.now == 0.65

Threads, files and sockets are real. The virtual clock is paused while waiting for them.
"""

from __future__ import annotations

import asyncio
import heapq
import inspect
import math
import selectors
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from contextvars import Context, copy_context
from typing import Any, TypeVar

import anyio.to_thread
from anyio import CapacityLimiter
from typing_extensions import override

from rxloop.errors import ConfigurationError, RxloopError
from rxloop.run.log_writer import LOG_TASK
from rxloop.support.tasks import CLOCK, has_running_loop
from rxloop.support.threads import THREAD_NAME

SECOND = 1_000_000_000
"""Nanoseconds per second. Integer times avoid rounding errors: 0.5 s plus 0.15 s is exactly 0.65 s."""

_SHORT_WAIT = 0.02

_POOLS = ("asyncio_", "AnyIO worker thread", THREAD_NAME)

_Poll = Callable[[float | None], list[Any]]


class NothingLeft(RxloopError):
    """Deadlock in virtual time. No timer, thread or socket can wake up a waiting task."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """Event loop with a virtual clock. When idle, the clock jumps to the next timer.

    Args:
        real_timeout: Timeout in real seconds for threads and sockets before the clock advances.
    """

    def __init__(self, real_timeout: float) -> None:
        self.now = 0
        """Nanoseconds since the start."""
        self.horizon: int | None = None
        """Upper bound for the clock during `advance`."""
        self.limiter: CapacityLimiter | None = None
        """Limiter for counting anyio's worker threads."""
        self._timers: list[tuple[int, int, asyncio.TimerHandle, Callable[[], None], Context]] = []
        self._timer_count = 0
        self._jobs = 0
        self._real_timeout = real_timeout
        self._deadline: float | None = None
        self._older_threads = frozenset(threading.enumerate())
        self._poll = _Selector(self._wait)
        super().__init__(self._poll)
        self._poll.own = len(self._poll.get_map())

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self.now / SECOND

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Schedule a callback. Callbacks with equal times are called in insertion order."""
        # asyncio's heap does not preserve the order of timers with equal times. These are rare with real clocks but
        # common with virtual time.
        if self.is_closed():
            raise RuntimeError("Event loop is closed")
        context = context or copy_context()
        if math.isinf(when):
            return asyncio.TimerHandle(when, callback, args, self, context)
        due = max(round(when * SECOND), self.now)
        # Rounded, so that a timer which has fired is not later than the clock.
        timer = asyncio.TimerHandle(due / SECOND, callback, args, self, context)

        def fire() -> None:
            if not timer.cancelled():
                callback(*args)

        self._timer_count += 1
        heapq.heappush(self._timers, (due, self._timer_count, timer, fire, context))
        return timer

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Run a function in a thread. The clock is paused until the function returns."""
        job = super().run_in_executor(executor, func, *args)
        self._jobs += 1
        job.add_done_callback(self._job_done)
        return job

    def _job_done(self, _: asyncio.Future[Any]) -> None:
        self._jobs -= 1

    def _wait(self, poll: _Poll, timeout: float | None) -> list[Any]:
        """Replace the selector's `select`. asyncio calls it when idle and between iterations."""
        ready = poll(0)
        if timeout is None and not ready:
            ready = self._wait_in_real_time(poll)
            if not ready:
                self._jump()
        if ready:
            self._deadline = None
        self._fire_due()
        return ready

    def _wait_in_real_time(self, poll: _Poll) -> list[Any]:
        """Wait in real time for threads and sockets."""
        has_jobs = self._has_jobs()
        if not has_jobs:
            if not self._has_external_sources():
                return []
            has_jobs = self._is_writing_log()
        if self._next_timer() is None and self.horizon is None:
            return poll(self._real_timeout)
        if not has_jobs:
            return poll(_SHORT_WAIT)
        # Share the deadline between calls, so that a blocked thread does not delay each timer by the full timeout.
        if self._deadline is None:
            self._deadline = time.monotonic() + self._real_timeout
        return poll(max(_SHORT_WAIT, self._deadline - time.monotonic()))

    def _has_jobs(self) -> bool:
        """Return True if a thread pool is running jobs for this loop."""
        return self._jobs > 0 or (self.limiter is not None and self.limiter.borrowed_tokens > 0)

    def _is_writing_log(self) -> bool:
        """Return True if a run is waiting for its log. There is no timeout for log writes."""
        return any(task.get_name().startswith(LOG_TASK) for task in asyncio.all_tasks(self))

    def _has_external_sources(self) -> bool:
        """Return True if a socket or a foreign thread can wake up the loop."""
        if self._poll.sockets:
            return True
        return any(
            not thread.name.startswith(_POOLS) for thread in threading.enumerate() if thread not in self._older_threads
        )

    def _next_timer(self) -> int | None:
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def _jump(self) -> None:
        due = self._next_timer()
        if self.horizon is not None and (due is None or due > self.horizon):
            self.now = self.horizon
            self.stop()
        elif due is None:
            raise NothingLeft(
                f"no timer, thread or socket can wake up a task at t={self.time():g} s; waiting: {self.list_tasks()}"
            )
        else:
            self.now = due

    def _fire_due(self) -> None:
        while (due := self._next_timer()) is not None and due <= self.now:
            _, _, _, fire, context = heapq.heappop(self._timers)
            self.call_soon(fire, context=context)

    def list_tasks(self) -> str:
        """Return the names of all unfinished tasks."""
        return ", ".join(sorted(task.get_name() for task in asyncio.all_tasks(self))) or "no task"


class _Selector(selectors.DefaultSelector):
    """Platform selector that delegates waiting to the loop."""

    def __init__(self, wait: Callable[[_Poll, float | None], list[Any]]) -> None:
        super().__init__()
        self._wait = wait
        self.own = 0
        """Number of sockets used internally by the loop."""

    @property
    def sockets(self) -> bool:
        """True if any other sockets are registered."""
        return len(self.get_map()) > self.own

    @override
    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return self._wait(super().select, timeout)


T = TypeVar("T")

EPOCH = 1_767_225_600_000
"""Start of virtual time, in milliseconds since 1970 (2026-01-01)."""

_active: list[VirtualTime] = []


class VirtualTime:
    """Controller for an event loop with a virtual clock. Use `virtual_time` to create instances."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._failure: BaseException | None = None

    @property
    def now(self) -> float:
        """Virtual time in seconds."""
        return self._loop.time()

    def at(self, seconds: float, callback: Callable[[], object]) -> None:
        """Schedule a callback.

        Args:
            seconds: Time since the start.
            callback: Function to call inside the event loop. Returned awaitables are wrapped in a task. Exceptions are
                raised by `run` or `advance`.
        """
        if round(seconds * SECOND) < self._loop.now:
            raise ConfigurationError(f"at() must not be in the past, got {seconds:g} s at t={self.now:g} s")
        self._loop.call_at(seconds, self._guard, callback)

    def _guard(self, callback: Callable[[], object]) -> None:
        try:
            answer = callback()
        except BaseException as error:
            self._stop(error)
        else:
            if inspect.isawaitable(answer):
                task = asyncio.ensure_future(answer)
                task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Future[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._stop(error)

    def _stop(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._loop.stop()

    def run(self, awaitable: Awaitable[T], timeout: float | None = None) -> T:
        """Run the event loop until an awaitable is done.

        Args:
            awaitable: Run, coroutine or other awaitable.
            timeout: Virtual seconds after which `TimeoutError` is raised.

        Returns:
            Result of the awaitable. Exceptions are propagated.

        Raises:
            RxloopError: The awaitable can never finish.
        """

        async def wait() -> T:
            async with asyncio.timeout(timeout):
                return await awaitable

        name = getattr(awaitable, "__qualname__", type(awaitable).__qualname__)
        task = self._loop.create_task(wait(), name=name)
        try:
            answer = self._loop.run_until_complete(task)
        except BaseException:
            task.cancel()
            self._raise_failure()
            raise
        self._raise_failure()
        return answer

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def advance(self, seconds: float) -> None:
        """Advance the clock and run all callbacks that are due."""
        if seconds < 0:
            raise ConfigurationError(f"seconds must not be negative, got {seconds:g}")
        self._loop.horizon = self._loop.now + round(seconds * SECOND)
        try:
            self._loop.run_forever()
        finally:
            self._loop.horizon = None
        self._raise_failure()


class _VirtualClock:
    """`Clock` implementation for virtual time."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def now(self) -> int:
        return EPOCH + self._loop.now * 1000 // SECOND

    def monotonic(self) -> float:
        return self._loop.time()


def current_time() -> VirtualTime:
    """Return the active virtual time.

    Raises:
        RxloopError: `virtual_time()` is not active.
    """
    if not _active:
        raise RxloopError("virtual time is not active; use `with virtual_time():`")
    return _active[-1]


@contextmanager
def virtual_time(*, real_timeout: float = 5.0) -> Generator[VirtualTime]:
    """Run the block with an event loop whose clock jumps to the next timer when idle.

    The block creates a new event loop, so use it in sync tests. The clock is paused while a thread is working for the
    loop. Remaining tasks are cancelled on exit.

    Args:
        real_timeout: Timeout in real seconds for threads and sockets before the clock advances.

    Example:
        >>> with virtual_time() as time:
        ...     time.run(asyncio.sleep(60))
        ...     assert time.now == 60
    """
    if _active:
        raise RxloopError("virtual_time() must not be nested")
    if has_running_loop():
        raise RxloopError("virtual_time() creates an event loop; use it in a plain `def`, not in `async def`")
    loop = VirtualLoop(real_timeout)
    time = VirtualTime(loop)
    token = CLOCK.set(_VirtualClock(loop))
    _active.append(time)
    try:
        loop.limiter = loop.run_until_complete(_get_limiter())
        yield time
    finally:
        _active.pop()
        CLOCK.reset(token)
        try:
            _cancel_all(loop)
        finally:
            loop.close()


async def _get_limiter() -> CapacityLimiter:
    return anyio.to_thread.current_default_thread_limiter()


def _cancel_all(loop: VirtualLoop) -> None:
    """Cancel all remaining tasks, including tasks started during cleanup."""
    while tasks := asyncio.all_tasks(loop):
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.wait(tasks))
        for task in tasks:
            if not task.cancelled() and (error := task.exception()) is not None:
                loop.call_exception_handler({"message": f"{task.get_name()} failed", "exception": error, "task": task})
    loop.run_until_complete(loop.shutdown_asyncgens())
