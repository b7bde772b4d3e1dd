"""Task ownership and time limits of runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from typing import Any, Protocol, Self, TypeVar

from rxloop.errors import RxloopError
from rxloop.stream.back_pressure import Gate
from rxloop.support.tasks import CLOCK, SystemClock

T = TypeVar("T")

log = logging.getLogger("rxloop")

_MARKS: ContextVar[tuple[object, ...]] = ContextVar("rxloop_around", default=())
"""Marks of enclosing scopes. Nested runs have multiple marks."""

_TIME_SCOPE: ContextVar[TimeScope | None] = ContextVar("rxloop_time_scope", default=None)
"""Innermost time scope of the current task."""


class Scope:
    """Owns a run's tasks, context variables and gate."""

    __slots__ = (
        "__weakref__",
        "_context",
        "_mark",
        "_tasks",
        "_waiting",
        "gate",
        "on_failure",
        "on_idle",
        "on_spawn",
        "timers",
    )

    def __init__(
        self, on_failure: Callable[[Exception], None] | None = None, time_scope: TimeScope | None = None
    ) -> None:
        """Create a scope.

        Args:
            on_failure: Called to end the run if an error cannot pass through the pipeline.
            time_scope: Time limits of the run. They also apply to nested runs.
        """
        self.gate = Gate()
        self.on_failure = on_failure or log_failure
        self.timers: dict[object, None] = {}
        """Pending timers of the pipeline. This is a dict, because an empty set needs three times the memory."""
        self.on_idle: Callable[[], None] | None = None
        """Called after the last task or timer ends."""
        self.on_spawn: Callable[[Any], object] | None = None
        """Called in the context of each new task that has an owner, with the owner."""
        self._tasks: dict[asyncio.Task[None], Callable[[], None] | None] = {}
        self._waiting: dict[asyncio.Task[Any], int] = {}
        self._context = copy_context()
        # Use a mark instead of the scope itself, because timers and connections may outlive the run.
        self._mark = object()
        self._context.run(_MARKS.set, (*_MARKS.get(), self._mark))
        if time_scope is not None:
            self._context.run(_TIME_SCOPE.set, time_scope)

    def spawn(
        self,
        work: Coroutine[Any, Any, None],
        name: str,
        stop: Callable[[], None] | None = None,
        owner: ScopeOwner | None = None,
    ) -> asyncio.Task[None]:
        """Start a task owned by the run.

        Args:
            work: Coroutine of the task.
            name: Name of the task.
            stop: Function that stops the task. By default, the task is cancelled.
            owner: Object that the task works for, such as the `RunContext` of a request.
        """
        context = self._context.copy()
        if self.on_spawn is not None and owner is not None:
            context.run(self.on_spawn, owner)
        task = asyncio.get_running_loop().create_task(work, name=name, context=context)
        self._tasks[task] = stop
        task.add_done_callback(self._remove)
        return task

    def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function in the run's context, so that tasks and timers created by it belong to the run."""
        return self._context.run(function, *arguments)

    def call_soon(self, function: Callable[..., object], *arguments: Any) -> None:
        """Schedule a function call using the run's context."""

        def call() -> None:
            try:
                function(*arguments)
            except Exception as error:
                self.on_failure(error)

        asyncio.get_running_loop().call_soon(call, context=self._context.copy())

    def _remove(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        # If there are more tasks than waiting tasks, one of them can make progress.
        if len(self._tasks) <= len(self._waiting):
            self.check_idle()

    def check_idle(self) -> None:
        """Call `on_idle` if no task or timer can make progress."""
        if self.on_idle is not None and not self.busy:
            self.on_idle()

    @property
    def busy(self) -> bool:
        """True if a task or timer can make progress."""
        return bool(self.timers) or not self._tasks.keys() <= self._waiting.keys()

    @contextmanager
    def mark_waiting(self, *tasks: asyncio.Task[Any] | None) -> Generator[None]:
        """Mark tasks waiting for the pipeline. They cannot make progress themselves."""
        for task in tasks:
            if task is not None:
                self._waiting[task] = self._waiting.get(task, 0) + 1
        self.check_idle()
        try:
            yield
        finally:
            for task in tasks:
                if task is not None:
                    self._waiting[task] -= 1
                    if not self._waiting[task]:
                        del self._waiting[task]

    def is_waiting(self, task: asyncio.Task[Any]) -> bool:
        """Return True if a task waits for the pipeline."""
        return task in self._waiting

    def owns(self, task: asyncio.Task[Any] | None) -> bool:
        """Return True if the run owns a task."""
        return task in self._tasks

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """Tasks of the run."""
        return list(self._tasks)

    def contains(self, context: Context | None = None) -> bool:
        """Return True if a context (by default, the caller's) was created by the run."""
        return self._mark in (_MARKS.get() if context is None else context.get(_MARKS, ()))

    def stop(self) -> None:
        """Stop remaining tasks if the pipeline could not be disposed."""
        for task, stop in tuple(self._tasks.items()):
            try:
                if stop is not None:
                    stop()
            except BaseException:
                log.exception("Stopping the task %s failed", task.get_name())

    async def join(self, grace: float) -> list[str]:
        """Wait until all tasks have ended, except for the calling task.

        Args:
            grace: Maximum time to wait, in seconds.

        Returns:
            Sorted names of the tasks that are still running.
        """
        others = self._tasks.keys() - {asyncio.current_task()}
        if not others:
            return []
        _, pending = await asyncio.wait(others, timeout=grace)
        return sorted(task.get_name() for task in pending)

    def close(self) -> None:
        """Drop references to a finished run. They form a cycle, which only the garbage collector could free."""
        self.on_failure = log_failure
        self.on_idle = self.on_spawn = None


class ScopeOwner(Protocol):
    """Object owned by a run."""

    def owner_scope(self) -> Scope | None:
        """Return the run's scope, if any."""
        ...


class TimeScope:
    """Time limits of a run or tool call.

    Pausing a scope also pauses its outer scopes, for example if a nested run asks a question. A scope continues when
    all questions inside it are answered.
    """

    __slots__ = ("_limits", "_loop", "_outer", "_pauses")

    def __init__(self, outer: TimeScope | None = None) -> None:
        """Create a scope.

        Args:
            outer: Enclosing scope.
        """
        self._outer = outer
        self._pauses = 0
        self._limits: dict[TimeLimit, None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    @staticmethod
    def current() -> TimeScope | None:
        """Return the innermost scope of the current task."""
        return _TIME_SCOPE.get()

    @contextmanager
    def enter(self) -> Generator[None]:
        """Make this the innermost scope of the current task."""
        token = _TIME_SCOPE.set(self)
        try:
            yield
        finally:
            _TIME_SCOPE.reset(token)

    @contextmanager
    def pause(self, *, outer: bool = True) -> Generator[None]:
        """Pause the limits of this scope. Outer scopes are also paused if `outer` is set."""
        scopes = list(self._chain()) if outer else [self]
        for scope in scopes:
            scope._call(scope._pause_limits)
        try:
            yield
        finally:
            for scope in scopes:
                scope._call(scope._resume_limits)

    def start_limit(self, seconds: float, on_expired: Callable[[], object]) -> TimeLimit:
        """Start a time limit.

        Args:
            seconds: Duration of the limit. Pauses are not counted.
            on_expired: Called in the event loop when the limit is exceeded.
        """
        self._loop = asyncio.get_running_loop()
        limit = TimeLimit(seconds, on_expired, self._limits)
        self._limits[limit] = None
        if not self._pauses:
            limit.start()
        return limit

    def _pause_limits(self) -> None:
        self._pauses += 1
        if self._pauses == 1:
            for limit in self._limits:
                limit.stop()

    def _resume_limits(self) -> None:
        self._pauses -= 1
        if not self._pauses:
            for limit in self._limits:
                limit.start()

    def _call(self, function: Callable[[], None]) -> None:
        """Call a function using the limits' event loop. A sync tool might use a run in another thread and loop."""
        if self._loop is None or self._loop is asyncio.get_running_loop():
            function()
            return
        # The outer loop may already be closed.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function)

    def _chain(self) -> Generator[TimeScope]:
        scope: TimeScope | None = self
        while scope is not None:
            yield scope
            scope = scope._outer


class TimeLimit:
    """Running time limit. As a context manager, it is canceled on exit."""

    __slots__ = ("_limits", "_on_expired", "_remaining", "_started", "_timer")

    def __init__(self, seconds: float, on_expired: Callable[[], object], limits: dict[TimeLimit, None]) -> None:
        self._remaining = seconds
        self._on_expired = on_expired
        self._limits = limits
        self._started = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start or continue the countdown."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._started = loop.time()
            # The watchdog of the run must ignore this timer.
            self._timer = call_outside(loop.call_later, max(0.0, self._remaining), self._expire)

    def stop(self) -> None:
        """Pause the countdown."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._remaining -= asyncio.get_running_loop().time() - self._started

    def cancel(self) -> None:
        """Cancel the countdown."""
        self._limits.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._limits.pop(self, None)
        self._timer = None
        self._on_expired()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.cancel()


def call_outside(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function outside of all runs, so that new tasks and timers are not associated with a run."""
    token = _MARKS.set(())
    try:
        return function(*arguments)
    finally:
        _MARKS.reset(token)


def log_failure(error: Exception) -> None:
    """Log an unhandled error."""
    log.error("A task outside of all runs failed", exc_info=error)


def get_running_loop(user: str, remedy: str = "use it in async code") -> asyncio.AbstractEventLoop:
    """Return the event loop of this thread.

    Args:
        user: Description of the caller, used in errors.
        remedy: What to do in a program without a running event loop, used in errors.

    Raises:
        RxloopError: No event loop is running in this thread.
    """
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        remedy = _VIRTUAL_TIME if not isinstance(CLOCK.get(), SystemClock) else f"{remedy}. {_THREADS}"
        raise RxloopError(f"{user} needs a running event loop of asyncio (trio is not supported); {remedy}") from None


_VIRTUAL_TIME = "inside virtual_time() as time, subscribe in a function that is passed to time.at(0, ...)"
_THREADS = (
    "In a thread without a loop, such as that of a GUI or of a pool, subscribe in the thread of the loop: "
    "stream.pipe(reactivex.operators.subscribe_on(AsyncIOThreadSafeScheduler(loop)))"
)
