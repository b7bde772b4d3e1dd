"""The followers of the runs of a SQLite log: one look at the file serves all of them."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

_AT_ONCE = 500
"""Runs that are asked for in one query."""
Standing = tuple[int, int]
"""How far a run is: its last `seq`, and whether it is at rest."""


class Follower:
    """A reader that follows a run, and whether there is something new for it."""

    def __init__(self, deltas: bool) -> None:
        self.deltas = deltas
        self.standing: Standing | None = None
        self._new = False
        self._waits: asyncio.Future[None] | None = None

    def reads(self) -> None:
        """Take note that the follower is about to read: what comes from now on is new."""
        self._new = False

    async def more(self) -> None:
        """Wait for something that came after the follower began to read."""
        if self._new:
            return
        self._waits = asyncio.get_running_loop().create_future()
        try:
            # A thread may have found something in between.
            if not self._new:
                await self._waits
        finally:
            self._waits = None

    def wake(self) -> None:
        """Wake the follower, since there is something new; from any thread."""
        self._new = True
        waits = self._waits
        if waits is not None:
            # Its loop may be another one, or closed by now.
            with suppress(RuntimeError):
                waits.get_loop().call_soon_threadsafe(_release, waits)


class Followers:
    """All followers of the runs of one log.

    They learn at once what this log writes. `look` finds what others write: SQLite's `data_version` says whether
    anybody has written at all, and only then one query says which of the runs have grown.
    """

    def __init__(self) -> None:
        self._of: dict[str, set[Follower]] = {}
        self._lock = threading.Lock()
        self._version: int | None = None
        self._pid = os.getpid()

    @contextmanager
    def follower(
        self, task_id: str, keep_looking: Callable[[bool], None], *, deltas: bool = False
    ) -> Generator[Follower]:
        """Add a follower while the block lasts; `keep_looking` is called with whether there are any."""
        follower = Follower(deltas)
        with self._lock:
            if self._pid != os.getpid():
                # Those of the parent process are in an event loop that does not run here.
                self._of, self._pid = {}, os.getpid()
            self._of.setdefault(task_id, set()).add(follower)
            keep_looking(True)
        try:
            yield follower
        finally:
            with self._lock:
                rest = self._of.get(task_id, set())
                rest.discard(follower)
                if not rest:
                    self._of.pop(task_id, None)
                if not self._of:
                    keep_looking(False)

    def wrote(self, task_id: str) -> None:
        """Wake the followers of a run that this log has written."""
        if task_id in self._of:
            with self._lock:
                followers = tuple(self._of.get(task_id, ()))
            for follower in followers:
                follower.wake()

    def wake_all(self) -> None:
        """Wake all followers, who have to read again."""
        with self._lock:
            everybody = [follower for followers in self._of.values() for follower in followers]
        for follower in everybody:
            follower.wake()

    def look(self, connection: sqlite3.Connection) -> None:
        """Wake the followers of runs that have grown. If looking fails, wake all: they read, and get the error."""
        with self._lock:
            following = {task_id: tuple(followers) for task_id, followers in self._of.items()}
        try:
            (version,) = connection.execute("PRAGMA data_version").fetchone()
            changed, self._version = version != self._version, version
            asked = [
                task_id
                for task_id, followers in following.items()
                if changed or any(follower.standing is None for follower in followers)
            ]
            standings = _standings(connection, asked)
        except sqlite3.Error:
            asked, standings, changed = list(following), dict[str, Standing](), True
        for task_id in asked:
            standing = standings.get(task_id, (-1, 1))
            for follower in following[task_id]:
                known, follower.standing = follower.standing, standing
                if known != standing or (changed and follower.deltas):
                    follower.wake()


def _standings(connection: sqlite3.Connection, task_ids: list[str]) -> dict[str, Standing]:
    found: dict[str, Standing] = {}
    for at in range(0, len(task_ids), _AT_ONCE):
        some = task_ids[at : at + _AT_ONCE]
        query = f"SELECT task_id, seq, at_rest FROM runs WHERE task_id IN ({', '.join('?' * len(some))})"
        found |= {task_id: (seq, at_rest) for task_id, seq, at_rest in connection.execute(query, some)}
    return found


def _release(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
