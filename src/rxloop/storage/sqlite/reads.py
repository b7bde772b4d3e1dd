"""SQLite read queries."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from rxloop.errors import EventLogError
from rxloop.pipeline.records import (
    FINISHED,
    NOTHING_DONE,
    ConversationPage,
    HistoryQuery,
    Mark,
    RunEvents,
    RunFilter,
    RunRecord,
    Snapshot,
    as_json,
    is_finished,
)
from rxloop.protocol.commands import Command
from rxloop.protocol.events import Event
from rxloop.state.run_state import RunFold
from rxloop.storage.sql_rows import (
    FOLD,
    RECORD,
    FoldRow,
    RunRow,
    checksum,
    cover_runs,
    extend_mark,
    to_commands,
    to_record,
)
from rxloop.storage.sqlite.followers import STANDING, Standing
from rxloop.storage.tail import Page, Place

log = logging.getLogger("rxloop")

Corrupt = Literal["refuse", "skip"]


@dataclass(frozen=True, slots=True)
class SeenPage(Page):
    """Page with a standing, which is used to detect new events."""

    standing: Standing


def read_page(
    connection: sqlite3.Connection, task_id: str, after: Place, deltas: bool, limit: int, corrupt: Corrupt
) -> SeenPage | None:
    """Return events starting at a position, including its durable event, or None for an unknown run."""
    with one_moment(connection):
        query = f"SELECT number, state, error, {STANDING} FROM runs WHERE task_id = ?"
        found = connection.execute(query, (task_id,)).fetchone()
        if found is None:
            return None
        number, state, error, *standing = found
        query = "SELECT ?, seq, sub, json FROM events WHERE run = ? AND (seq, sub) >= (?, 0)" + (
            " AND (sub = 0 OR (seq, sub) > (?, ?))" if deltas else " AND sub = 0"
        )
        place = (after[0], *after) if deltas else after[:1]
        rows = connection.execute(f"{query} ORDER BY seq, sub LIMIT ?", (task_id, number, *place, limit)).fetchall()
    end = max(rows[-1][1:3], after) if rows else after
    seq, at_rest, sub = standing
    finished = is_finished(state, error)
    return SeenPage(parsed(rows, corrupt), len(rows), end, seq, bool(at_rest), finished, number, (seq, at_rest, sub))


def read_record(connection: sqlite3.Connection, task_id: str) -> RunRecord | None:
    """Return the run record, or None for an unknown run."""
    row = connection.execute(f"SELECT {RECORD} FROM runs WHERE task_id = ?", (task_id,)).fetchone()
    return None if row is None else to_record(row)


def read_records(connection: sqlite3.Connection, wanted: RunFilter) -> list[RunRecord]:
    """Return a page of matching records."""
    where, values = _condition(wanted)
    order, beyond = ("DESC", "<") if wanted.newest_first else ("ASC", ">")
    if wanted.after is not None:
        where = f"{where} AND number {beyond} (SELECT number FROM runs WHERE task_id = ?)"
        values = [*values, wanted.after]
    query = f"SELECT {RECORD} FROM runs WHERE {where} ORDER BY number {order} LIMIT ?"
    limit = -1 if wanted.limit is None else wanted.limit
    return [to_record(row) for row in connection.execute(query, (*values, limit))]


def _condition(wanted: RunFilter) -> tuple[str, list[Any]]:
    """Return the SQL condition for a filter, with its parameters."""
    where, values = ["1"], list[Any]()
    for column, value in (
        ("context_id = ?", wanted.context_id),
        ("agent_name = ?", wanted.agent_name),
        ("owner = ?", wanted.owner),
        ("created >= ?", wanted.since),
        ("created < ?", wanted.until),
    ):
        if value is not None:
            where.append(column)
            values.append(value)
    if wanted.states is not None:
        where.append(f"state IN ({', '.join('?' * len(wanted.states))})")
        values += wanted.states
    if wanted.unfinished or (wanted.states is not None and not {*wanted.states} & {*FINISHED}):
        # The partial index requires this exact condition.
        where.append("state NOT IN ('completed', 'failed')")
    for key, value in (wanted.metadata or {}).items():
        where.append(
            "EXISTS (SELECT 1 FROM json_each(metadata) AS has, json_each(?) AS wanted"
            " WHERE has.key = ? AND has.type = wanted.type AND has.value IS wanted.value)"
        )
        values += [as_json([value]), key]
    met = " AND ".join(where)
    if wanted.latest_only:
        # Unqualified columns in the subquery refer to `later`.
        later = "later.context_id = runs.context_id AND later.number > runs.number"
        return f"{met} AND NOT EXISTS (SELECT 1 FROM runs AS later WHERE {later} AND {met})", values * 2
    return met, values


def read_commands(connection: sqlite3.Connection, task_id: str, after: int) -> list[tuple[int, Command]] | None:
    """Return commands after a number, or None for an unknown run."""
    with one_moment(connection):
        found = connection.execute("SELECT number FROM runs WHERE task_id = ?", (task_id,)).fetchone()
        if found is None:
            return None
        return commands_of(connection, task_id, found[0], after)


def commands_of(connection: sqlite3.Connection, task_id: str, run: int, after: int) -> list[tuple[int, Command]]:
    """Return commands after a number, using the row number of the run."""
    rows = connection.execute(
        "SELECT number, json FROM mail WHERE run = ? AND number > ? ORDER BY number", (run, after)
    )
    return to_commands(task_id, rows.fetchall())


Condition = tuple[str, tuple[int, ...]]


def span(
    connection: sqlite3.Connection, context_id: str, before: str, after: Mark | None
) -> tuple[int | None, Condition]:
    """Return the last run number to skip, or None, and the end condition for a conversation range."""
    end = _number(connection, context_id, before)
    until: Condition = ("", ()) if end is None else (" AND number < ?", (end,))
    begin = None if after is None else _number(connection, context_id, after.last)
    if begin is not None and _mark(connection, context_id, " AND number <= ?", (begin,)) != after:
        begin = None
    if begin is not None and end is not None and begin >= end:
        begin = None
    return begin, until


def _number(connection: sqlite3.Connection, context_id: str, task_id: str) -> int | None:
    query = "SELECT number FROM runs WHERE task_id = ? AND context_id = ?"
    found = connection.execute(query, (task_id, context_id)).fetchone()
    return None if found is None else found[0]


def _mark(connection: sqlite3.Connection, context_id: str, where: str, values: tuple[int, ...]) -> Mark:
    # SQLite takes the bare column `task_id` from the row with max(number).
    query = f"SELECT count(*), sum(seq), sum(updated), max(number), task_id FROM runs WHERE context_id = ?{where}"
    runs, events, updated, _, last = connection.execute(query, (context_id, *values)).fetchone()
    return Mark(runs, events or 0, updated or 0, last or "")


def parsed(rows: Iterable[tuple[str, int, int, bytes]], corrupt: Corrupt) -> list[Event]:
    """Parse event rows. Unreadable events raise an error, or are skipped with a warning."""
    events: list[Event] = []
    for task_id, seq, _, data in rows:
        try:
            events.append(Event.from_json(data))
        except Exception as error:
            found = f"the event {seq} of the run {task_id} cannot be read: {error}"
            if corrupt == "refuse":
                raise EventLogError(
                    f'{found}; SqliteEventLog(..., corrupt="skip") and the command with --skip-corrupt read the run '
                    "without it, and all other runs are as they were",
                    retryable=False,
                ) from error
            log.warning("%s; it is left out", found)
    return events


@contextmanager
def one_moment(connection: sqlite3.Connection) -> Generator[None]:
    """Run the block in a read transaction with a consistent view."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")


def read_conversation(
    connection: sqlite3.Connection, context_id: str, before: str, after: Mark | None, version: int, corrupt: Corrupt
) -> ConversationPage:
    """Return earlier runs of a conversation. With a valid mark, only runs after the mark are returned."""
    with one_moment(connection):
        return conversation_page(connection, context_id, before, after, version, corrupt)


def conversation_page(
    connection: sqlite3.Connection, context_id: str, before: str, after: Mark | None, version: int, corrupt: Corrupt
) -> ConversationPage:
    """Return a conversation page within the current transaction."""
    begin, until = span(connection, context_id, before, after)
    place = (context_id, -1 if begin is None else begin)
    query = f"SELECT number, task_id, seq, updated, at_rest FROM runs WHERE context_id = ? AND number > ?{until[0]}"
    runs = [RunRow(*row) for row in connection.execute(f"{query} ORDER BY number", (*place, *until[1]))]
    query = f"SELECT first, {FOLD} FROM folds WHERE context_id = ? AND first > ? AND version = ?"
    folds: dict[int, FoldRow] = {row[0]: row[1:] for row in connection.execute(query, (*place, version))}
    parts: list[RunFold | RunEvents] = []
    for run, fold in cover_runs(runs, folds):
        if fold is None:
            query = "SELECT ?, seq, sub, json FROM events WHERE run = ? AND sub = 0 ORDER BY seq"
            events = parsed(connection.execute(query, (run.task_id, run.number)), corrupt)
            parts.append(RunEvents(run.task_id, bool(run.at_rest) and len(events) == run.seq, events))
        else:
            parts.append(fold)
    return ConversationPage(parts, extend_mark(None if begin is None else after, runs), whole=begin is None)


def store_folds(connection: sqlite3.Connection, context_id: str, folds: Sequence[RunFold], version: int) -> None:
    """Store folds whose runs are unchanged, replacing overlapping folds."""
    for fold in folds:
        query = "SELECT number FROM runs WHERE task_id = ? AND context_id = ?"
        ends = [connection.execute(query, (run, context_id)).fetchone() for run in (fold.first, fold.last)]
        if None in ends:
            continue
        first, last = (end[0] for end in ends)
        query = "SELECT count(*), sum(seq) FROM runs WHERE context_id = ? AND number BETWEEN ? AND ?"
        if connection.execute(query, (context_id, first, last)).fetchone() != (fold.runs, fold.events):
            continue
        query = "DELETE FROM folds WHERE context_id = ? AND first <= ? AND last >= ?"
        connection.execute(query, (context_id, last, first))
        connection.execute(
            "INSERT INTO folds (context_id, first, last, runs, events, version, crc, summary, messages)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(context_id, first, last, fold.runs, fold.events),
                *(version, checksum(fold.summary, fold.messages), fold.summary, fold.messages),
            ),
        )


_RUN = f"SELECT number, {RECORD} FROM runs WHERE task_id = ?"

_EVENTS = "SELECT ?, seq, sub, json FROM events WHERE run = ? AND sub = 0 AND seq > ? ORDER BY seq"

_EARLIER = f"""
    SELECT {RECORD} FROM runs WHERE context_id = ? AND number < ? AND state IN ('input-required', 'auth-required')
    AND state NOT IN ('completed', 'failed') ORDER BY number DESC
"""

_LATER = f"""
    SELECT {RECORD} FROM runs WHERE context_id = ? AND number > ? AND state <> 'submitted'
    AND NOT (state IN ('canceled', 'failed') AND seq <= {NOTHING_DONE}) ORDER BY number LIMIT 1
"""


def read_snapshot(
    connection: sqlite3.Connection,
    task_id: str,
    since: Snapshot | None,
    history: HistoryQuery | None,
    corrupt: Corrupt,
) -> Snapshot | None:
    """Return a consistent run snapshot, or None for an unknown run."""
    known = since.events if since is not None else ()
    mail = since.state.last_command if since is not None else 0
    with one_moment(connection):
        row = connection.execute(_RUN, (task_id,)).fetchone()
        if row is None:
            return None
        number, record = row[0], to_record(row[1:])
        last = known[-1].seq if known else 0
        rows = connection.execute(_EVENTS, (task_id, number, last)).fetchall()
        commands = commands_of(connection, task_id, number, mail)
        place = (record.context_id, number)
        waiting = [to_record(each) for each in connection.execute(_EARLIER, place)]
        later = _first(connection, place)
        page = None
        if history is not None:
            after, version = history
            page = conversation_page(connection, record.context_id, task_id, after, version, corrupt)
    return Snapshot(record, [*known, *parsed(rows, corrupt)], commands, waiting, later, page)


def _first(connection: sqlite3.Connection, place: tuple[str, int]) -> RunRecord | None:
    row = connection.execute(_LATER, place).fetchone()
    return None if row is None else to_record(row)
