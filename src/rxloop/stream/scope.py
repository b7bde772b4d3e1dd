"""The owner of a run's tasks, and its time limits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from typing import Any, Protocol, Self, TypeVar

from rxloop.stream.back_pressure import Gate

T = TypeVar("T")

log = logging.getLogger("rxloop")

_AROUND: ContextVar[tuple[object, ...]] = ContextVar("rxloop_around", default=())
"""The marks of the scopes that the running task belongs to, or was made in: more than one for a run inside a run."""

_TIME_SCOPE: ContextVar[TimeScope | None] = ContextVar("rxloop_time_scope", default=None)
"""The innermost time limits of the running task."""


class Scope:
    """Owns the leaves of one run: their tasks, the context variables they see, and the gate that holds them back."""

    __slots__ = ("__weakref__", "_context", "_mark", "_tasks", "_waiting", "failed", "gate", "idle", "timers")

    def __init__(self, failed: Callable[[Exception], None] | None = None, time_scope: TimeScope | None = None) -> None:
        """Make a scope.

        Args:
            failed: Ends the run with an error that cannot go through the pipeline, because the pipeline is broken.
            time_scope: The time limits of the run. Runs that its tools make are inside this scope.
        """
        self.gate = Gate()
        self.failed = failed or report
        self.timers: dict[object, None] = {}
        """The timers of the pipeline that are not due yet. No set: an empty one takes three times the memory."""
        self.idle: Callable[[], None] | None = None
        """Called when the last task or timer is over."""
        self._tasks: dict[asyncio.Task[None], Callable[[], None] | None] = {}
        self._waiting: dict[asyncio.Task[Any], int] = {}
        self._context = copy_context()
        # A mark and not the scope: a context lives on in what others made in it, such as a timer or a connection.
        self._mark = object()
        self._context.run(_AROUND.set, (*_AROUND.get(), self._mark))
        if time_scope is not None:
            self._context.run(_TIME_SCOPE.set, time_scope)

    def spawn(
        self, work: Coroutine[Any, Any, None], name: str, stop: Callable[[], None] | None = None
    ) -> asyncio.Task[None]:
        """Start a task that belongs to the run; `stop` is how it is told to end."""
        task = asyncio.get_running_loop().create_task(work, name=name, context=self._context.copy())
        self._tasks[task] = stop
        task.add_done_callback(self._ended)
        return task

    def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function with the context variables of the run, by which what it starts is known as the run's."""
        return self._context.run(function, *arguments)

    def soon(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function in the next round of the event loop, with the context variables of the run."""

        def call() -> None:
            try:
                function(*arguments)
            except Exception as error:
                self.failed(error)

        asyncio.get_running_loop().call_soon(call, context=self._context.copy())

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        # While there are more tasks than wait, one of them may bring the pipeline on.
        if len(self._tasks) <= len(self._waiting):
            self.settle()

    def settle(self) -> None:
        """Tell, if the last task or timer is over."""
        if self.idle is not None and not self.busy:
            self.idle()

    @property
    def busy(self) -> bool:
        """Whether a task or a timer is there that may bring the pipeline on."""
        return bool(self.timers) or not self._tasks.keys() <= self._waiting.keys()

    @contextmanager
    def waiting(self, *tasks: asyncio.Task[Any] | None) -> Generator[None]:
        """Say that these tasks wait for the pipeline, and so cannot bring it on themselves."""
        for task in tasks:
            if task is not None:
                self._waiting[task] = self._waiting.get(task, 0) + 1
        self.settle()
        try:
            yield
        finally:
            for task in tasks:
                if task is not None:
                    self._waiting[task] -= 1
                    if not self._waiting[task]:
                        del self._waiting[task]

    def waits(self, task: asyncio.Task[Any]) -> bool:
        """Tell whether a task waits for the pipeline."""
        return task in self._waiting

    def owns(self, task: asyncio.Task[Any] | None) -> bool:
        """Tell whether a task is one of the run's."""
        return task in self._tasks

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """The tasks of the run."""
        return list(self._tasks)

    def surrounds(self, context: Context | None = None) -> bool:
        """Tell whether a context, by default the caller's, is that of one of the run's tasks, or made in one."""
        return self._mark in (_AROUND.get() if context is None else context.get(_AROUND, ()))

    def stop(self) -> None:
        """Stop the tasks that a pipeline which could not be disposed has left."""
        for task, stop in tuple(self._tasks.items()):
            try:
                if stop is not None:
                    stop()
            except BaseException:
                log.exception("the task %s could not be stopped", task.get_name())

    async def join(self, grace: float) -> list[str]:
        """Wait until the tasks have ended.

        Args:
            grace: The seconds to wait at most.

        Returns:
            The names of the tasks that have not ended by then. A task that calls this does not wait for itself.
        """
        others = self._tasks.keys() - {asyncio.current_task()}
        if not others:
            return []
        _, pending = await asyncio.wait(others, timeout=grace)
        return sorted(task.get_name() for task in pending)

    def close(self) -> None:
        """Forget the run, which is over: with it, a circle that only the garbage collector could undo."""
        self.failed = report
        self.idle = None


class ScopeOwner(Protocol):
    """Something that belongs to a run, such as a `RunContext`."""

    def owner_scope(self) -> Scope | None:
        """Return the scope of the run, or None outside a run."""
        ...


class TimeScope:
    """The time limits of a run or of a tool call.

    A scope inside another one, such as the scope of a nested run, pauses the outer scopes together with itself.
    A scope continues when every question inside it is answered.
    """

    __slots__ = ("_limits", "_loop", "_outer", "_pauses")

    def __init__(self, outer: TimeScope | None = None) -> None:
        """Create a scope.

        Args:
            outer: The scope around it.
        """
        self._outer = outer
        self._pauses = 0
        self._limits: dict[TimeLimit, None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    @staticmethod
    def current() -> TimeScope | None:
        """Return the innermost scope of the running task."""
        return _TIME_SCOPE.get()

    @contextmanager
    def entered(self) -> Generator[None]:
        """Make this the innermost scope of the running task."""
        token = _TIME_SCOPE.set(self)
        try:
            yield
        finally:
            _TIME_SCOPE.reset(token)

    @contextmanager
    def pause(self, *, outer: bool = True) -> Generator[None]:
        """Stop the limits of this scope, and of all outer scopes unless `outer` is False."""
        scopes = list(self._path()) if outer else [self]
        for scope in scopes:
            scope._call(scope._stop)
        try:
            yield
        finally:
            for scope in scopes:
                scope._call(scope._continue)

    def limit(self, seconds: float, expire: Callable[[], object]) -> TimeLimit:
        """Start a time limit, and call `expire` when it is exceeded.

        Args:
            seconds: The limit. Pauses do not count.
            expire: Called in the event loop.
        """
        self._loop = asyncio.get_running_loop()
        limit = TimeLimit(seconds, expire, self._limits)
        self._limits[limit] = None
        if not self._pauses:
            limit.start()
        return limit

    def _stop(self) -> None:
        self._pauses += 1
        if self._pauses == 1:
            for limit in self._limits:
                limit.stop()

    def _continue(self) -> None:
        self._pauses -= 1
        if not self._pauses:
            for limit in self._limits:
                limit.start()

    def _call(self, function: Callable[[], None]) -> None:
        """Call a function in the event loop of the limits: a plain tool in a thread may have a run in another loop."""
        if self._loop is None or self._loop is asyncio.get_running_loop():
            function()
            return
        # The run around the tool may be over.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function)

    def _path(self) -> Generator[TimeScope]:
        scope: TimeScope | None = self
        while scope is not None:
            yield scope
            scope = scope._outer


class TimeLimit:
    """A running time limit; a context manager that cancels it at the end."""

    __slots__ = ("_expire", "_limits", "_remaining", "_started", "_timer")

    def __init__(self, seconds: float, expire: Callable[[], object], limits: dict[TimeLimit, None]) -> None:
        self._remaining = seconds
        self._expire = expire
        self._limits = limits
        self._started = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Continue the countdown."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._started = loop.time()
            # The watchdog of the run must not wait for this timer.
            self._timer = outside(loop.call_later, max(0.0, self._remaining), self._fire)

    def stop(self) -> None:
        """Pause the countdown."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._remaining -= asyncio.get_running_loop().time() - self._started

    def cancel(self) -> None:
        """End the countdown."""
        self._limits.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._limits.pop(self, None)
        self._timer = None
        self._expire()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.cancel()


def outside(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function outside of all runs: what it starts is known as nobody's."""
    token = _AROUND.set(())
    try:
        return function(*arguments)
    finally:
        _AROUND.reset(token)


def report(error: Exception) -> None:
    """Log a failure for which there is no run."""
    log.error("a task failed, and nobody could be told", exc_info=error)
