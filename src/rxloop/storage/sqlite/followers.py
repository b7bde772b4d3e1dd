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

STANDING = "seq, at_rest, (SELECT max(sub) FROM events WHERE run = number AND events.seq = runs.seq)"

_AT_ONCE = 500
"""Maximum number of runs per query."""

Standing = tuple[int, int, int]
"""Run position with the last `seq`, idle flag and last transient `sub`."""

_GONE: Standing = (-1, 1, 0)


class Follower:
    """Run reader with notification state."""

    def __init__(self, deltas: bool) -> None:
        self._looks_at = 3 if deltas else 2
        """Number of compared fields in a standing."""
        self._new = False
        self._read: Standing | None = None
        """Standing after the last complete read, or None during a read."""
        self._seen: Standing | None = None
        """Latest standing found by polling since the read began."""
        self._waits: asyncio.Future[None] | None = None

    def reads(self) -> None:
        """Reset the state before a read. Later changes count as new."""
        self._read = self._seen = None
        self._new = False

    async def more(self, read: Standing) -> None:
        """Wait for changes since the read began.

        Args:
            read: Standing returned by the read.
        """
        # The order matters. A concurrent poll either sees the new value or has set `_seen`.
        self._read = read
        if self._new or self._differs(self._seen):
            return
        self._waits = asyncio.get_running_loop().create_future()
        try:
            # Check again, because a concurrent poll may have found a change.
            if not self._new:
                await self._waits
        finally:
            self._waits = None

    def looked(self, standing: Standing) -> None:
        """Store a polled standing, and wake the follower if it differs. This method is thread-safe."""
        self._seen = standing
        if self._differs(standing):
            self.wake()

    def _differs(self, standing: Standing | None) -> bool:
        read = self._read
        if read is None or standing is None:
            return False
        return read[: self._looks_at] != standing[: self._looks_at]

    def wake(self) -> None:
        """Wake the follower. This method is thread-safe."""
        self._new = True
        waits = self._waits
        if waits is not None:
            # The follower's event loop may be closed.
            with suppress(RuntimeError):
                waits.get_loop().call_soon_threadsafe(_release, waits)


class _Watcher:
    """Command subscriber."""

    def __init__(self, arrived: Callable[[], None]) -> None:
        self._arrived = arrived
        self._loop = asyncio.get_running_loop()

    def wake(self) -> None:
        """Call the callback in its event loop. This method is thread-safe."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._arrived)


W = TypeVar("W", Follower, _Watcher)


class Followers:
    """Followers and command watchers of a log object.

    Writes by this log object wake them immediately. Polling detects writes by other connections using SQLite's
    `data_version`. Only if this number changes, one query reads the followed runs and another reads new commands.
    """

    def __init__(self, check: Callable[[], None]) -> None:
        """Create an empty collection.

        Args:
            check: Function that raises `EventLogError` if the file is missing. SQLite does not report this to readers.
        """
        self._check = check
        self._gone = False
        self._of: dict[str, set[Follower]] = {}
        self._watching: dict[str, set[_Watcher]] = {}
        self._lock = threading.Lock()
        self._version: int | None = None
        self._letter: int | None = None
        """Last checked command number, or None before the first check."""
        self._pid = os.getpid()

    @contextmanager
    def follower(
        self, task_id: str, keep_looking: Callable[[bool], None], *, deltas: bool = False
    ) -> Generator[Follower]:
        """Register a follower for the duration of the block. `keep_looking` starts or stops polling as needed."""
        follower = Follower(deltas)
        self._add(self._of, task_id, follower, keep_looking)
        try:
            yield follower
        finally:
            self._remove(self._of, task_id, follower, keep_looking)

    def watch(
        self, task_id: str, arrived: Callable[[], None], keep_looking: Callable[[bool], None]
    ) -> Callable[[], None]:
        """Register a callback for new commands, returning a function to remove it."""
        watcher = _Watcher(arrived)
        self._add(self._watching, task_id, watcher, keep_looking)
        return lambda: self._remove(self._watching, task_id, watcher, keep_looking)

    def _add(self, crowd: dict[str, set[W]], task_id: str, one: W, keep_looking: Callable[[bool], None]) -> None:
        with self._lock:
            if self._pid != os.getpid():
                # Inherited followers belong to an event loop of the parent process.
                self._of.clear()
                self._watching.clear()
                self._letter, self._pid = None, os.getpid()
            crowd.setdefault(task_id, set()).add(one)
            keep_looking(True)

    def _remove(self, crowd: dict[str, set[W]], task_id: str, one: W, keep_looking: Callable[[bool], None]) -> None:
        with self._lock:
            rest = crowd.get(task_id, set())
            rest.discard(one)
            if not rest:
                crowd.pop(task_id, None)
            if not self._of and not self._watching:
                keep_looking(False)

    def wrote(self, task_id: str) -> None:
        """Wake followers after a local write."""
        self._wake(self._of, task_id)

    def sent(self, task_id: str) -> None:
        """Wake command watchers after a local write."""
        self._wake(self._watching, task_id)

    def _wake(self, crowd: dict[str, set[W]], task_id: str) -> None:
        if task_id in crowd:
            with self._lock:
                some = tuple(crowd.get(task_id, ()))
            for one in some:
                one.wake()

    def wake_all(self) -> None:
        """Wake all followers and command watchers."""
        # Versions and command numbers are only valid for the same connection and file.
        self._version = self._letter = None
        with self._lock:
            everybody = [one for crowd in (self._of, self._watching) for some in crowd.values() for one in some]
        for one in everybody:
            one.wake()

    def look(self, connection: sqlite3.Connection) -> None:
        """Poll for changes. If polling fails, wake everyone, so that their reads raise the error.

        Without changes, polling only costs one read of `data_version`, regardless of the number of followers.
        """
        try:
            self._check()
            self._gone = False
        except EventLogError:
            # Wake them only once. New followers read first and get the error from that read.
            if not self._gone:
                self._gone = True
                self.wake_all()
            return
        try:
            (version,) = connection.execute("PRAGMA data_version").fetchone()
            if version == self._version and (self._letter is not None or not self._watching):
                return
            self._version = version
            self._look_at_mail(connection)
            self._look_at_runs(connection)
        except sqlite3.Error:
            self.wake_all()

    def _look_at_runs(self, connection: sqlite3.Connection) -> None:
        with self._lock:
            following = {task_id: tuple(followers) for task_id, followers in self._of.items()}
        standings = _standings(connection, list(following))
        for task_id, followers in following.items():
            standing = standings.get(task_id, _GONE)
            for follower in followers:
                follower.looked(standing)

    def _look_at_mail(self, connection: sqlite3.Connection) -> None:
        with self._lock:
            after, watching = self._letter, list(self._watching)
        if not watching:
            return
        (last,) = connection.execute("SELECT ifnull(max(number), 0) FROM mail").fetchone()
        with self._lock:
            self._letter = last
        if after is None:
            # Commands may have arrived between the start of watching and this first check.
            mailed = watching
        else:
            query = "SELECT DISTINCT task_id FROM mail JOIN runs ON runs.number = run WHERE mail.number > ?"
            mailed = [task_id for (task_id,) in connection.execute(query, (after,))] if last != after else []
        for task_id in mailed:
            self._wake(self._watching, task_id)


def _standings(connection: sqlite3.Connection, task_ids: list[str]) -> dict[str, Standing]:
    found: dict[str, Standing] = {}
    for at in range(0, len(task_ids), _AT_ONCE):
        some = task_ids[at : at + _AT_ONCE]
        query = f"SELECT task_id, {STANDING} FROM runs WHERE task_id IN ({', '.join('?' * len(some))})"
        found |= {task_id: (seq, at_rest, sub) for task_id, seq, at_rest, sub in connection.execute(query, some)}
    return found


def _release(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
