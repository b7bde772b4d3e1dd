"""An event log in a SQLite file: the embedded default."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from functools import cached_property, partial
from math import inf
from os import PathLike
from typing import TypeVar

from typing_extensions import Unpack

from rxloop.errors import ConfigurationError, EventLogError
from rxloop.eventlog._sqlite.database import Fsync, errors_of
from rxloop.eventlog._sqlite.file import OpenFile, checked_place
from rxloop.eventlog._sqlite.folds import keep, parts
from rxloop.eventlog._sqlite.followers import Followers
from rxloop.eventlog._sqlite.reads import Corrupt, SeenPage, condition, mail_of, page, record, records
from rxloop.eventlog._sqlite.rows import put_mail, remove_run, transaction, trim
from rxloop.eventlog._sqlite.turns import Turn, orphans
from rxloop.eventlog._sqlite.worker import Worker
from rxloop.eventlog._sqlite.writer import Writer
from rxloop.eventlog._tail import PAGE, Place, Tail, Tails, followed
from rxloop.eventlog.rules import FINISHED, check_batch, unknown_run
from rxloop.eventlog.wanted import Choice, Wanted, check_limit
from rxloop.pipeline.seams import ArtifactStore
from rxloop.pipeline.values import KeptFold, Mark, Parts, RunRecord, Until
from rxloop.protocol.events import Event, State
from rxloop.protocol.mail import Mail

T = TypeVar("T")

log = logging.getLogger("rxloop")


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
        # Both connections open the same file, whatever folder the process goes to meanwhile.
        self.path = checked_place(path, fsync, "MemoryEventLog for a log in memory")
        if corrupt not in ("refuse", "skip"):
            raise ConfigurationError(f"corrupt is 'refuse' or 'skip', not {corrupt!r}")
        if not 0 < lease < inf:
            raise ConfigurationError(f"lease is a number of seconds, more than 0, not {lease!r}")
        self.identity = ("sqlite", str(self.path.resolve()))
        """What two logs on one file have in common, by whatever links they were named."""
        self.keeps_deltas = keep_deltas
        self._fsync: Fsync = fsync
        self._corrupt: Corrupt = corrupt
        self.lease: float | None = lease
        self._writer = Writer(self.path, fsync, lease)
        self._file = OpenFile(self.path, fsync)
        self._followers = Followers(self._file.check)
        self._followed: dict[asyncio.AbstractEventLoop, Tails] = {}
        self._reader = Worker(self._file.open, "rxloop-log-reader", self._followers.look)

    def __repr__(self) -> str:
        return f"<SqliteEventLog {self.path}>"

    async def append(self, task_id: str, events: Sequence[Event], *, expected_seq: int, writer: str = "") -> None:
        """Append a batch to a run, or nothing of it, as `EventLog.append` says; then it is in the file.

        Raises:
            ConflictError: The log holds another last `seq`: somebody else writes this run.
            EventLogError: An event has the wrong number, or the file cannot be written; the message says why.
        """
        if not self.append_now(task_id, events, expected_seq=expected_seq, writer=writer):
            await self._writer.append(task_id, events, expected_seq, writer)
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
        if not self._writer.append_now(task_id, events, expected_seq, writer):
            return False
        self._followers.wrote(task_id)
        return True

    async def read(self, task_id: str, *, after_seq: int = 0, deltas: bool = False) -> Sequence[Event]:
        """The events of a run after `after_seq`, in order, as `EventLog.read` gives them.

        Raises:
            UnknownRun: The log holds no such run.
            EventLogError: The file cannot be read.
        """
        return tuple((await self._page(task_id, deltas, -1, (after_seq + 1, 0))).events)

    async def follow(
        self, task_id: str, *, after_seq: int = 0, deltas: bool = False, until: Until = "attempt"
    ) -> AsyncIterator[Event]:
        """The events after `after_seq`, then those that come, from whatever process; see `EventLog.follow`.

        It ends when it has caught up with the final event of an attempt, whatever its state; if a later attempt has
        begun by then, it goes on with that one.

        Raises:
            UnknownRun: The log holds no such run.
            LogWentBack: The log lacks an event that was given, since the file was restored.
            EventLogError: The file cannot be read.
        """
        page = partial(self._page, task_id, deltas, PAGE)
        joined = partial(self._tails().joined, task_id)
        async for event in followed(task_id, page, joined, after_seq, deltas, until):
            yield event

    def _tails(self) -> Tails:
        """The tails of the runs that are followed in the event loop that runs."""
        loop = asyncio.get_running_loop()
        for other in [other for other in self._followed if other.is_closed()]:
            del self._followed[other]
        if loop not in self._followed:
            feeding = dict[Tail, asyncio.Task[None]]()

            def begun(tail: Tail) -> None:
                feeding[tail] = loop.create_task(self._feed(tail), name=f"rxloop-log-tail-{tail.task_id}")

            def ended(tail: Tail) -> None:
                feeding.pop(tail).cancel()

            self._followed[loop] = Tails(begun, ended)
        return self._followed[loop]

    async def _feed(self, tail: Tail) -> None:
        """Read what comes of a run, once for all who follow it here."""
        place = tail.place
        with self._followers.follower(tail.task_id, self._reader.keep_looking, deltas=True) as follower:
            try:
                while True:
                    follower.reads()
                    found = await self._page(tail.task_id, True, PAGE, place)
                    tail.grow(found.events, place)
                    more, place = found.end > place, found.end
                    if not more:
                        tail.stand(found)
                        # Since the log may have been closed, and is used again by that.
                        self._reader.keep_looking(True)
                        await follower.more(found.standing)
            except EventLogError as error:
                # Whoever follows the run from now on begins a tail of its own.
                self._tails().forget(tail)
                tail.fail(error)

    async def parts(self, context_id: str, *, before: str, after: Mark | None = None, version: int) -> Parts:
        """The runs of a conversation before a run, as `KeepsFolds.parts` gives them.

        Raises:
            EventLogError: The file cannot be read.
        """
        empty = Parts((), Mark(0, 0, 0, ""), whole=True)
        return await self._reading(
            lambda connection: parts(connection, context_id, before, after, version, self._corrupt), empty
        )

    def keep_folds(self, context_id: str, folds: Sequence[KeptFold], *, version: int) -> None:
        """Keep folds of a conversation when there is time, as `KeepsFolds.keep_folds` says."""

        def work(connection: sqlite3.Connection) -> None:
            with transaction(connection):
                keep(connection, context_id, folds, version)

        self._writer.when_there_is_time(work, lambda error: log.debug("no folds are kept in %s: %s", self.path, error))

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
        latest_only: bool = False,
        newest_first: bool = False,
        after: str | None = None,
        limit: int | None = None,
        **wanted: Unpack[Choice],
    ) -> Sequence[RunRecord]:
        """The runs of the log, or those like this, in the order in which it got them, as `EventLog.runs` lists them.

        Raises:
            UnknownRun: The log does not hold the run `after`.
            ConfigurationError: `limit` is less than one.
            EventLogError: The file cannot be read.
        """
        check_limit(limit)
        choice = Wanted(**wanted)
        if after is not None:
            await self.record(after)
        where, values = condition(choice, latest_only)
        return await self._reading(
            lambda connection: records(connection, where, values, after, limit, newest_first), []
        )

    async def take_turn(self, context_id: str, task_id: str, lost: Callable[[], None]) -> bool:
        """Take the turn of a conversation for a run, as `TakesTurns.take_turn` says.

        Raises:
            EventLogError: The file cannot be written.
        """
        return await self._writer.take_turn(Turn(context_id, task_id, lost))

    async def has_turn(self, context_id: str, task_id: str) -> bool:
        """Tell whether the turn is still that of this log object, as `TakesTurns.has_turn` says.

        Raises:
            EventLogError: The file cannot be written.
        """
        return await self._writer.has_turn(context_id, task_id)

    async def give_turn_back(self, context_id: str, task_id: str) -> None:
        """Give the turn back, as `TakesTurns.give_turn_back` says.

        Raises:
            EventLogError: The file cannot be written.
        """
        await self._writer.give_turn_back(context_id, task_id)

    async def orphans(
        self, *, submitted_before: float = 30, submitted_limit: int | None = None, submitted_after: str | None = None
    ) -> Sequence[RunRecord]:
        """The runs that wait for somebody to go on with them, as `TakesTurns.orphans` says.

        Raises:
            EventLogError: The file cannot be read.
        """
        return await self._reading(
            lambda connection: orphans(connection, submitted_before, submitted_limit, submitted_after), []
        )

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

        number = await self._writer.do(work)
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
        await self._writer.remove(lambda connection: remove_run(connection, task_id))

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
        return await self._writer.remove(lambda connection: trim(connection, before, wanted, deltas_only))

    @cached_property
    def artifacts(self) -> ArtifactStore:
        """Where the artifacts of these runs are kept, unless an agent is told otherwise: in the same file."""
        # Few runs make any.
        from rxloop.eventlog.sqlite_artifacts import SqliteArtifacts

        return SqliteArtifacts(self.path, fsync=self._fsync)

    async def aclose(self) -> None:
        """Close the file; may be called more than once. A log that is used again opens it again."""
        if "artifacts" in vars(self):
            await self.artifacts.aclose()
        await self._writer.aclose()
        await self._reader.aclose()
        self._followers.wake_all()

    async def _reading(self, work: Callable[[sqlite3.Connection], T], empty: T) -> T:
        """What a query gives; of a file that is not there yet, what it would give of an empty one."""

        def read(connection: sqlite3.Connection) -> T:
            self._file.check()
            with errors_of(self.path):
                return work(connection)

        if not self._reader.open and not self.path.exists():
            return empty
        return await self._reader.do(read)

    async def _page(self, task_id: str, deltas: bool, limit: int, after: Place) -> SeenPage:
        """Events of a run after a place."""
        found = await self._reading(
            lambda connection: page(connection, task_id, after, deltas, limit, self._corrupt), None
        )
        if found is None:
            raise unknown_run(task_id)
        return found
