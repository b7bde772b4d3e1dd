"""Batches and row statements."""

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
from rxloop.pipeline.records import last_end, state_after
from rxloop.protocol.events import Event, TaskEvent, ends_attempt
from rxloop.storage.rules import check_finished, conflict, repeated, unknown_run
from rxloop.storage.sqlite.database import Fsync, errors_of, is_busy, transaction
from rxloop.storage.sqlite.file import OpenFile
from rxloop.storage.sqlite.leases import Turn, Turns
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


Fence = Callable[[str, str, str | None, str | None], ConflictError | None]
"""Says why nothing may be appended to a run, by its conversation and its id, and by the run that has the turn of the
conversation, with its holder."""

_FOUND = """
    SELECT number, seq, state, at_rest, writer, runs.context_id, turns.task_id, holder FROM runs
    LEFT JOIN turns USING (context_id) WHERE runs.task_id = ?
"""

_TURN = "SELECT task_id, holder FROM turns WHERE context_id = ?"


def append(
    connection: sqlite3.Connection, task_id: str, events: Sequence[Event], expected_seq: int, writer: str, fence: Fence
) -> ConflictError | None:
    """Append a batch; a conflict is given back, so that the other batches of the transaction stand."""
    found = connection.execute(_FOUND, (task_id,)).fetchone()
    if found is None:
        context_id = events[0].context_id
        turn = connection.execute(_TURN, (context_id,)).fetchone() or (None, None)
        found = (None, 0, "submitted", 0, "", context_id, *turn)
    number, held, state, at_rest, last_writer, context_id, run, holder = found
    if fenced := fence(context_id, task_id, run, holder):
        return fenced
    if held != expected_seq:
        new = repeated(events, held) if writer and writer == last_writer else None
        if number is None or new is None or not _is_there(connection, number, _rows(events[:new])):
            return conflict(task_id, expected_seq, held)
        events = events[new:]
    rows = _rows(events)
    if number is None:
        number = _new_run(connection, task_id, events[0])
    # Transient events alone do not move `seq`: the same batch a second time replaces the first.
    connection.executemany(
        "INSERT OR REPLACE INTO events (run, seq, sub, json) VALUES (?, ?, ?, ?)", [(number, *row) for row in rows]
    )
    durable = [event for event in events if event.durable]
    if durable:
        last = durable[-1]
        connection.execute(
            "UPDATE runs SET attempt = ?, seq = ?, updated = ?, writer = ? WHERE number = ?",
            (last.attempt, last.seq, last.timestamp, writer, number),
        )
        now = state_after(state, durable), ends_attempt(last)
        if now != (state, at_rest):
            # By themselves, since they are seldom others and there are indexes of them, which are pages to be written.
            connection.execute("UPDATE runs SET state = ?, at_rest = ? WHERE number = ?", (*now, number))
    if final := last_end(durable):
        usage, error = (None if part is None else part.model_dump_json() for part in (final.usage, final.error))
        connection.execute("UPDATE runs SET usage = ?, error = ? WHERE number = ?", (usage, error, number))
    return None


def _new_run(connection: sqlite3.Connection, task_id: str, first: Event) -> int | None:
    task = first if isinstance(first, TaskEvent) else None
    return connection.execute(
        "INSERT INTO runs (task_id, context_id, agent_name, state, at_rest, attempt, seq, created, updated, writer,"
        " model, owner, metadata, arrived) VALUES (?, ?, ?, 'submitted', 0, 0, 0, ?, 0, '', ?, ?, ?, ?)",
        (
            *(task_id, first.context_id, task.agent_name if task else "", first.timestamp),
            *(task.model if task else "", task.owner if task else None),
            orjson.dumps(first.metadata, option=orjson.OPT_SORT_KEYS).decode() if first.metadata else None,
            time.monotonic(),
        ),
    ).lastrowid


def _rows(events: Sequence[Event]) -> list[tuple[int, int, bytes]]:
    return [(event.seq, event.sub, event.to_json()) for event in events]


def _is_there(connection: sqlite3.Connection, number: int, rows: Sequence[tuple[int, int, bytes]]) -> bool:
    """Whether exactly these rows are in the log already: their writer did not hear of it."""
    query = "SELECT json FROM events WHERE run = ? AND seq = ? AND sub = ?"
    return all(connection.execute(query, (number, seq, sub)).fetchone() == (json,) for seq, sub, json in rows)


def remove(connection: sqlite3.Connection, numbers: Sequence[int], deltas_only: bool = False) -> None:
    """Remove runs, or only their transient events."""
    keys = [(number,) for number in numbers]
    connection.executemany(f"DELETE FROM events WHERE run = ?{' AND sub > 0' if deltas_only else ''}", keys)
    if not deltas_only:
        connection.executemany("DELETE FROM mail WHERE run = ?", keys)
        # Named: some releases of Python 3.12 warn of numbered parameters.
        connection.executemany(
            "DELETE FROM folds WHERE context_id = (SELECT context_id FROM runs WHERE number = :run)"
            " AND :run BETWEEN first AND last",
            [{"run": number} for number in numbers],
        )
        connection.executemany("DELETE FROM runs WHERE number = ?", keys)


def remove_run(connection: sqlite3.Connection, task_id: str) -> None:
    """Remove a run that has ended for good.

    Raises:
        UnknownRun: The log holds no such run.
        EventLogError: It can still go on.
    """
    found = connection.execute("SELECT number, state FROM runs WHERE task_id = ?", (task_id,)).fetchone()
    if found is None:
        raise unknown_run(task_id)
    check_finished(task_id, found[1])
    remove(connection, [found[0]])


def trim(connection: sqlite3.Connection, before: int, states: Sequence[str], deltas_only: bool) -> list[str]:
    """Remove the runs in these states that are older than that, or their transient events; give their ids."""
    marks = ", ".join("?" * len(states))
    having = " AND EXISTS (SELECT 1 FROM events WHERE run = number AND sub > 0)" if deltas_only else ""
    query = f"SELECT number, task_id FROM runs WHERE updated < ? AND state IN ({marks}){having} ORDER BY number"
    found = connection.execute(query, (before, *states)).fetchall()
    remove(connection, [number for number, _ in found], deltas_only)
    return [task_id for _, task_id in found]


def put_command(connection: sqlite3.Connection, task_id: str, letter: bytes) -> int:
    """Put a letter into the mail of a run; give its number.

    Raises:
        UnknownRun: The log holds no such run.
    """
    query = "INSERT INTO mail (run, json) SELECT number, ? FROM runs WHERE task_id = ? RETURNING number"
    found = connection.execute(query, (letter, task_id)).fetchone()
    if found is None:
        raise unknown_run(task_id)
    return found[0]
