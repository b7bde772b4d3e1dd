"""Notification of followers across processes."""

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
"""Runs that are asked for in one query."""

Standing = tuple[int, int, int]
"""How far a run is: its last `seq`, whether it is at rest, and the `sub` of its last transient event."""

_GONE: Standing = (-1, 1, 0)


class Follower:
    """A reader that follows a run, and whether there is something new for it."""

    def __init__(self, deltas: bool) -> None:
        self._looks_at = 3 if deltas else 2
        """How much of a standing matters."""
        self._new = False
        self._read: Standing | None = None
        """How the run stood when the follower had read all of it; None while it reads."""
        self._seen: Standing | None = None
        """How somebody who looked saw it since the follower began to read."""
        self._waits: asyncio.Future[None] | None = None

    def reads(self) -> None:
        """Take note that the follower is about to read: what comes from now on is new."""
        self._read = self._seen = None
        self._new = False

    async def more(self, read: Standing) -> None:
        """Wait for something that came after the follower began to read.

        Args:
            read: How the run stood when it was read.
        """
        # In this order: a thread that looks meanwhile either finds what was read, or is found itself.
        self._read = read
        if self._new or self._differs(self._seen):
            return
        self._waits = asyncio.get_running_loop().create_future()
        try:
            # A thread may have found something in between.
            if not self._new:
                await self._waits
        finally:
            self._waits = None

    def looked(self, standing: Standing) -> None:
        """Take note of how the run stands now; from any thread."""
        self._seen = standing
        if self._differs(standing):
            self.wake()

    def _differs(self, standing: Standing | None) -> bool:
        read = self._read
        if read is None or standing is None:
            return False
        return read[: self._looks_at] != standing[: self._looks_at]

    def wake(self) -> None:
        """Wake the follower, since there is something new; from any thread."""
        self._new = True
        waits = self._waits
        if waits is not None:
            # Its loop may be another one, or closed by now.
            with suppress(RuntimeError):
                waits.get_loop().call_soon_threadsafe(_release, waits)


class _Watcher:
    """Somebody who is told of new mail for a run."""

    def __init__(self, arrived: Callable[[], None]) -> None:
        self._arrived = arrived
        self._loop = asyncio.get_running_loop()

    def wake(self) -> None:
        """Tell of new mail; from any thread."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._arrived)


W = TypeVar("W", Follower, _Watcher)


class Followers:
    """All who follow the runs of one log, and all who watch their mail.

    They learn at once what this log writes. `look` finds what others write: SQLite's `data_version` says whether
    anybody has written at all, and only then one query says which of the runs have grown, and one who has new mail.
    """

    def __init__(self, check: Callable[[], None]) -> None:
        """Begin with nobody.

        Args:
            check: Raises an `EventLogError` when the file is gone, of which SQLite tells nobody who only reads.
        """
        self._check = check
        self._gone = False
        self._of: dict[str, set[Follower]] = {}
        self._watching: dict[str, set[_Watcher]] = {}
        self._lock = threading.Lock()
        self._version: int | None = None
        self._letter: int | None = None
        """The last letter that was looked at; None if nobody has watched yet."""
        self._pid = os.getpid()

    @contextmanager
    def follower(
        self, task_id: str, keep_looking: Callable[[bool], None], *, deltas: bool = False
    ) -> Generator[Follower]:
        """Add a follower while the block lasts; `keep_looking` is called with whether anybody is there."""
        follower = Follower(deltas)
        self._add(self._of, task_id, follower, keep_looking)
        try:
            yield follower
        finally:
            self._remove(self._of, task_id, follower, keep_looking)

    def watch(
        self, task_id: str, arrived: Callable[[], None], keep_looking: Callable[[bool], None]
    ) -> Callable[[], None]:
        """Add somebody who watches the mail of a run; give what removes them."""
        watcher = _Watcher(arrived)
        self._add(self._watching, task_id, watcher, keep_looking)
        return lambda: self._remove(self._watching, task_id, watcher, keep_looking)

    def _add(self, crowd: dict[str, set[W]], task_id: str, one: W, keep_looking: Callable[[bool], None]) -> None:
        with self._lock:
            if self._pid != os.getpid():
                # Those of the parent process are in an event loop that does not run here.
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
        """Wake the followers of a run that this log has written."""
        self._wake(self._of, task_id)

    def sent(self, task_id: str) -> None:
        """Wake those who watch the mail of a run that this log has written to."""
        self._wake(self._watching, task_id)

    def _wake(self, crowd: dict[str, set[W]], task_id: str) -> None:
        if task_id in crowd:
            with self._lock:
                some = tuple(crowd.get(task_id, ()))
            for one in some:
                one.wake()

    def wake_all(self) -> None:
        """Wake everybody, who have to read again."""
        # They mean nothing to another connection, which may be one to another file.
        self._version = self._letter = None
        with self._lock:
            everybody = [one for crowd in (self._of, self._watching) for some in crowd.values() for one in some]
        for one in everybody:
            one.wake()

    def look(self, connection: sqlite3.Connection) -> None:
        """Wake those for whose runs there is something new. If looking fails, wake all: they read, and get the error.

        While nobody writes, it costs one look at a number, however many wait.
        """
        try:
            self._check()
            self._gone = False
        except EventLogError:
            # Once: they get the error when they read, and whoever comes later reads first.
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
            # What came since they began to watch, nobody can say.
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
