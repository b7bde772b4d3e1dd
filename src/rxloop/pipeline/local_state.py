"""Process-local state for log objects, including default leases and commands."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from rxloop.protocol.commands import Command

T = TypeVar("T")


class LocalState:
    """Process-local state for a log object, with at most one instance per class.

    The state is deleted together with the log object. A forked process starts with empty state.
    """

    def __init__(self) -> None:
        self._parts: dict[type, Any] = {}
        self._lock = Lock()
        self._process = os.getpid()

    def get(self, kind: type[T]) -> T:
        """Return the instance of a class, creating it if necessary. This method is thread-safe.

        Args:
            kind: Class that can be instantiated without arguments.
        """
        if self._process != os.getpid():
            # The parent may have held the lock while forking, and its leases and runs do not belong to the child.
            self.__init__()
        part = self._parts.get(kind)
        if part is None:
            with self._lock:
                part = self._parts.setdefault(kind, kind())
        return cast("T", part)


class LeaseTable:
    """Conversation leases within a process."""

    def __init__(self) -> None:
        self._leases: dict[str, tuple[str, asyncio.AbstractEventLoop]] = {}

    def acquire(self, conversation: str, task_id: str) -> bool:
        """Acquire a conversation lease for a run.

        Returns:
            False if another run holds the lease. Leases of closed event loops can be acquired.
        """
        if conversation in self._leases and not self._leases[conversation][1].is_closed():
            return False
        self._leases[conversation] = task_id, asyncio.get_running_loop()
        return True

    def has(self, conversation: str, task_id: str) -> bool:
        """Return True if a run holds the conversation lease."""
        run, loop = self._leases.get(conversation, (None, None))
        return run == task_id and loop is not None and not loop.is_closed()

    def release(self, conversation: str, task_id: str) -> None:
        """Release a conversation lease if the run holds it."""
        if self.has(conversation, task_id):
            del self._leases[conversation]


class LocalInbox:
    """In-memory inboxes for commands."""

    def __init__(self) -> None:
        self._commands: dict[str, list[tuple[int, Command]]] = {}
        self._watchers: dict[str, set[_Watcher]] = {}
        self._last = 0

    def send(self, task_id: str, command: Command) -> int:
        """Store a command, notify its watchers and return the command number."""
        self._last += 1
        self._commands.setdefault(task_id, []).append((self._last, command))
        for watcher in self._watchers.get(task_id, ()):
            watcher.notify()
        return self._last

    def read(self, task_id: str, after: int = 0) -> Sequence[tuple[int, Command]]:
        """Return commands with numbers above `after`, in order."""
        return [(number, command) for number, command in self._commands.get(task_id, ()) if number > after]

    def watch(self, task_id: str, notify: Callable[[], None]) -> Callable[[], None]:
        """Call `notify` in the current event loop for each new command, returning a function to stop."""
        watcher = _Watcher(notify)
        self._watchers.setdefault(task_id, set()).add(watcher)

        def stop() -> None:
            watchers = self._watchers.get(task_id, set())
            watchers.discard(watcher)
            if not watchers:
                self._watchers.pop(task_id, None)

        return stop

    def remove(self, task_id: str) -> None:
        """Delete all commands for a run."""
        self._commands.pop(task_id, None)


class _Watcher:
    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify = notify
        self._loop = asyncio.get_running_loop()

    def notify(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon(self._notify)


class FirstSeen:
    """Monotonic times in seconds at which submitted runs were first seen."""

    def __init__(self) -> None:
        self._times: dict[str, float] = {}

    def update(self, task_ids: Sequence[str], now: float) -> dict[str, float]:
        """Return the time for each run, using `now` for new runs and dropping missing runs."""
        self._times = {task_id: self._times.get(task_id, now) for task_id in task_ids}
        return self._times
