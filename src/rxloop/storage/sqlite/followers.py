"""Notifications for followers and command watchers across processes."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import TypeVar

from rxloop.errors import EventLogError

STATUS_COLUMNS = "seq, idle, (SELECT max(sub) FROM events WHERE run = number AND events.seq = runs.seq)"

_RUNS_PER_QUERY = 500
"""Maximum number of runs per query."""

RunStatus = tuple[int, int, int]
"""Last `seq` of a run, idle flag and last transient `sub`."""

_DELETED_STATUS: RunStatus = (-1, 1, 0)


class Follower:
    """Run reader with notification state."""

    def __init__(self, deltas: bool) -> None:
        self._compared_fields = 3 if deltas else 2
        """Number of compared fields of a status."""
        self._changed = False
        self._read: RunStatus | None = None
        """Status after the last complete read, or None during a read."""
        self._polled: RunStatus | None = None
        """Latest status found by polling since the read began."""
        self._waiter: asyncio.Future[None] | None = None

    def start_read(self) -> None:
        """Reset the state before a read. Later changes count as new."""
        self._read = self._polled = None
        self._changed = False

    async def wait(self, status: RunStatus) -> None:
        """Wait for changes since the read began.

        Args:
            status: Run status returned by the read.
        """
        # The order matters. A concurrent poll either sees the new value or has set `_polled`.
        self._read = status
        if self._changed or self._differs(self._polled):
            return
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            # Check again, because a concurrent poll may have found a change.
            if not self._changed:
                await self._waiter
        finally:
            self._waiter = None

    def set_polled(self, status: RunStatus) -> None:
        """Store a polled status, and wake the follower if it differs. This method is thread-safe."""
        self._polled = status
        if self._differs(status):
            self.wake()

    def _differs(self, status: RunStatus | None) -> bool:
        read = self._read
        if read is None or status is None:
            return False
        return read[: self._compared_fields] != status[: self._compared_fields]

    def wake(self) -> None:
        """Wake the follower. This method is thread-safe."""
        self._changed = True
        waiter = self._waiter
        if waiter is not None:
            # The follower's event loop may be closed.
            with suppress(RuntimeError):
                waiter.get_loop().call_soon_threadsafe(_complete, waiter)


class _Watcher:
    """Command subscriber."""

    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify = notify
        self._loop = asyncio.get_running_loop()

    def wake(self) -> None:
        """Call the callback in its event loop. This method is thread-safe."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._notify)


W = TypeVar("W", Follower, _Watcher)


class Followers:
    """Followers and command watchers of a log object.

    Writes by this log object wake them immediately. Polling detects writes by other connections using SQLite's
    `data_version`. Only if this number changes, one query reads the followed runs and another reads new commands.
    """

    def __init__(self, check: Callable[[], None]) -> None:
        """Create the collection without followers or watchers.

        Args:
            check: Function that raises `EventLogError` if the file is missing. SQLite does not report this to readers.
        """
        self._check = check
        self._is_missing = False
        self._followers: dict[str, set[Follower]] = {}
        self._watchers: dict[str, set[_Watcher]] = {}
        self._lock = threading.Lock()
        self._version: int | None = None
        self._last_command: int | None = None
        """Last checked command number, or None before the first check."""
        self._pid = os.getpid()

    @contextmanager
    def follower(
        self, task_id: str, set_polling: Callable[[bool], None], *, deltas: bool = False
    ) -> Generator[Follower]:
        """Register a follower for the duration of the block. `set_polling` starts or stops polling as needed."""
        follower = Follower(deltas)
        self._add(self._followers, task_id, follower, set_polling)
        try:
            yield follower
        finally:
            self._remove(self._followers, task_id, follower, set_polling)

    def watch(
        self, task_id: str, notify: Callable[[], None], set_polling: Callable[[bool], None]
    ) -> Callable[[], None]:
        """Register a callback for new commands, returning a function to remove it."""
        watcher = _Watcher(notify)
        self._add(self._watchers, task_id, watcher, set_polling)
        return lambda: self._remove(self._watchers, task_id, watcher, set_polling)

    def _add(self, group: dict[str, set[W]], task_id: str, member: W, set_polling: Callable[[bool], None]) -> None:
        with self._lock:
            if self._pid != os.getpid():
                # Inherited followers belong to an event loop of the parent process.
                self._followers.clear()
                self._watchers.clear()
                self._last_command, self._pid = None, os.getpid()
            group.setdefault(task_id, set()).add(member)
            set_polling(True)

    def _remove(self, group: dict[str, set[W]], task_id: str, member: W, set_polling: Callable[[bool], None]) -> None:
        with self._lock:
            rest = group.get(task_id, set())
            rest.discard(member)
            if not rest:
                group.pop(task_id, None)
            if not self._followers and not self._watchers:
                set_polling(False)

    def wake_followers(self, task_id: str) -> None:
        """Wake followers after a local write."""
        self._wake(self._followers, task_id)

    def wake_watchers(self, task_id: str) -> None:
        """Wake command watchers after a local write."""
        self._wake(self._watchers, task_id)

    def _wake(self, group: dict[str, set[W]], task_id: str) -> None:
        if task_id in group:
            with self._lock:
                members = tuple(group.get(task_id, ()))
            for member in members:
                member.wake()

    def wake_all(self) -> None:
        """Wake all followers and command watchers."""
        # Versions and command numbers are only valid for the same connection and file.
        self._version = self._last_command = None
        with self._lock:
            groups = (*self._followers.values(), *self._watchers.values())
            members = [member for group in groups for member in group]
        for member in members:
            member.wake()

    def poll(self, connection: sqlite3.Connection) -> None:
        """Poll for changes. If polling fails, wake all of them, so that their reads raise the error.

        Without changes, polling only costs one read of `data_version`, regardless of the number of followers.
        """
        try:
            self._check()
            self._is_missing = False
        except EventLogError:
            # Wake them only once. New followers read first and get the error from that read.
            if not self._is_missing:
                self._is_missing = True
                self.wake_all()
            return
        try:
            (version,) = connection.execute("PRAGMA data_version").fetchone()
            if version == self._version and (self._last_command is not None or not self._watchers):
                return
            self._version = version
            self._poll_commands(connection)
            self._poll_runs(connection)
        except sqlite3.Error:
            self.wake_all()

    def _poll_runs(self, connection: sqlite3.Connection) -> None:
        with self._lock:
            followed = {task_id: tuple(followers) for task_id, followers in self._followers.items()}
        statuses = _read_statuses(connection, list(followed))
        for task_id, followers in followed.items():
            status = statuses.get(task_id, _DELETED_STATUS)
            for follower in followers:
                follower.set_polled(status)

    def _poll_commands(self, connection: sqlite3.Connection) -> None:
        with self._lock:
            after, watched = self._last_command, list(self._watchers)
        if not watched:
            return
        (last,) = connection.execute("SELECT ifnull(max(number), 0) FROM commands").fetchone()
        with self._lock:
            self._last_command = last
        if after is None:
            # Commands may have arrived between the start of watching and this first check.
            notified = watched
        else:
            query = "SELECT DISTINCT task_id FROM commands JOIN runs ON runs.number = run WHERE commands.number > ?"
            notified = [task_id for (task_id,) in connection.execute(query, (after,))] if last != after else []
        for task_id in notified:
            self._wake(self._watchers, task_id)


def _read_statuses(connection: sqlite3.Connection, task_ids: list[str]) -> dict[str, RunStatus]:
    statuses: dict[str, RunStatus] = {}
    for at in range(0, len(task_ids), _RUNS_PER_QUERY):
        batch = task_ids[at : at + _RUNS_PER_QUERY]
        query = f"SELECT task_id, {STATUS_COLUMNS} FROM runs WHERE task_id IN ({', '.join('?' * len(batch))})"
        statuses |= {task_id: (seq, idle, sub) for task_id, seq, idle, sub in connection.execute(query, batch)}
    return statuses


def _complete(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
