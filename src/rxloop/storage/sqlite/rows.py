"""Row statements."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence

import orjson

from rxloop.errors import ConflictError
from rxloop.pipeline.records import last_end, state_after
from rxloop.protocol.events import Event, TaskEvent, ends_attempt
from rxloop.storage.rules import check_finished, conflict, repeated, unknown_run

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
