"""State that one process keeps with a log object: leases and commands of a log that stores neither."""

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
    """State that one process keeps with a log object: one instance of each class that is asked for.

    It belongs to the log object, so it is gone when the log is, and a forked child begins with an empty one.
    """

    def __init__(self) -> None:
        self._parts: dict[type, Any] = {}
        self._lock = Lock()
        self._process = os.getpid()

    def get(self, kind: type[T]) -> T:
        """Return the instance of a class, which is created without arguments at the first call. Thread-safe.

        Args:
            kind: The class.
        """
        if self._process != os.getpid():
            # The parent may have held the lock while it forked, and its leases and runs are not those of the child.
            self.__init__()
        part = self._parts.get(kind)
        if part is None:
            with self._lock:
                part = self._parts.setdefault(kind, kind())
        return cast("T", part)


class LeaseTable:
    """Leases of conversations, valid in one process."""

    def __init__(self) -> None:
        self._leases: dict[str, tuple[str, asyncio.AbstractEventLoop]] = {}

    def acquire(self, context_id: str, task_id: str) -> bool:
        """Acquire the lease of a conversation for a run.

        Returns:
            False if a run holds it. The lease of an event loop that is closed is free.
        """
        if context_id in self._leases and not self._leases[context_id][1].is_closed():
            return False
        self._leases[context_id] = task_id, asyncio.get_running_loop()
        return True

    def has(self, context_id: str, task_id: str) -> bool:
        """Return True if a run holds the lease of its conversation."""
        run, loop = self._leases.get(context_id, (None, None))
        return run == task_id and loop is not None and not loop.is_closed()

    def release(self, context_id: str, task_id: str) -> None:
        """Release the lease of a conversation if a run holds it."""
        if self.has(context_id, task_id):
            del self._leases[context_id]


class LocalInbox:
    """Commands sent to runs, kept as long as the process runs."""

    def __init__(self) -> None:
        self._commands: dict[str, list[tuple[int, Command]]] = {}
        self._watchers: dict[str, set[_Watcher]] = {}
        self._last = 0

    def send(self, task_id: str, command: Command) -> int:
        """Keep a command, notify the watchers of its run, and return the number of the command."""
        self._last += 1
        self._commands.setdefault(task_id, []).append((self._last, command))
        for watcher in self._watchers.get(task_id, ()):
            watcher.notify()
        return self._last

    def read(self, task_id: str, after: int = 0) -> Sequence[tuple[int, Command]]:
        """Return the commands of a run with numbers above `after`, in order."""
        return [(number, command) for number, command in self._commands.get(task_id, ()) if number > after]

    def watch(self, task_id: str, notify: Callable[[], None]) -> Callable[[], None]:
        """Call `notify` in the event loop of the caller for each command to a run; return what stops it."""
        watcher = _Watcher(notify)
        self._watchers.setdefault(task_id, set()).add(watcher)

        def stop() -> None:
            watchers = self._watchers.get(task_id, set())
            watchers.discard(watcher)
            if not watchers:
                self._watchers.pop(task_id, None)

        return stop

    def remove(self, task_id: str) -> None:
        """Remove the commands of a run."""
        self._commands.pop(task_id, None)


class _Watcher:
    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify = notify
        self._loop = asyncio.get_running_loop()

    def notify(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon(self._notify)


class FirstSeen:
    """Times at which a log object first saw runs in the state `submitted`, in seconds of its monotonic clock."""

    def __init__(self) -> None:
        self._times: dict[str, float] = {}

    def update(self, task_ids: Sequence[str], now: float) -> dict[str, float]:
        """Return the time of each submitted run, which is `now` for a new one; forget runs that are not listed."""
        self._times = {task_id: self._times.get(task_id, now) for task_id in task_ids}
        return self._times
