"""Batches and row statements."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TypeVar

from rxloop.errors import ConflictError
from rxloop.protocol.events import Event
from rxloop.storage.sqlite.database import Fsync, errors_of, is_busy, transaction
from rxloop.storage.sqlite.file import OpenFile
from rxloop.storage.sqlite.leases import Turn, Turns
from rxloop.storage.sqlite.rows import append
from rxloop.storage.sqlite.worker import Answer, Work, Worker

T = TypeVar("T")


class _Later(Enum):
    """What `_now` gives where it has done nothing."""

    LATER = "later"


_LATER = _Later.LATER

_FREE_PAGES = 2_000

_FEW = 32
"""Events that are written without the thread."""


@dataclass(frozen=True, slots=True)
class _Batch:
    """Events that wait to be written."""

    task_id: str
    events: tuple[Event, ...]
    expected_seq: int
    writer: str
    written: Answer[None]
    pid: int = field(default_factory=os.getpid)


class Writer:
    """Writes batches of events, takes turns, and does other short work that writes."""

    def __init__(self, path: Path, fsync: Fsync, lease: float) -> None:
        """Make a writer; nothing is opened yet.

        Args:
            path: The file.
            fsync: As for `SqliteEventLog`.
            lease: Seconds after its last beat for which it is taken for alive.
        """
        self.path = path
        self._fsync: Fsync = fsync
        self._file = OpenFile(path, fsync)
        self._turns = Turns(lease)
        self._worker = Worker(self._file.open, "rxloop-log-writer", self._turns.beat, lease / 4)
        self._batches: deque[_Batch] = deque()

    def append_now(self, task_id: str, events: Sequence[Event], expected_seq: int, writer: str) -> bool:
        """Append a batch without the thread; False if that may take long.

        Raises:
            ConflictError: The log holds another last `seq`.
            EventLogError: The file cannot be written.
        """
        if len(events) > _FEW:
            return False

        def work(connection: sqlite3.Connection) -> ConflictError | None:
            with transaction(connection, wait=0):
                return append(connection, task_id, events, expected_seq, writer, self._turns.fenced)

        outcome = self._now(work, len(events))
        if isinstance(outcome, ConflictError):
            raise outcome
        return outcome is not _LATER

    def _now(self, work: Callable[[sqlite3.Connection], T], events: int = 1) -> T | _Later:
        """What short work gives that writes, done without the thread, whose turn costs more than a write of a few rows.

        `_LATER`, and nothing was done, if it would wait: for the disk, for the thread or for another process.

        Args:
            work: Does not wait for another writer.
            events: How much it writes.
        """
        if self._fsync == "full":
            return _LATER
        with self._worker.borrowed() as connection, errors_of(self.path):
            if connection is None:
                return _LATER
            try:
                result = work(connection)
            except sqlite3.OperationalError as error:
                if is_busy(error):
                    return _LATER
                raise
        # First, since a file that is gone holds what the outcome must not be compared with.
        if self._file.written(events):
            self._worker.submit(self._file.move, lambda error: None)
        return result

    async def append(self, task_id: str, events: Sequence[Event], expected_seq: int, writer: str) -> None:
        """Append a batch in the thread, in one transaction with those that wait there.

        Raises:
            ConflictError: As for `append_now`.
            EventLogError: As for `append_now`.
        """
        batch = _Batch(task_id, tuple(events), expected_seq, writer, Answer())
        self._batches.append(batch)
        # The first of several finds the others' batches as well, and theirs find nothing more to do.
        self._worker.submit(self._write, self._fail)
        await batch.written.future

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
            if self._file.written(sum(len(batch.events) for batch in batches)):
                self._file.move(connection)
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

    async def do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """What short work gives that writes, in a transaction of its own."""

        def write(connection: sqlite3.Connection) -> T:
            with errors_of(self.path):
                result = work(connection)
                if self._file.written(1):
                    self._file.move(connection)
                return result

        return await self._worker.do(write)

    async def remove(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """What work gives that removes something, for which the transaction is made; then the file gives room back."""

        def write(connection: sqlite3.Connection) -> T:
            with transaction(connection):
                result = work(connection)
            connection.execute(f"PRAGMA incremental_vacuum({_FREE_PAGES})").fetchall()
            return result

        return await self.do(write)

    def when_there_is_time(self, work: Work, failed: Callable[[Exception], None]) -> None:
        """Do something in the thread for which nobody waits; `failed` gets its error."""
        self._worker.submit(work, failed)

    async def take_turn(self, turn: Turn) -> bool:
        """Take a turn, unless it has a living holder; from then on the thread says that this one is alive."""

        def work(connection: sqlite3.Connection, wait: float | None = None) -> bool:
            taken = self._turns.take(connection, turn, wait)
            self._worker.keep_looking(bool(self._turns.held))
            return taken

        taken = self._now(lambda connection: work(connection, wait=0))
        if taken is not _LATER:
            return taken
        try:
            return await self.do(work)
        except asyncio.CancelledError:
            # The thread may take it all the same.
            self._worker.submit(lambda connection: self._give_back(connection, turn), lambda error: None)
            raise

    async def has_turn(self, context_id: str, task_id: str) -> bool:
        """Whether a turn is still here."""
        return await self.do(lambda connection: self._turns.has(connection, context_id, task_id))

    async def give_turn_back(self, context_id: str, task_id: str) -> None:
        """Give a turn back, if it is here."""
        turn = self._turns.held.get(context_id)
        if turn is None or turn.task_id != task_id:
            return
        if self._now(lambda connection: self._give_back(connection, turn, wait=0)) is _LATER:
            await self.do(lambda connection: self._give_back(connection, turn))

    def _give_back(self, connection: sqlite3.Connection, turn: Turn, wait: float | None = None) -> None:
        try:
            self._turns.give_back(connection, turn, wait)
        finally:
            self._worker.keep_looking(bool(self._turns.held))

    async def aclose(self) -> None:
        """Finish all work and close the file."""
        await self._worker.aclose(last=self._file.close)
