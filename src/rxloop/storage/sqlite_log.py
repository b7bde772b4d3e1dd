"""Event log in one SQLite file."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from functools import partial
from math import inf
from os import PathLike
from typing import TypeVar

from typing_extensions import Unpack

from rxloop.errors import ConfigurationError, EventLogError
from rxloop.pipeline.artifacts import ArtifactStore
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.records import (
    FINISHED,
    ConversationPage,
    HistoryQuery,
    Mark,
    RunFilter,
    RunQuery,
    RunRecord,
    Snapshot,
    Until,
)
from rxloop.protocol.commands import Command
from rxloop.protocol.events import Event, State
from rxloop.state.run_state import RunFold
from rxloop.storage.rules import check_batch, unknown_run
from rxloop.storage.sqlite.database import Fsync, errors_of, transaction
from rxloop.storage.sqlite.file import OpenFile, checked_place
from rxloop.storage.sqlite.followers import Followers
from rxloop.storage.sqlite.leases import Turn, list_orphaned
from rxloop.storage.sqlite.reads import (
    Corrupt,
    SeenPage,
    read_commands,
    read_conversation,
    read_page,
    read_record,
    read_records,
    read_snapshot,
    store_folds,
)
from rxloop.storage.sqlite.worker import Worker
from rxloop.storage.sqlite.writer import Writer, put_command, remove_run, trim
from rxloop.storage.tail import PAGE, Place, Tail, Tails, followed

T = TypeVar("T")

log = logging.getLogger("rxloop")


class SqliteEventLog(EventLog):
    """Keeps the durable events of runs in one SQLite file.

    Any number of processes may read it at once, and each run may be written by one. The file is opened, or made, at the
    first use. What may take time is done in a thread; a few events that nothing is in the way of are written at once.

    Example:
        >>> log = SqliteEventLog("runs.db")
        >>> agent = Agent("zai:glm-4.7", log=log)
        >>> for record in await log.list_runs(unfinished=True):
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
        self.keeps_deltas = keep_deltas
        self._fsync: Fsync = fsync
        self._corrupt: Corrupt = corrupt
        self.lease_seconds = lease
        self._artifacts: ArtifactStore | None = None
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
        """Return the events of a run after `after_seq`, as `EventLog.read` says.

        Raises:
            UnknownRun: The log does not have the run.
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
            UnknownRun: The log does not have the run.
            LogRolledBack: The log lacks an event that was given, since the file was restored.
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

    async def snapshot(
        self, task_id: str, *, since: Snapshot | None = None, history: HistoryQuery | None = None
    ) -> Snapshot:
        """Return a run with its neighbours as of one moment, as `EventLog.snapshot` says.

        Raises:
            UnknownRun: The log does not have the run.
            EventLogError: The file cannot be read.
        """
        corrupt = self._corrupt
        return await self._reading_run(task_id, lambda each: read_snapshot(each, task_id, since, history, corrupt))

    async def read_conversation(
        self, context_id: str, *, before: str, after: Mark | None = None, version: int
    ) -> ConversationPage:
        """Return the runs of a conversation that come before a run, as `EventLog.read_conversation` says.

        Raises:
            EventLogError: The file cannot be read.
        """
        empty = ConversationPage((), Mark(0, 0, 0, ""), whole=True)
        return await self._reading(
            lambda connection: read_conversation(connection, context_id, before, after, version, self._corrupt), empty
        )

    def store_folds(self, context_id: str, folds: Sequence[RunFold], *, version: int) -> None:
        """Store folds of a conversation when there is time, as `EventLog.store_folds` says."""

        def work(connection: sqlite3.Connection) -> None:
            with transaction(connection):
                store_folds(connection, context_id, folds, version)

        self._writer.when_there_is_time(work, lambda error: log.debug("no folds are kept in %s: %s", self.path, error))

    async def get_record(self, task_id: str) -> RunRecord:
        """Return the record of a run.

        Raises:
            UnknownRun: The log does not have the run.
            EventLogError: The file cannot be read.
        """
        return await self._reading_run(task_id, lambda connection: read_record(connection, task_id))

    async def list_runs(self, **query: Unpack[RunQuery]) -> Sequence[RunRecord]:
        """Return the records of the matching runs, as `EventLog.list_runs` says.

        Raises:
            UnknownRun: The log does not have the run `after`.
            ConfigurationError: `limit` is less than one.
            EventLogError: The file cannot be read.
        """
        wanted = RunFilter(**query)
        if wanted.after is not None:
            await self.get_record(wanted.after)
        return await self._reading(lambda connection: read_records(connection, wanted), [])

    async def acquire_lease(self, context_id: str, task_id: str, on_lost: Callable[[], None]) -> bool:
        """Acquire the lease of a conversation for a run, as `EventLog.acquire_lease` says.

        Raises:
            EventLogError: The file cannot be written.
        """
        return await self._writer.take_turn(Turn(context_id, task_id, on_lost))

    async def has_lease(self, context_id: str, task_id: str) -> bool:
        """Return True if this log object still holds the lease, as `EventLog.has_lease` says.

        Raises:
            EventLogError: The file cannot be written.
        """
        return await self._writer.has_turn(context_id, task_id)

    async def release_lease(self, context_id: str, task_id: str) -> None:
        """Release the lease, as `EventLog.release_lease` says.

        Raises:
            EventLogError: The file cannot be written.
        """
        await self._writer.give_turn_back(context_id, task_id)

    async def list_orphaned(
        self, *, submitted_before: float = 30, submitted_limit: int | None = None, submitted_after: str | None = None
    ) -> Sequence[RunRecord]:
        """Return the runs that can continue and have no living owner, as `EventLog.list_orphaned` says.

        Raises:
            EventLogError: The file cannot be read.
        """
        return await self._reading(
            lambda connection: list_orphaned(connection, submitted_before, submitted_limit, submitted_after), []
        )

    async def send_command(self, task_id: str, command: Command) -> int:
        """Store a command for a run, as `EventLog.send_command` says; then it is in the file.

        Raises:
            UnknownRun: The log does not have the run.
            EventLogError: The file cannot be written.
        """
        data = command.to_json()

        def work(connection: sqlite3.Connection) -> int:
            with transaction(connection):
                return put_command(connection, task_id, data)

        number = await self._writer.do(work)
        self._followers.sent(task_id)
        return number

    async def read_commands(self, task_id: str, *, after: int = 0) -> Sequence[tuple[int, Command]]:
        """Return the commands of a run, as `EventLog.read_commands` says.

        Raises:
            UnknownRun: The log does not have the run.
            EventLogError: The file cannot be read.
        """
        return await self._reading_run(task_id, lambda connection: read_commands(connection, task_id, after))

    def watch_commands(self, task_id: str, notify: Callable[[], None]) -> Callable[[], None]:
        """Call `notify` at most 20 ms after a command was sent to a run, as `EventLog.watch_commands` says."""
        stop = self._followers.watch(task_id, notify, self._reader.keep_looking)
        if not self._reader.open:
            # Who cannot look for mail has to read, and gets the error.
            self._reader.submit(lambda connection: None, lambda error: self._followers.wake_all())
        return stop

    async def delete(self, task_id: str) -> None:
        """Remove a run that has ended for good.

        Raises:
            UnknownRun: The log does not have the run.
            EventLogError: The run can still go on, or the file cannot be written.
        """
        await self._writer.remove(lambda connection: remove_run(connection, task_id))

    async def trim(
        self, older_than: float, *, states: Collection[State] = FINISHED, deltas_only: bool = False
    ) -> list[str]:
        """Remove old finished runs, as `EventLog.trim` says.

        Raises:
            EventLogError: The file cannot be written.
        """
        before = round((time.time() - older_than) * 1000)
        wanted = [state for state in states if state in FINISHED]
        return await self._writer.remove(lambda connection: trim(connection, before, wanted, deltas_only))

    @property
    def artifacts(self) -> ArtifactStore:
        """Artifact store in the same file."""
        if self._artifacts is None:
            # Few runs make any.
            from rxloop.storage.sqlite_artifacts import SqliteArtifacts

            self._artifacts = SqliteArtifacts(self.path, fsync=self._fsync)
        return self._artifacts

    async def aclose(self) -> None:
        """Close the file; may be called more than once. A log that is used again opens it again."""
        if self._artifacts is not None:
            await self._artifacts.aclose()
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

    async def _reading_run(self, task_id: str, work: Callable[[sqlite3.Connection], T | None]) -> T:
        """Return what a query finds of a run; None is `UnknownRun`."""
        found = await self._reading(work, None)
        if found is None:
            raise unknown_run(task_id)
        return found

    async def _page(self, task_id: str, deltas: bool, limit: int, after: Place) -> SeenPage:
        """Events of a run after a place."""
        corrupt = self._corrupt
        return await self._reading_run(task_id, lambda each: read_page(each, task_id, after, deltas, limit, corrupt))
