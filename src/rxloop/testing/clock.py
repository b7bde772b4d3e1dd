"""Virtual time: a whole run, its tools included, in no real time.

    with virtual_time() as time:
        result = time.run(Agent(model, tools=[slow_weather]).run("Weather?"))
        assert time.now == 0.65

Only time is virtual: threads, files and sockets are real, and time stands still while they work.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

import anyio.to_thread
from anyio import CapacityLimiter

from rxloop.errors import ConfigurationError, RxloopError
from rxloop.stream.clock import CLOCK
from rxloop.testing.virtual_loop import SECOND, VirtualLoop

T = TypeVar("T")
EPOCH = 1_767_225_600_000
"""The first instant of virtual time, in milliseconds since 1970: 2026-01-01."""

_around: list[VirtualTime] = []


class VirtualTime:
    """Drives an event loop whose clock jumps; `virtual_time` makes one."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._failure: BaseException | None = None

    @property
    def now(self) -> float:
        """Return the seconds since the start."""
        return self._loop.time()

    def at(self, seconds: float, callback: Callable[[], object]) -> None:
        """Call something at an instant.

        Args:
            seconds: The instant, counted from the start.
            callback: What to call, inside the loop. If it gives an awaitable, that becomes a task. What it raises comes
                out of `run` or `advance`.
        """
        if round(seconds * SECOND) < self._loop.now:
            raise ConfigurationError(f"at({seconds:g}) lies in the past: it is t={self.now:g} s")
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
        """Drive the loop until something is done.

        Args:
            awaitable: A run, a coroutine, or anything else that can be awaited.
            timeout: The virtual seconds after which a `TimeoutError` is raised.

        Returns:
            What awaiting it gives; what it raises is raised here.

        Raises:
            RxloopError: Nothing is left that could ever happen, and it is not done.
        """

        async def waits() -> T:
            async with asyncio.timeout(timeout):
                return await awaitable

        name = getattr(awaitable, "__qualname__", type(awaitable).__qualname__)
        task = self._loop.create_task(waits(), name=name)
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
        """Run everything that is due within the next seconds; afterwards it is that much later."""
        if seconds < 0:
            raise ConfigurationError(f"time does not run backwards: advance({seconds:g})")
        self._loop.horizon = self._loop.now + round(seconds * SECOND)
        try:
            self._loop.run_forever()
        finally:
            self._loop.horizon = None
        self._raise_failure()


class _VirtualClock:
    """The run's `Clock` in virtual time."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def now(self) -> int:
        return EPOCH + self._loop.now * 1000 // SECOND

    def monotonic(self) -> float:
        return self._loop.time()


def current_time() -> VirtualTime:
    """Return the virtual time around the caller.

    Raises:
        RxloopError: There is none.
    """
    if not _around:
        raise RxloopError("this needs virtual time around it: with virtual_time(): ...")
    return _around[-1]


@contextmanager
def virtual_time(*, patience: float = 5.0) -> Generator[VirtualTime]:
    """Run what is inside on an event loop whose clock jumps to its next timer when nothing is left to do.

    For plain `def test_...` functions: the block makes a loop of its own. Threads are real: time stands still while
    one works for the loop. What is left over at the end is cancelled.

    Args:
        patience: The real seconds to wait for a thread or a socket before time goes on without it.

    Example:
        >>> with virtual_time() as time:
        ...     time.run(asyncio.sleep(60))
        ...     assert time.now == 60
    """
    if _around:
        raise RxloopError("virtual_time() is open already: do not nest it")
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise RxloopError("virtual_time() makes an event loop of its own: use it in a plain `def`, not in `async def`")
    loop = VirtualLoop(patience)
    time = VirtualTime(loop)
    token = CLOCK.set(_VirtualClock(loop))
    _around.append(time)
    try:
        loop.limiter = loop.run_until_complete(_limiter())
        yield time
    finally:
        _around.pop()
        CLOCK.reset(token)
        try:
            _cancel_all(loop)
        finally:
            loop.close()


async def _limiter() -> CapacityLimiter:
    return anyio.to_thread.current_default_thread_limiter()


def _cancel_all(loop: VirtualLoop) -> None:
    """Cancel the tasks that are left, and those that their clean-up starts."""
    while tasks := asyncio.all_tasks(loop):
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.wait(tasks))
        for task in tasks:
            if not task.cancelled() and (error := task.exception()) is not None:
                loop.call_exception_handler({"message": f"{task.get_name()} failed", "exception": error, "task": task})
    loop.run_until_complete(loop.shutdown_asyncgens())
