"""What is written to the tables of a SQLite event log, inside a transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from rxloop.errors import ConflictError
from rxloop.eventlog import _database
from rxloop.eventlog._database import begin, roll_back
from rxloop.eventlog.rules import conflict, repeated, state_after
from rxloop.protocol.events import Event, TaskEvent, ends_attempt


@contextmanager
def transaction(connection: sqlite3.Connection, *, wait: float | None = None) -> Generator[None]:
    """All of it or nothing; others may read, and do not write, meanwhile.

    Args:
        connection: The connection.
        wait: Seconds to wait for another writer; None is as long as usual.
    """
    begin(connection, _database.BUSY_SECONDS if wait is None else wait)
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        roll_back(connection)
        raise


def append(
    connection: sqlite3.Connection, task_id: str, events: Sequence[Event], expected_seq: int, writer: str
) -> ConflictError | None:
    """Append a batch; a conflict is given back, so that the other batches of the transaction stand."""
    query = "SELECT number, seq, state, owner FROM runs WHERE task_id = ?"
    number, held, state, last_writer = connection.execute(query, (task_id,)).fetchone() or (None, 0, "submitted", "")
    if held != expected_seq:
        new = repeated(events, held) if writer and writer == last_writer else None
        if number is None or new is None or not _is_there(connection, number, _rows(events[:new])):
            return conflict(task_id, expected_seq, held)
        events = events[new:]
    rows = _rows(events)
    if number is None:
        first = events[0]
        agent_name = first.agent_name if isinstance(first, TaskEvent) else ""
        number = connection.execute(
            "INSERT INTO runs (task_id, context_id, agent_name, state, at_rest, attempt, seq, created, updated, owner)"
            " VALUES (?, ?, ?, 'submitted', 0, 0, 0, ?, 0, '')",
            (task_id, first.context_id, agent_name, first.timestamp),
        ).lastrowid
    # Transient events alone do not move `seq`: the same batch a second time replaces the first.
    connection.executemany(
        "INSERT OR REPLACE INTO events (run, seq, sub, json) VALUES (?, ?, ?, ?)", [(number, *row) for row in rows]
    )
    durable = [event for event in events if event.durable]
    if durable:
        last = durable[-1]
        connection.execute(
            "UPDATE runs SET state = ?, at_rest = ?, attempt = ?, seq = ?, updated = ?, owner = ? WHERE number = ?",
            (state_after(state, durable), ends_attempt(last), last.attempt, last.seq, last.timestamp, writer, number),
        )
    return None


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
        connection.executemany("DELETE FROM runs WHERE number = ?", keys)
