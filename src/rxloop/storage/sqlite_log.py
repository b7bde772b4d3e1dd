"""SQLite event log."""

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

from rxloop.errors import EventLogError
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
from rxloop.storage.rules import check_batch, make_unknown_run_error
from rxloop.storage.sqlite import reads
from rxloop.storage.sqlite.database import Fsync, convert_errors, transaction
from rxloop.storage.sqlite.file import OpenFile, check_path
from rxloop.storage.sqlite.followers import Followers
from rxloop.storage.sqlite.leases import Lease, is_orphaned, list_orphaned
from rxloop.storage.sqlite.reads import Corrupt, StatusPage
from rxloop.storage.sqlite.worker import Worker
from rxloop.storage.sqlite.writer import Writer, insert_command, is_large, remove_run, trim
from rxloop.storage.tail import Position, Tail, Tails, follow_events
from rxloop.support.misuse import check_argument, is_number
from rxloop.support.threads import compute

T = TypeVar("T")

log = logging.getLogger("rxloop")


class SqliteEventLog(EventLog):
    """Event log in a SQLite file.

    Each run may be written by one process at a time, and read by many. The file is opened or created on first use.
    Small batches are written directly if nothing blocks; other statements run in threads.

    Example:
        >>> log = SqliteEventLog("runs.db")
        >>> agent = Agent("zai:glm-4.7", log=log)
        >>> for record in await log.list_orphaned():
        ...     await agent.get_run(record.task_id).execute()
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
        """Create a log without opening the file.

        Args:
            path: File path. The parent folder must exist.
            fsync: Durability mode. With `"normal"`, `append` passes each batch to the operating system, so a killed
                process loses nothing. `"full"` also protects recent writes from power loss, but waits for the disk on
                every batch.
            keep_deltas: Store transient events with their timestamps for exact replays.
            corrupt: Handling of unreadable events. With `"refuse"`, reading the run raises an error. With `"skip"`, the
                event is skipped with a warning. Other runs are not affected.
            lease: Lease duration in seconds. The process renews its leases four times per period. After a process is
                killed or frozen for this long, other processes on the same machine may acquire its leases.

        Raises:
            ConfigurationError: If `path`, `fsync`, `corrupt` or `lease` is invalid.
        """
        # Use an absolute path, because the working directory may change before a connection is opened.
        self.path = check_path(path, fsync, "MemoryEventLog for a log in memory")
        check_argument("corrupt", corrupt, corrupt in ("refuse", "skip"), "'refuse' or 'skip'")
        check_argument("lease", lease, is_number(lease) and 0 < lease < inf, "a positive number of seconds")
        self.accepts_empty_owner, self.keeps_deltas, self.lease_seconds = True, keep_deltas, lease
        self._fsync: Fsync = fsync
        self._corrupt: Corrupt = corrupt
        self._artifacts: ArtifactStore | None = None
        self._writer, self._file = Writer(self.path, fsync, lease), OpenFile(self.path, fsync)
        self._followers = Followers(self._file.check)
        self._followed: dict[asyncio.AbstractEventLoop, Tails] = {}
        self._reader = Worker(self._file.open, "rxloop-log-reader", self._followers.poll)

    def __repr__(self) -> str:
        return f"<SqliteEventLog {self.path}>"

    async def append(self, task_id: str, events: Sequence[Event], *, expected_seq: int, writer: str = "") -> None:
        """Append a batch to a run atomically, implementing `EventLog.append`.

        Raises:
            ConflictError: If the last stored `seq` is different, because another writer appends to the run.
            EventLogError: If an event has the wrong number, or the file is not writable.
        """
        if not self.append_now(task_id, events, expected_seq=expected_seq, writer=writer):
            if is_large(events):
                await compute(partial(check_batch, task_id, events, expected_seq, self.keeps_deltas), steps=len(events))
            await self._writer.append(task_id, events, expected_seq, writer)
            self._followers.wake_followers(task_id)

    def append_now(self, task_id: str, events: Sequence[Event], *, expected_seq: int, writer: str = "") -> bool:
        """Append a small batch on the calling thread, or return False if this could block.

        This takes about 0.1 ms, less than switching to the writer thread, because the data only reaches the page cache.
        Large batches and writes that wait for the disk or another process need the thread.

        Raises:
            ConflictError: As in `append`.
            EventLogError: As in `append`.
        """
        if is_large(events):
            # Let the caller use `append`, which validates large batches in a thread.
            return False
        check_batch(task_id, events, expected_seq, self.keeps_deltas)
        if not events:
            return True
        if not self._writer.append_now(task_id, events, expected_seq, writer):
            return False
        self._followers.wake_followers(task_id)
        return True

    async def read(self, task_id: str, *, after_seq: int = 0, deltas: bool = False) -> Sequence[Event]:
        """Return events after `after_seq`, implementing `EventLog.read`.

        Raises:
            UnknownRun: If the run does not exist.
            EventLogError: If reading the file fails.
        """
        return tuple((await self._read_page(task_id, deltas, False, (after_seq + 1, 0))).events)

    async def follow(
        self, task_id: str, *, after_seq: int = 0, deltas: bool = False, until: Until = "attempt"
    ) -> AsyncIterator[Event]:
        """Yield stored events after `after_seq`, then new events from any process.

        Implements `EventLog.follow`. Iteration stops after the final event of an attempt, unless a later attempt has
        already started.

        Raises:
            UnknownRun: If the run does not exist.
            LogRolledBack: If an event that was already yielded is missing, because the file was restored.
            EventLogError: If reading the file fails.
        """
        page = partial(self._read_page, task_id, deltas, True)
        join = partial(self._get_tails().join, task_id)
        async for event in follow_events(task_id, page, join, after_seq, deltas, until):
            yield event

    def _get_tails(self) -> Tails:
        """Return the shared tails of the current event loop."""
        loop = asyncio.get_running_loop()
        for other in [other for other in self._followed if other.is_closed()]:
            del self._followed[other]
        if loop not in self._followed:
            feeds = dict[Tail, asyncio.Task[None]]()

            def start_feed(tail: Tail) -> None:
                feeds[tail] = loop.create_task(self._feed_tail(tail), name=f"rxloop-log-tail-{tail.task_id}")

            def stop_feed(tail: Tail) -> None:
                feeds.pop(tail).cancel()

            self._followed[loop] = Tails(start_feed, stop_feed)
        return self._followed[loop]

    async def _feed_tail(self, tail: Tail) -> None:
        """Read new events for all followers of a run."""
        position = tail.position
        with self._followers.follower(tail.task_id, self._reader.set_polling, deltas=True) as follower:
            try:
                while True:
                    follower.start_read()
                    page = await self._read_page(tail.task_id, True, True, position)
                    tail.add_page(page.events, position)
                    more, position = page.end > position, page.end
                    if not more:
                        tail.set_status(page)
                        # Start polling again, because the log may have been closed and reopened.
                        self._reader.set_polling(True)
                        await follower.wait(page.status)
            except EventLogError as error:
                # Later followers must start with a new tail.
                self._get_tails().forget(tail)
                tail.fail(error)

    async def snapshot(
        self, task_id: str, *, since: Snapshot | None = None, history: HistoryQuery | None = None
    ) -> Snapshot:
        """Return a consistent snapshot of a run and its neighbours, implementing `EventLog.snapshot`.

        Raises:
            UnknownRun: If the run does not exist.
            EventLogError: If reading the file fails.
        """
        corrupt = self._corrupt
        return await self._query_run(task_id, lambda each: reads.read_snapshot(each, task_id, since, history, corrupt))

    async def read_conversation(
        self, conversation: str, *, before: str, after: Mark | None = None, version: int
    ) -> ConversationPage:
        """Return earlier runs of a conversation, implementing `EventLog.read_conversation`.

        Raises:
            EventLogError: If reading the file fails.
        """
        empty = ConversationPage((), Mark(0, 0, 0, ""), from_start=True)
        return await self._query(
            lambda connection: reads.read_conversation(connection, conversation, before, after, version, self._corrupt),
            empty,
        )

    def store_folds(self, conversation: str, folds: Sequence[RunFold], *, version: int) -> None:
        """Store conversation folds in the background, implementing `EventLog.store_folds`."""

        def work(connection: sqlite3.Connection) -> None:
            with transaction(connection):
                reads.store_folds(connection, conversation, folds, version)

        self._writer.run_in_background(work, lambda error: log.debug("Cannot store folds in %s: %s", self.path, error))

    async def get_record(self, task_id: str) -> RunRecord:
        """Return the run record.

        Raises:
            UnknownRun: If the run does not exist.
            EventLogError: If reading the file fails.
        """
        return await self._query_run(task_id, lambda connection: reads.read_record(connection, task_id))

    async def list_runs(self, **query: Unpack[RunQuery]) -> Sequence[RunRecord]:
        """Return the records of matching runs, implementing `EventLog.list_runs`.

        Raises:
            UnknownRun: If the run `after` does not exist.
            ConfigurationError: If `limit` is less than one.
            EventLogError: If reading the file fails.
        """
        criteria = RunFilter(**query)
        if criteria.after is not None:
            await self.get_record(criteria.after)
        return await self._query(lambda connection: reads.read_records(connection, criteria), [])

    async def count_runs(self, state: State) -> int:
        """Return the number of runs in a state, implementing `EventLog.count_runs`."""
        return await self._query(lambda connection: reads.count_records(connection, RunFilter(states=(state,))), 0)

    async def acquire_lease(self, conversation: str, task_id: str, on_lost: Callable[[], None]) -> bool:
        """Acquire the conversation lease for a run, implementing `EventLog.acquire_lease`.

        Raises:
            EventLogError: If writing the file fails.
        """
        return await self._writer.acquire_lease(Lease(conversation, task_id, on_lost))

    async def has_lease(self, conversation: str, task_id: str) -> bool:
        """Return True if this log object still holds the lease, implementing `EventLog.has_lease`."""
        return await self._writer.has_lease(conversation, task_id)

    async def release_lease(self, conversation: str, task_id: str) -> None:
        """Release the lease, implementing `EventLog.release_lease`.

        Raises:
            EventLogError: If writing the file fails.
        """
        await self._writer.release_lease(conversation, task_id)

    async def list_orphaned(
        self, *, submitted_before: float = 30, submitted_limit: int | None = None, submitted_after: str | None = None
    ) -> Sequence[RunRecord]:
        """Return resumable runs without a live owner, implementing `EventLog.list_orphaned`.

        Raises:
            EventLogError: If reading the file fails.
        """
        return await self._query(
            lambda connection: list_orphaned(connection, submitted_before, submitted_limit, submitted_after), []
        )

    async def is_orphaned(self, task_id: str) -> bool:
        """Return True if a working run has no live owner, implementing `EventLog.is_orphaned`."""
        return await self._query(lambda connection: is_orphaned(connection, task_id), False)

    async def send_command(self, task_id: str, command: Command) -> int:
        """Store a command for a run durably, implementing `EventLog.send_command`.

        Raises:
            UnknownRun: If the run does not exist.
            EventLogError: If writing the file fails.
        """
        data = command.to_json()

        def work(connection: sqlite3.Connection) -> int:
            with transaction(connection):
                return insert_command(connection, task_id, data)

        number = await self._writer.run(work)
        self._followers.wake_watchers(task_id)
        return number

    async def read_commands(self, task_id: str, *, after: int = 0) -> Sequence[tuple[int, Command]]:
        """Return commands sent to a run, implementing `EventLog.read_commands`.

        Raises:
            UnknownRun: If the run does not exist.
            EventLogError: If reading the file fails.
        """
        return await self._query_run(task_id, lambda connection: reads.read_commands(connection, task_id, after))

    def watch_commands(self, task_id: str, notify: Callable[[], None]) -> Callable[[], None]:
        """Call `notify` within 20 ms after a new command, implementing `EventLog.watch_commands`."""
        stop = self._followers.watch(task_id, notify, self._reader.set_polling)
        if not self._reader.is_open:
            # If the file cannot be opened, wake the watchers, so that their next read raises the error.
            self._reader.submit(lambda connection: None, lambda error: self._followers.wake_all())
        return stop

    async def delete(self, task_id: str) -> None:
        """Delete a finished run.

        Raises:
            UnknownRun: If the run does not exist.
            EventLogError: If the run is not finished, or writing the file fails.
        """
        await self._writer.remove(lambda connection: remove_run(connection, task_id))

    async def trim(
        self, older_than: float, *, states: Collection[State] = FINISHED, deltas_only: bool = False
    ) -> list[str]:
        """Delete old finished runs, implementing `EventLog.trim`.

        Raises:
            EventLogError: If writing the file fails.
        """
        before = round((time.time() - older_than) * 1000)
        criteria = [state for state in states if state in FINISHED]
        return await self._writer.remove(lambda connection: trim(connection, before, criteria, deltas_only))

    @property
    def artifacts(self) -> ArtifactStore:
        """Artifact store in the same file."""
        if self._artifacts is None:
            # Created lazily, because few runs write artifacts.
            from rxloop.storage.sqlite_artifacts import SqliteArtifacts

            self._artifacts = SqliteArtifacts(self.path, fsync=self._fsync)
        return self._artifacts

    async def aclose(self) -> None:
        """Close the file. This method is idempotent, and later calls reopen the file."""
        if self._artifacts is not None:
            await self._artifacts.aclose()
        await self._writer.aclose()
        await self._reader.aclose()
        self._followers.wake_all()

    async def _query(self, work: Callable[[sqlite3.Connection], T], empty: T) -> T:
        """Return a query result. If the file does not exist yet, return `empty`."""

        def read(connection: sqlite3.Connection) -> T:
            self._file.check()
            with convert_errors(self.path):
                return work(connection)

        if not self._reader.is_open and not self.path.exists():
            return empty
        return await self._reader.run(read)

    async def _query_run(self, task_id: str, work: Callable[[sqlite3.Connection], T | None]) -> T:
        """Return a query result for a run. A result of None raises `UnknownRun`."""
        page = await self._query(work, None)
        if page is None:
            raise make_unknown_run_error(task_id)
        return page

    async def _read_page(self, task_id: str, deltas: bool, paged: bool, after: Position) -> StatusPage:
        """Read a page of events, or all events."""
        corrupt = self._corrupt
        return await self._query_run(
            task_id, lambda each: reads.read_page(each, task_id, after, deltas, paged, corrupt)
        )
