"""The owner of a run's tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import ContextVar, copy_context
from typing import Any


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


_AROUND: ContextVar[tuple[object, ...]] = ContextVar("rxloop_around", default=())
"""The marks of the scopes that the running task belongs to, or was made in: more than one for a run inside a run."""


class Scope:
    """Owns the leaves of one run: their tasks, the context variables they see, and the gate that holds them back."""

    def __init__(self) -> None:
        self.gate = Gate()
        self._tasks: set[asyncio.Task[None]] = set()
        self._context = copy_context()
        # A mark and not the scope: a context lives on in what others made in it, such as a timer or a connection.
        self._mark = object()
        self._context.run(_AROUND.set, (*_AROUND.get(), self._mark))

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start a task that belongs to the run."""
        task = asyncio.get_running_loop().create_task(work, name=name, context=self._context.copy())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def owns(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether a task is one of the run's."""
        return task in self._tasks

    def surrounds(self) -> bool:
        """Whether the caller is one of the run's tasks, or was started by one."""
        return self._mark in _AROUND.get()

    async def join(self, grace: float) -> list[str]:
        """Wait until the tasks have ended.

        Args:
            grace: The seconds to wait at most.

        Returns:
            The names of the tasks that have not ended by then. A task that calls this does not wait for itself.
        """
        others = self._tasks - {asyncio.current_task()}
        if not others:
            return []
        _, pending = await asyncio.wait(others, timeout=grace)
        return sorted(task.get_name() for task in pending)
