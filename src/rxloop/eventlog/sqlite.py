"""An event log in a SQLite file: the embedded default."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import TypeVar

from rxloop.errors import ConfigurationError
from rxloop.eventlog._database import Fsync, checkpoint, connect, errors_of
from rxloop.eventlog._rows import append, remove, transaction
from rxloop.eventlog._rules import FINISHED, check_batch, check_finished, unknown
from rxloop.eventlog._worker import Answer, Worker
from rxloop.events import Event, State
from rxloop.records import RunRecord

T = TypeVar("T")

POLL_SECONDS = 0.02
_PAGE = 500
"""Events that a follower takes at once, so that a long run is never in memory as a whole."""
_FREE_PAGES = 2_000
_FEW = 32
"""Events that are written without the thread."""
_CHECKPOINT = 1_000
"""Events after which the thread moves what is in the write-ahead log to its place."""
_RECORD = "task_id, context_id, agent_name, state, attempt, seq, created, updated"


class SqliteEventLog:
    """Keeps the durable events of runs in one SQLite file.

    Any number of processes may read it at once, and each run may be written by one. The file is opened, or made, at the
    first use. What may take time is done in a thread; a few events that nothing is in the way of are written at once.

    Example:
        >>> log = SqliteEventLog("runs.db")
        >>> agent = Agent("zai:glm-4.7", log=log)
        >>> for record in await log.runs(unfinished=True):
        ...     await agent.resume(record.task_id)
    """

    def __init__(self, path: str | PathLike[str], *, fsync: Fsync = "normal", keep_deltas: bool = False) -> None:
        """Make a log; nothing is opened yet.

        Args:
            path: The file. Its folder has to be there.
            fsync: `"normal"` writes every batch to the operating system before `append` returns: nothing is lost when
                the process is killed. Against a loss of power only `"full"` guards the last moments, at the price of
                waiting for the disk at each batch.
            keep_deltas: Keep transient events as well, with their times, for faithful replays.

        Raises:
            ConfigurationError: The path or `fsync` cannot be used.
        """
        if fspath(path) in ("", ":memory:"):
            raise ConfigurationError(f"{path!r} is no file: use MemoryEventLog for a log in memory")
        if fsync not in ("normal", "full"):
            raise ConfigurationError(f"fsync is 'normal' or 'full', not {fsync!r}")
        # Both connections open the same file, whatever folder the process goes to meanwhile.
        self.path = Path(path).absolute()
        self.identity = ("sqlite", str(self.path.resolve()))
        """What two logs on one file have in common, by whatever links they were named."""
        self.keeps_deltas = keep_deltas
        self._writer = Worker(partial(_open, self.path, fsync), "rxloop-log-writer")
        self._reader = Worker(partial(_open, self.path, fsync), "rxloop-log-reader")
        self._fsync: Fsync = fsync
        self._ahead = 0
        self._batches: deque[_Batch] = deque()
        self._waiters: set[asyncio.Future[None]] = set()
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<SqliteEventLog {self.path}>"

    async def append(self, task_id: str, events: Sequence[Event], *, expected_seq: int, owner: str = "") -> None:
        """Append a batch to a run: all of it, or nothing. When it returns, the batch is in the file.

        What the same owner has written already, in a call that was cancelled meanwhile, is not written again.

        Args:
            task_id: The run.
            events: Events numbered on from `expected_seq` without a gap; transient ones only with `keep_deltas`.
            expected_seq: The last `seq` that the log holds of the run; 0 for a new one.
            owner: Who appends: a random token that no other writer has.

        Raises:
            ConflictError: The log holds another last `seq`: somebody else writes this run.
            EventLogError: An event has the wrong number, or the file cannot be written; the message says why.
        """
        if not self.append_now(task_id, events, expected_seq=expected_seq, owner=owner):
            batch = _Batch(task_id, tuple(events), expected_seq, owner, Answer())
            self._batches.append(batch)
            # The first of several finds the others' batches as well, and theirs find nothing more to do.
            self._writer.submit(self._write, self._fail)
            await batch.written.future
            self._wake()

    def append_now(self, task_id: str, events: Sequence[Event], *, expected_seq: int, owner: str = "") -> bool:
        """Append a few events without the thread, whose turn costs more than the write; False if that may take long.

        It takes a tenth of a millisecond, since it goes no further than the memory of the operating system. What waits
        for a disk, for another process or for a large batch is the thread's.

        Raises:
            ConflictError: As for `append`.
            EventLogError: As for `append`.
        """
        check_batch(task_id, events, expected_seq, self.keeps_deltas)
        if not events:
            return True
        if self._fsync == "full" or len(events) > _FEW:
            return False
        with self._writer.borrowed() as connection, errors_of(self.path):
            if connection is None:
                return False
            try:
                with transaction(connection, wait=0):
                    outcome = append(connection, task_id, events, expected_seq, owner)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
                    return False
                raise
        if outcome is not None:
            raise outcome
        if self._to_move(len(events)):
            self._writer.submit(checkpoint, lambda error: None)
        self._wake()
        return True

    async def read(self, task_id: str, *, after_seq: int = 0, deltas: bool = False) -> Sequence[Event]:
        """The events of a run behind `after_seq`, in order.

        Args:
            task_id: The run.
            after_seq: The last `seq` that is not wanted.
            deltas: Give the transient events too, where the log keeps them.

        Raises:
            UnknownRun: The log holds no such run.
            EventLogError: The file cannot be read.
        """
        rows, _ = await self._read(task_id, after_seq, deltas=deltas)
        return tuple(map(Event.from_json, rows))

    async def follow(self, task_id: str, *, after_seq: int = 0) -> AsyncIterator[Event]:
        """The durable events behind `after_seq`, then those that come, from whatever process.

        It ends when it has caught up with the final event of an attempt, whatever its state; where a later attempt has
        begun by then, it goes on with that one.

        Raises:
            UnknownRun: The log holds no such run.
            EventLogError: The file cannot be read.
        """
        while True:
            rows, at_rest = await self._read(task_id, after_seq, limit=_PAGE)
            for row in rows:
                event = Event.from_json(row)
                after_seq = event.seq
                yield event
            if at_rest and not rows:
                return
            if not rows:
                await self._grown()

    async def runs(self, *, context_id: str | None = None, unfinished: bool = False) -> Sequence[RunRecord]:
        """The runs of a conversation, or of all, in the order in which the log got them.

        Args:
            context_id: Only those of this conversation.
            unfinished: Only those that are neither completed nor failed.

        Raises:
            EventLogError: The file cannot be read.
        """
        where, values = ["1"], list[str]()
        if context_id is not None:
            where.append("context_id = ?")
            values.append(context_id)
        if unfinished:
            where.append("state NOT IN ('completed', 'failed')")

        def select(connection: sqlite3.Connection) -> list[RunRecord]:
            query = f"SELECT {_RECORD} FROM runs WHERE {' AND '.join(where)} ORDER BY number"
            return [RunRecord(*row) for row in connection.execute(query, values)]

        return await self._reading(select, [])

    async def delete(self, task_id: str) -> None:
        """Remove a run that has ended for good.

        Raises:
            UnknownRun: The log holds no such run.
            EventLogError: The run can still go on, or the file cannot be written.
        """

        def work(connection: sqlite3.Connection) -> None:
            found = connection.execute("SELECT number, state FROM runs WHERE task_id = ?", (task_id,)).fetchone()
            if found is None:
                raise unknown(task_id)
            check_finished(task_id, found[1])
            remove(connection, [found[0]])

        await self._writing(work)

    async def trim(
        self, older_than: float, *, states: Collection[State] = FINISHED, deltas_only: bool = False
    ) -> list[str]:
        """Remove the runs that ended for good, and longer ago than that. A run that can still go on always stays.

        Args:
            older_than: Seconds since the last event of a run.
            states: Only runs in these states, of `completed` and `failed`.
            deltas_only: Remove only the transient events of these runs.

        Returns:
            The ids of the runs that something was removed of.

        Raises:
            EventLogError: The file cannot be written.
        """
        before = round((time.time() - older_than) * 1000)
        wanted = [state for state in states if state in FINISHED]

        def work(connection: sqlite3.Connection) -> list[str]:
            marks = ", ".join("?" * len(wanted))
            having = " AND EXISTS (SELECT 1 FROM events WHERE run = number AND sub > 0)" if deltas_only else ""
            query = f"SELECT number, task_id FROM runs WHERE updated < ? AND state IN ({marks}){having} ORDER BY number"
            found = connection.execute(query, (before, *wanted)).fetchall()
            remove(connection, [number for number, _ in found], deltas_only)
            return [task_id for _, task_id in found]

        return await self._writing(work)

    async def aclose(self) -> None:
        """Close the file; may be called more than once. A log that is used again opens it again."""
        await self._writer.aclose()
        await self._reader.aclose()

    # -- writing and reading

    def _to_move(self, count: int) -> bool:
        """Whether the write-ahead log, grown by these events, is to be moved to its place."""
        self._ahead += count
        if self._ahead < _CHECKPOINT:
            return False
        self._ahead = 0
        return True

    def _write(self, connection: sqlite3.Connection) -> None:
        """Write all batches that wait, in one transaction."""
        batches = self._waiting()
        if not batches:
            return
        try:
            with errors_of(self.path), transaction(connection):
                outcomes = [
                    append(connection, each.task_id, each.events, each.expected_seq, each.owner) for each in batches
                ]
            if self._to_move(sum(len(batch.events) for batch in batches)):
                checkpoint(connection)
        except Exception as error:
            for batch in batches:
                batch.written.fail(error)
            return
        for batch, outcome in zip(batches, outcomes, strict=True):
            if outcome is None:
                batch.written.give(None)
            else:
                batch.written.fail(outcome)

    def _fail(self, error: Exception) -> None:
        """Tell those who wait that the file cannot be opened."""
        for batch in self._waiting():
            batch.written.fail(error)

    def _waiting(self) -> list[_Batch]:
        batches: list[_Batch] = []
        with suppress(IndexError):
            while True:
                batches.append(self._batches.popleft())
        return batches

    async def _writing(self, work: Callable[[sqlite3.Connection], T]) -> T:
        def write(connection: sqlite3.Connection) -> T:
            with errors_of(self.path):
                with transaction(connection):
                    result = work(connection)
                connection.execute(f"PRAGMA incremental_vacuum({_FREE_PAGES})").fetchall()
                return result

        return await self._writer.do(write)

    async def _reading(self, work: Callable[[sqlite3.Connection], T], empty: T) -> T:
        """What a query gives; of a file that is not there yet, what it would give of an empty one."""

        def read(connection: sqlite3.Connection) -> T:
            with errors_of(self.path):
                return work(connection)

        if not self.path.exists():
            return empty
        return await self._reader.do(read)

    async def _read(
        self, task_id: str, after_seq: int, *, deltas: bool = False, limit: int = -1
    ) -> tuple[list[bytes], bool]:
        """The JSON of the events behind `after_seq`, and whether the run was at rest at that time."""

        def select(connection: sqlite3.Connection) -> tuple[list[bytes], bool] | None:
            # In one transaction, so that both are of one moment.
            connection.execute("BEGIN")
            try:
                found = connection.execute("SELECT number, at_rest FROM runs WHERE task_id = ?", (task_id,)).fetchone()
                if found is None:
                    return None
                query = "SELECT json FROM events WHERE run = ? AND seq > ?" + ("" if deltas else " AND sub = 0")
                query += " ORDER BY seq, sub LIMIT ?"
                rows = connection.execute(query, (found[0], after_seq, limit)).fetchall()
            finally:
                connection.execute("ROLLBACK")
            return [row for (row,) in rows], bool(found[1])

        found = await self._reading(select, None)
        if found is None:
            raise unknown(task_id)
        return found

    # -- followers

    async def _grown(self) -> None:
        """Wait until somebody has written: at once if it was this log, else within 20 ms."""
        waiter = asyncio.get_running_loop().create_future()
        with self._lock:
            self._waiters.add(waiter)
        try:
            await asyncio.wait([waiter], timeout=POLL_SECONDS)
        finally:
            with self._lock:
                self._waiters.discard(waiter)

    def _wake(self) -> None:
        with self._lock:
            waiters = tuple(self._waiters)
        for waiter in waiters:
            # The loop of a follower may be another one, or closed by now.
            with suppress(RuntimeError):
                waiter.get_loop().call_soon_threadsafe(_release, waiter)


def _release(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _open(path: Path, fsync: Fsync) -> sqlite3.Connection:
    with errors_of(path):
        return connect(path, fsync)


@dataclass(frozen=True, slots=True)
class _Batch:
    """Events that wait to be written."""

    task_id: str
    events: tuple[Event, ...]
    expected_seq: int
    owner: str
    written: Answer[None]
