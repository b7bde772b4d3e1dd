"""SQLite writer for event batches, leases and commands."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TypeVar

import orjson

from rxloop.errors import ConflictError
from rxloop.pipeline.records import compute_state, find_creation_time, find_last_end, get_conversation
from rxloop.protocol.events import Event, TaskEvent, ends_attempt
from rxloop.storage.rules import check_finished, count_items, count_repeats, make_conflict_error, make_unknown_run_error
from rxloop.storage.sqlite.database import Fsync, checkpoint, convert_errors, is_busy, transaction
from rxloop.storage.sqlite.file import OpenFile
from rxloop.storage.sqlite.leases import Lease, Leases
from rxloop.storage.sqlite.worker import ThreadFuture, Work, Worker
from rxloop.support.garbage import ignore_large_data, is_processing_large_data

T = TypeVar("T")


class _Later(Enum):
    """Marker for work that `_now` did not execute."""

    LATER = "later"


_LATER = _Later.LATER

_FREE_PAGES = 2_000

_MAX_DIRECT_EVENTS = 32
"""Maximum batch size for writing on the calling thread."""
_MAX_DIRECT_ITEMS = 200
"""The same, including the messages of the first event."""
_MAX_DIRECT_SIZE = 1 << 17
"""The same in bytes. Writing megabytes would block the event loop."""


def is_large(events: Sequence[Event]) -> bool:
    """Return True if a batch must be encoded and written in the thread."""
    return len(events) > _MAX_DIRECT_EVENTS or count_items(events) > _MAX_DIRECT_ITEMS


@dataclass(frozen=True, slots=True)
class _Batch:
    """Batch waiting for the writer thread."""

    task_id: str
    events: tuple[Event, ...]
    expected_seq: int
    writer: str
    written: ThreadFuture[None]
    pid: int = field(default_factory=os.getpid)


class Writer:
    """Writer for event batches, leases and short statements."""

    def __init__(self, path: Path, fsync: Fsync, lease: float) -> None:
        """Create a writer without opening the file.

        Args:
            path: File path.
            fsync: Durability mode, as in `SqliteEventLog`.
            lease: Lease duration in seconds after the last heartbeat.
        """
        self.path = path
        self._fsync: Fsync = fsync
        self._file = OpenFile(path, fsync)
        self._leases = Leases(lease)
        self._worker = Worker(self._file.open, "rxloop-log-writer", self._leases.send_heartbeat, lease / 4)
        self._batches: deque[_Batch] = deque()

    def append_now(self, task_id: str, events: Sequence[Event], expected_seq: int, writer: str) -> bool:
        """Append a batch that is not large on the calling thread, or return False if this could block.

        Raises:
            ConflictError: If the last stored `seq` is different.
            EventLogError: If writing the file fails.
        """
        encoded = _encode(events)
        if sum(len(data) for _, data in encoded) > _MAX_DIRECT_SIZE:
            return False

        def work(connection: sqlite3.Connection) -> ConflictError | None:
            with transaction(connection, wait=0):
                return append(connection, task_id, encoded, expected_seq, writer, self._leases.check_lease)

        outcome = self._write_directly(work, len(events))
        if isinstance(outcome, ConflictError):
            raise outcome
        return outcome is not _LATER

    def _write_directly(self, work: Callable[[sqlite3.Connection], T], events: int = 1) -> T | _Later:
        """Execute a short write on the calling thread, which is faster than switching threads.

        Return `_LATER` without writing if this would wait for the disk, the thread or another process, or if a thread
        processes large data: each SQLite call lets this thread run for five milliseconds or more.

        Args:
            work: Function that does not wait for other writers.
            events: Number of written events.
        """
        if self._fsync == "full" or is_processing_large_data():
            return _LATER
        with self._worker.borrow() as connection, convert_errors(self.path):
            if connection is None:
                return _LATER
            try:
                result = work(connection)
            except sqlite3.OperationalError as error:
                if is_busy(error):
                    return _LATER
                raise
        # Check this before returning the outcome, which is meaningless if the file was replaced.
        if self._file.needs_checkpoint(events):
            self._worker.submit(self._file.checkpoint_wal, lambda error: None)
        return result

    async def append(self, task_id: str, events: Sequence[Event], expected_seq: int, writer: str) -> None:
        """Append a batch in the thread, grouped with other waiting batches.

        Raises:
            ConflictError: As in `append_now`.
            EventLogError: As in `append_now`.
        """
        batch = _Batch(task_id, tuple(events), expected_seq, writer, ThreadFuture())
        self._batches.append(batch)
        # The first job writes all waiting batches, and later jobs find an empty queue.
        try:
            self._worker.submit(self._write, self._fail)
        except Exception:
            # Another job would write the batch later.
            self._batches.remove(batch)
            raise
        await batch.written.future

    def _write(self, connection: sqlite3.Connection) -> None:
        """Write all waiting batches in one transaction."""
        batches, fence = self._take_batches(), self._leases.check_lease
        if not batches:
            return
        try:
            count = sum(len(batch.events) for batch in batches)
            with ignore_large_data(count, is_loaded=True), convert_errors(self.path), transaction(connection):
                outcomes = [
                    append(connection, batch.task_id, _encode(batch.events), batch.expected_seq, batch.writer, fence)
                    for batch in batches
                ]
            if self._file.needs_checkpoint(count):
                self._file.checkpoint_wal(connection)
        except Exception as error:
            for batch in batches:
                batch.written.set_exception(error)
            return
        for batch, outcome in zip(batches, outcomes, strict=True):
            if outcome is None:
                batch.written.set_result(None)
            else:
                batch.written.set_exception(outcome)

    def _fail(self, error: Exception) -> None:
        """Fail all waiting batches, because the file cannot be opened."""
        for batch in self._take_batches():
            batch.written.set_exception(error)

    def _take_batches(self) -> list[_Batch]:
        batches: list[_Batch] = []
        with suppress(IndexError):
            while True:
                batches.append(self._batches.popleft())
        # Batches queued before a fork belong to the parent process.
        return [batch for batch in batches if batch.pid == os.getpid()]

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Execute a short write that creates its own transaction, and return the result."""

        def write(connection: sqlite3.Connection) -> T:
            with convert_errors(self.path):
                result = work(connection)
                if self._file.needs_checkpoint(1):
                    self._file.checkpoint_wal(connection)
                return result

        return await self._worker.run(write)

    async def remove(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Execute a deletion in a transaction, then free unused pages and truncate the WAL, which contains the data."""

        def write(connection: sqlite3.Connection) -> T:
            with transaction(connection):
                result = work(connection)
            connection.execute(f"PRAGMA incremental_vacuum({_FREE_PAGES})").fetchall()
            checkpoint(connection, truncate=True)
            return result

        return await self.run(write)

    def run_in_background(self, work: Work, failed: Callable[[Exception], None]) -> None:
        """Execute background work in the thread. Errors are passed to `failed`."""
        self._worker.submit(work, failed)

    async def acquire_lease(self, lease: Lease) -> bool:
        """Acquire a lease unless another live holder has it, then start sending heartbeats."""

        def work(connection: sqlite3.Connection, wait: float | None = None) -> bool:
            acquired = self._leases.acquire(connection, lease, wait)
            self._worker.set_polling(bool(self._leases.active))
            return acquired

        acquired = self._write_directly(lambda connection: work(connection, wait=0))
        if acquired is not _LATER:
            return acquired
        try:
            return await self.run(work)
        except asyncio.CancelledError:
            # The thread may still acquire the lease after the cancellation.
            self._worker.submit(lambda connection: self._release(connection, lease), lambda error: None)
            raise

    async def has_lease(self, conversation: str, task_id: str) -> bool:
        """Return True if the lease is still held."""
        return await self.run(lambda connection: self._leases.has(connection, conversation, task_id))

    async def release_lease(self, conversation: str, task_id: str) -> None:
        """Release a lease if it is held."""
        lease = self._leases.active.get(conversation)
        if lease is None or lease.task_id != task_id:
            return
        if self._write_directly(lambda connection: self._release(connection, lease, wait=0)) is _LATER:
            await self.run(lambda connection: self._release(connection, lease))

    def _release(self, connection: sqlite3.Connection, lease: Lease, wait: float | None = None) -> None:
        try:
            self._leases.release(connection, lease, wait)
        finally:
            self._worker.set_polling(bool(self._leases.active))

    async def aclose(self) -> None:
        """Finish pending work and close the file."""
        await self._worker.aclose(final_work=self._file.close)


Encoded = list[tuple[Event, bytes]]
"""Events with their JSON."""

Fence = Callable[[str, str, str | None, str | None], ConflictError | None]
"""Function that returns a `Fenced` error if the lease belongs to another holder. Its arguments are the conversation
key, the run ID, the leaseholding run and the holder ID."""

_RUN = """
    SELECT number, seq, state, idle, writer, conversation, leases.task_id, holder_id FROM runs
    LEFT JOIN leases ON leases.context_id = conversation WHERE runs.task_id = ?
"""

_LEASE = "SELECT task_id, holder_id FROM leases WHERE context_id = ?"


def append(
    connection: sqlite3.Connection, task_id: str, encoded: Encoded, expected_seq: int, writer: str, fence: Fence
) -> ConflictError | None:
    """Append a batch. Conflicts are returned, so that other batches in the transaction are still committed."""
    events = [event for event, _ in encoded]
    row = connection.execute(_RUN, (task_id,)).fetchone()
    if row is None:
        conversation = get_conversation(events[0])
        lease = connection.execute(_LEASE, (conversation,)).fetchone() or (None, None)
        row = (None, 0, "submitted", 0, "", conversation, *lease)
    number, last_seq, state, idle, last_writer, conversation, run, holder = row
    if fenced := fence(conversation, task_id, run, holder):
        return fenced
    if last_seq != expected_seq:
        new = count_repeats(events, last_seq) if writer and writer == last_writer else None
        if number is None or new is None or not _are_stored(connection, number, encoded[:new]):
            return make_conflict_error(task_id, expected_seq, last_seq)
        encoded, events = encoded[new:], events[new:]
    if number is None:
        number = _insert_run(connection, task_id, events)
    # Transient events do not change `seq`, so a repeated batch replaces the first one.
    connection.executemany(
        "INSERT OR REPLACE INTO events (run, seq, sub, json) VALUES (?, ?, ?, ?)",
        [(number, event.seq, event.sub, data) for event, data in encoded],
    )
    durable = [event for event in events if event.durable]
    if durable:
        last = durable[-1]
        connection.execute(
            "UPDATE runs SET attempt = ?, seq = ?, updated = ?, writer = ? WHERE number = ?",
            (last.attempt, last.seq, last.timestamp, writer, number),
        )
        now = compute_state(state, durable), ends_attempt(last)
        if now != (state, idle):
            # Updated separately, because these columns rarely change and are indexed.
            connection.execute("UPDATE runs SET state = ?, idle = ? WHERE number = ?", (*now, number))
    if final := find_last_end(durable):
        usage, error = (None if part is None else part.model_dump_json() for part in (final.usage, final.error))
        connection.execute("UPDATE runs SET usage = ?, error = ? WHERE number = ?", (usage, error, number))
    return None


def _insert_run(connection: sqlite3.Connection, task_id: str, events: Sequence[Event]) -> int | None:
    first = events[0]
    task = first if isinstance(first, TaskEvent) else None
    return connection.execute(
        "INSERT INTO runs (task_id, context_id, agent_name, state, idle, attempt, seq, created, updated, writer,"
        " model, owner, metadata, inserted_at) VALUES (?, ?, ?, 'submitted', 0, 0, 0, ?, 0, '', ?, ?, ?, ?)",
        (
            *(task_id, first.context_id, task.agent_name if task else "", find_creation_time(events)),
            *(task.model if task else "", task.owner if task else None),
            orjson.dumps(first.metadata, option=orjson.OPT_SORT_KEYS).decode() if first.metadata else None,
            time.monotonic(),
        ),
    ).lastrowid


def _encode(events: Sequence[Event]) -> Encoded:
    return [(event, event.to_json()) for event in events]


def _are_stored(connection: sqlite3.Connection, number: int, encoded: Encoded) -> bool:
    """Return True if identical rows already exist from an earlier write by the same writer."""
    query = "SELECT json FROM events WHERE run = ? AND seq = ? AND sub = ?"
    rows = (((number, event.seq, event.sub), data) for event, data in encoded)
    return all(connection.execute(query, key).fetchone() == (data,) for key, data in rows)


def remove(connection: sqlite3.Connection, numbers: Sequence[int], deltas_only: bool = False) -> None:
    """Delete runs, or only their transient events."""
    keys = [(number,) for number in numbers]
    connection.executemany(f"DELETE FROM events WHERE run = ?{' AND sub > 0' if deltas_only else ''}", keys)
    if not deltas_only:
        connection.executemany("DELETE FROM commands WHERE run = ?", keys)
        # Named parameters avoid a deprecation warning in some releases of Python 3.12.
        connection.executemany(
            "DELETE FROM folds WHERE context_id = (SELECT conversation FROM runs WHERE number = :run)"
            " AND :run BETWEEN first AND last",
            [{"run": number} for number in numbers],
        )
        connection.executemany("DELETE FROM runs WHERE number = ?", keys)


def remove_run(connection: sqlite3.Connection, task_id: str) -> None:
    """Delete a finished run.

    Raises:
        UnknownRun: If the run does not exist.
        EventLogError: If the run is not finished.
    """
    row = connection.execute("SELECT number, state FROM runs WHERE task_id = ?", (task_id,)).fetchone()
    if row is None:
        raise make_unknown_run_error(task_id)
    check_finished(task_id, row[1])
    remove(connection, [row[0]])


def trim(connection: sqlite3.Connection, before: int, states: Sequence[str], deltas_only: bool) -> list[str]:
    """Delete old runs in the given states, or only their transient events, and return the run IDs."""
    marks = ", ".join("?" * len(states))
    having = " AND EXISTS (SELECT 1 FROM events WHERE run = number AND sub > 0)" if deltas_only else ""
    query = f"SELECT number, task_id FROM runs WHERE updated < ? AND state IN ({marks}){having} ORDER BY number"
    rows = connection.execute(query, (before, *states)).fetchall()
    remove(connection, [number for number, _ in rows], deltas_only)
    return [task_id for _, task_id in rows]


def insert_command(connection: sqlite3.Connection, task_id: str, data: bytes) -> int:
    """Store a command and return its number.

    Raises:
        UnknownRun: If the run does not exist.
    """
    query = "INSERT INTO commands (run, json) SELECT number, ? FROM runs WHERE task_id = ? RETURNING number"
    row = connection.execute(query, (data, task_id)).fetchone()
    if row is None:
        raise make_unknown_run_error(task_id)
    return row[0]
