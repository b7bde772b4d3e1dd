"""An event log in a SQLite file: the embedded default."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeVar

from rxloop.errors import ConfigurationError
from rxloop.eventlog._sqlite.database import Fsync, errors_of
from rxloop.eventlog._sqlite.file import OpenFile
from rxloop.eventlog._sqlite.folds import keep, parts
from rxloop.eventlog._sqlite.followers import Followers
from rxloop.eventlog._sqlite.reads import Corrupt, Page, Place, condition, histories, mail_of, page, record, records
from rxloop.eventlog._sqlite.rows import append, put_mail, remove, transaction
from rxloop.eventlog._sqlite.turns import Turn, Turns, orphans
from rxloop.eventlog._sqlite.worker import Answer, Worker
from rxloop.eventlog.rules import FINISHED, check_batch, check_finished, unknown_run
from rxloop.eventlog.wanted import Wanted, check_limit
from rxloop.pipeline.values import Histories, KeptFold, Mark, Parts, RunRecord, Until
from rxloop.protocol.events import Event, State
from rxloop.protocol.mail import Mail

T = TypeVar("T")

log = logging.getLogger("rxloop")

_PAGE = 500
"""Events that a follower takes at once, so that a long run is never in memory as a whole."""
_FREE_PAGES = 2_000
_ALL_SUBS = 1 << 62
_FEW = 32
"""Events that are written without the thread."""


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

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        fsync: Fsync = "normal",
        keep_deltas: bool = False,
        corrupt: Corrupt = "refuse",
        lease: float = 10,
    ) -> None:
        """Make a log; nothing is opened yet.

        Args:
            path: The file. Its folder has to be there.
            fsync: `"normal"` writes every batch to the operating system before `append` returns: nothing is lost when
                the process is killed. Against a loss of power only `"full"` guards the last moments, at the price of
                waiting for the disk at each batch.
            keep_deltas: Keep transient events as well, with their times, for faithful replays.
            corrupt: What becomes of an event that cannot be read, since the disk or another program has damaged it:
                `"refuse"` makes an error of whatever reads its run, and `"skip"` leaves it out, with a warning that
                names it. Other runs are read as they are in both cases.
            lease: Seconds for which this process may be silent until others on this machine take its turns: it says
                four times as often that it is alive. One that is killed is found after so long, and one that was
                frozen for longer has lost its turns.

        Raises:
            ConfigurationError: The path, `fsync`, `corrupt` or `lease` cannot be used.
        """
        if fspath(path) in ("", ":memory:"):
            raise ConfigurationError(f"{path!r} is not a file: use MemoryEventLog for a log in memory")
        if fsync not in ("normal", "full"):
            raise ConfigurationError(f"fsync is 'normal' or 'full', not {fsync!r}")
        if corrupt not in ("refuse", "skip"):
            raise ConfigurationError(f"corrupt is 'refuse' or 'skip', not {corrupt!r}")
        if not 0 < lease < inf:
            raise ConfigurationError(f"lease is a number of seconds, more than 0, not {lease!r}")
        # Both connections open the same file, whatever folder the process goes to meanwhile.
        self.path = Path(path).absolute()
        self.identity = ("sqlite", str(self.path.resolve()))
        """What two logs on one file have in common, by whatever links they were named."""
        self.keeps_deltas = keep_deltas
        self._corrupt: Corrupt = corrupt
        self._fsync: Fsync = fsync
        self._written, self._read = OpenFile(self.path, fsync), OpenFile(self.path, fsync)
        self._followers = Followers()
        self.lease: float | None = lease
        self._turns = Turns(lease)
        self._writer = Worker(self._written.open, "rxloop-log-writer", self._turns.beat, lease / 4)
        self._reader = Worker(self._read.open, "rxloop-log-reader", self._followers.look)
        self._batches: deque[_Batch] = deque()

    def __repr__(self) -> str:
        return f"<SqliteEventLog {self.path}>"

    async def append(self, task_id: str, events: Sequence[Event], *, expected_seq: int, writer: str = "") -> None:
        """Append a batch to a run, or nothing of it, as `EventLog.append` says; then it is in the file.

        Raises:
            ConflictError: The log holds another last `seq`: somebody else writes this run.
            EventLogError: An event has the wrong number, or the file cannot be written; the message says why.
        """
        if not self.append_now(task_id, events, expected_seq=expected_seq, writer=writer):
            batch = _Batch(task_id, tuple(events), expected_seq, writer, Answer())
            self._batches.append(batch)
            # The first of several finds the others' batches as well, and theirs find nothing more to do.
            self._writer.submit(self._write, self._fail)
            await batch.written.future
            self._followers.wrote(task_id)

    def append_now(self, task_id: str, events: Sequence[Event], *, expected_seq: int, writer: str = "") -> bool:
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
                    outcome = append(connection, task_id, events, expected_seq, writer, self._turns.fenced)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
                    return False
                raise
        # First, since a file that is gone holds what it must not be compared with.
        move = self._written.written(len(events))
        if outcome is not None:
            raise outcome
        if move:
            self._writer.submit(self._written.move, lambda error: None)
        self._followers.wrote(task_id)
        return True

    async def read(self, task_id: str, *, after_seq: int = 0, deltas: bool = False) -> Sequence[Event]:
        """The events of a run after `after_seq`, in order, as `EventLog.read` gives them.

        Raises:
            UnknownRun: The log holds no such run.
            EventLogError: The file cannot be read.
        """
        return tuple((await self._page(task_id, (after_seq, _ALL_SUBS), deltas)).events)

    async def follow(
        self, task_id: str, *, after_seq: int = 0, deltas: bool = False, until: Until = "attempt"
    ) -> AsyncIterator[Event]:
        """The events after `after_seq`, then those that come, from whatever process; see `EventLog.follow`.

        It ends when it has caught up with the final event of an attempt, whatever its state; if a later attempt has
        begun by then, it goes on with that one.

        Raises:
            UnknownRun: The log holds no such run.
            EventLogError: The file cannot be read.
        """
        place: Place = (after_seq, 0)
        with self._followers.follower(task_id, self._reader.keep_looking, deltas=deltas) as follower:
            while True:
                follower.reads()
                found = await self._page(task_id, place, deltas, limit=_PAGE)
                for event in found.events:
                    yield event
                if found.last(until):
                    return
                if not found.rows:
                    # Since the log may have been closed, and is used again by that.
                    self._reader.keep_looking(True)
                    await follower.more(found.standing)
                place = found.end

    async def histories(self, context_id: str, *, before: str, after: Mark | None = None) -> Histories:
        """The durable events of the runs of a conversation before a run, as `ReadsConversations.histories` gives them.

        Raises:
            EventLogError: The file cannot be read.
        """
        empty = Histories((), Mark(0, 0, ""), whole=True)
        return await self._reading(
            lambda connection: histories(connection, context_id, before, after, self._corrupt), empty
        )

    async def parts(self, context_id: str, *, before: str, after: Mark | None = None, version: int) -> Parts:
        """The runs of a conversation before a run, as `KeepsFolds.parts` gives them.

        Raises:
            EventLogError: The file cannot be read.
        """
        empty = Parts((), Mark(0, 0, ""), whole=True)
        return await self._reading(
            lambda connection: parts(connection, context_id, before, after, version, self._corrupt), empty
        )

    def keep_folds(self, context_id: str, folds: Sequence[KeptFold], *, version: int) -> None:
        """Keep folds of a conversation when there is time, as `KeepsFolds.keep_folds` says."""

        def work(connection: sqlite3.Connection) -> None:
            with transaction(connection):
                keep(connection, context_id, folds, version)

        self._writer.submit(work, lambda error: log.debug("no folds are kept in %s: %s", self.path, error))

    async def record(self, task_id: str) -> RunRecord:
        """What is known of a run without its events.

        Raises:
            UnknownRun: The log holds no such run.
            EventLogError: The file cannot be read.
        """
        found = await self._reading(lambda connection: record(connection, task_id), None)
        if found is None:
            raise unknown_run(task_id)
        return found

    async def runs(
        self,
        *,
        context_id: str | None = None,
        unfinished: bool = False,
        states: Collection[State] | None = None,
        agent_name: str | None = None,
        owner: str | None = None,
        since: int | None = None,
        until: int | None = None,
        metadata: Mapping[str, Any] | None = None,
        after: str | None = None,
        limit: int | None = None,
    ) -> Sequence[RunRecord]:
        """The runs of the log, or those like this, in the order in which it got them, as `EventLog.runs` lists them.

        Raises:
            UnknownRun: The log does not hold the run `after`.
            ConfigurationError: `limit` is less than one.
            EventLogError: The file cannot be read.
        """
        check_limit(limit)
        wanted = Wanted(
            context_id=context_id,
            unfinished=unfinished,
            states=states,
            agent_name=agent_name,
            owner=owner,
            since=since,
            until=until,
            metadata=metadata,
        )
        if after is not None:
            await self.record(after)
        where, values = condition(wanted)
        return await self._reading(lambda connection: records(connection, where, values, after, limit), [])

    async def take_turn(self, context_id: str, task_id: str, lost: Callable[[], None]) -> bool:
        """Take the turn of a conversation for a run, as `TakesTurns.take_turn` says.

        Raises:
            EventLogError: The file cannot be written.
        """
        turn = Turn(context_id, task_id, lost)

        def work(connection: sqlite3.Connection) -> bool:
            taken = self._turns.take(connection, turn)
            self._writer.keep_looking(bool(self._turns.held))
            return taken

        try:
            return await self._writing(work)
        except asyncio.CancelledError:
            # The thread may take it all the same.
            self._writer.submit(lambda connection: self._give_back(connection, turn), lambda error: None)
            raise

    async def has_turn(self, context_id: str, task_id: str) -> bool:
        """Tell whether the turn is still that of this log object, as `TakesTurns.has_turn` says.

        Raises:
            EventLogError: The file cannot be written.
        """
        return await self._writing(lambda connection: self._turns.has(connection, context_id, task_id))

    async def give_turn_back(self, context_id: str, task_id: str) -> None:
        """Give the turn back, as `TakesTurns.give_turn_back` says.

        Raises:
            EventLogError: The file cannot be written.
        """
        turn = self._turns.held.get(context_id)
        if turn is not None and turn.task_id == task_id:
            await self._writing(lambda connection: self._give_back(connection, turn))

    def _give_back(self, connection: sqlite3.Connection, turn: Turn) -> None:
        try:
            self._turns.give_back(connection, turn)
        finally:
            self._writer.keep_looking(bool(self._turns.held))

    async def orphans(self, *, submitted_before: float = 30) -> Sequence[RunRecord]:
        """The runs that wait for somebody to go on with them, as `TakesTurns.orphans` says.

        Raises:
            EventLogError: The file cannot be read.
        """
        return await self._reading(lambda connection: orphans(connection, submitted_before), [])

    async def send(self, task_id: str, mail: Mail) -> int:
        """Put a letter into the mail of a run, as `Mailbox.send` says; then it is in the file.

        Raises:
            UnknownRun: The log holds no such run.
            EventLogError: The file cannot be written.
        """
        letter = mail.to_json()

        def work(connection: sqlite3.Connection) -> int:
            with transaction(connection):
                return put_mail(connection, task_id, letter)

        number = await self._writing(work)
        self._followers.sent(task_id)
        return number

    async def mail(self, task_id: str, *, after: int = 0) -> Sequence[tuple[int, Mail]]:
        """The letters of a run after that number, as `Mailbox.mail` gives them.

        Raises:
            UnknownRun: The log holds no such run.
            EventLogError: The file cannot be read.
        """
        found = await self._reading(lambda connection: mail_of(connection, task_id, after), None)
        if found is None:
            raise unknown_run(task_id)
        return found

    def watch(self, task_id: str, arrived: Callable[[], None]) -> Callable[[], None]:
        """Be told when there may be new mail for a run, as `Mailbox.watch` says: at most 20 ms after it was sent."""
        stop = self._followers.watch(task_id, arrived, self._reader.keep_looking)
        if not self._reader.open:
            # Who cannot look for mail has to read, and gets the error.
            self._reader.submit(lambda connection: None, lambda error: self._followers.wake_all())
        return stop

    async def delete(self, task_id: str) -> None:
        """Remove a run that has ended for good.

        Raises:
            UnknownRun: The log holds no such run.
            EventLogError: The run can still go on, or the file cannot be written.
        """

        def work(connection: sqlite3.Connection) -> None:
            found = connection.execute("SELECT number, state FROM runs WHERE task_id = ?", (task_id,)).fetchone()
            if found is None:
                raise unknown_run(task_id)
            check_finished(task_id, found[1])
            remove(connection, [found[0]])

        await self._removing(work)

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

        return await self._removing(work)

    async def aclose(self) -> None:
        """Close the file; may be called more than once. A log that is used again opens it again."""
        await self._writer.aclose(last=self._written.close)
        await self._reader.aclose()
        self._followers.wake_all()

    # -- writing and reading

    def _write(self, connection: sqlite3.Connection) -> None:
        """Write all batches that wait, in one transaction."""
        batches, fence = self._waiting(), self._turns.fenced
        if not batches:
            return
        try:
            with errors_of(self.path), transaction(connection):
                outcomes = [
                    append(connection, batch.task_id, batch.events, batch.expected_seq, batch.writer, fence)
                    for batch in batches
                ]
            if self._written.written(sum(len(batch.events) for batch in batches)):
                self._written.move(connection)
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
        # What waited when the process was forked is its parent's to write.
        return [batch for batch in batches if batch.pid == os.getpid()]

    async def _writing(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """What short work gives that writes, in a transaction of its own."""

        def write(connection: sqlite3.Connection) -> T:
            with errors_of(self.path):
                result = work(connection)
                if self._written.written(1):
                    self._written.move(connection)
                return result

        return await self._writer.do(write)

    async def _removing(self, work: Callable[[sqlite3.Connection], T]) -> T:
        def write(connection: sqlite3.Connection) -> T:
            with transaction(connection):
                result = work(connection)
            connection.execute(f"PRAGMA incremental_vacuum({_FREE_PAGES})").fetchall()
            return result

        return await self._writing(write)

    async def _reading(self, work: Callable[[sqlite3.Connection], T], empty: T) -> T:
        """What a query gives; of a file that is not there yet, what it would give of an empty one."""

        def read(connection: sqlite3.Connection) -> T:
            self._read.check()
            with errors_of(self.path):
                return work(connection)

        if not self._reader.open and not self.path.exists():
            return empty
        return await self._reader.do(read)

    async def _page(self, task_id: str, after: Place, deltas: bool, *, limit: int = -1) -> Page:
        """Events of a run after a place."""
        found = await self._reading(
            lambda connection: page(connection, task_id, after, deltas, limit, self._corrupt), None
        )
        if found is None:
            raise unknown_run(task_id)
        return found


@dataclass(frozen=True, slots=True)
class _Batch:
    """Events that wait to be written."""

    task_id: str
    events: tuple[Event, ...]
    expected_seq: int
    writer: str
    written: Answer[None]
    pid: int = field(default_factory=os.getpid)
