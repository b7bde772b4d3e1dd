"""The owner of a run's tasks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator, Iterable
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

T = TypeVar("T")
log = logging.getLogger("rxloop")

GRACE = 5.0
"""Seconds that what is cancelled has to stop in."""


class Gate:
    """Holds the sockets of a run back while a reader with overflow="block" is behind.

    Leaves look at `closed` after each batch that they have pushed, and wait only then, so that an open gate costs an
    attribute read.
    """

    def __init__(self) -> None:
        self.closed = False
        self._holders = 0
        self._opened: asyncio.Event | None = None

    def close(self) -> None:
        """Hold the leaves back; one `open` is needed for each `close`."""
        self._holders += 1
        self.closed = True

    def open(self) -> None:
        """Undo one `close`."""
        self._holders -= 1
        if not self._holders:
            self.closed = False
            if self._opened is not None:
                self._opened.set()
                self._opened = None

    async def wait(self) -> None:
        """Wait until the gate is open."""
        while self.closed:
            if self._opened is None:
                self._opened = asyncio.Event()
            await self._opened.wait()


class Gates(Gate):
    """The gates of several runs as one, for a reader of all of them."""

    def __init__(self, gates: Iterable[Gate] = ()) -> None:
        super().__init__()
        self._gates = list(gates)

    def close(self) -> None:
        """Hold all of them back, and those that come."""
        if not self.closed:
            for gate in self._gates:
                gate.close()
        super().close()

    def open(self) -> None:
        """Undo one `close`."""
        super().open()
        if not self.closed:
            for gate in self._gates:
                gate.open()

    def add(self, gate: Gate) -> None:
        """Hold the run of this gate back with the others."""
        self._gates.append(gate)
        if self.closed:
            gate.close()

    def remove(self, gate: Gate) -> None:
        """Let go of the run of this gate."""
        self._gates.remove(gate)
        if self.closed:
            gate.open()


_AROUND: ContextVar[tuple[object, ...]] = ContextVar("rxloop_around", default=())
"""The marks of the scopes that the running task belongs to, or was made in: more than one for a run inside a run."""


class Scope:
    """Owns the leaves of one run: their tasks, the context variables they see, and the gate that holds them back."""

    __slots__ = ("__weakref__", "_context", "_mark", "_tasks", "_waiting", "failed", "gate", "idle", "timers")

    def __init__(self, failed: Callable[[Exception], None] | None = None) -> None:
        """Make a scope.

        Args:
            failed: Ends the run with an error that cannot go through the pipeline, because the pipeline is broken.
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
