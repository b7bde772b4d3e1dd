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
    IDLE_RUN_EVENTS,
    ConversationPage,
    HistoryQuery,
    Mark,
    RunEvents,
    RunFilter,
    RunRecord,
    Snapshot,
    is_finished,
)
from rxloop.protocol.commands import Command
from rxloop.protocol.events import Event
from rxloop.protocol.json_data import canonical_json
from rxloop.state.run_state import RunFold
from rxloop.storage.rules import find_owner_conditions
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
from rxloop.storage.sqlite.followers import STATUS_COLUMNS, RunStatus
from rxloop.storage.tail import PAGE_BYTES, PAGE_SIZE, Page, Position
from rxloop.support.garbage import ignore_large_data

log = logging.getLogger("rxloop")

Corrupt = Literal["refuse", "skip"]


@dataclass(frozen=True, slots=True)
class StatusPage(Page):
    """Page with a run status, which is used to detect new events."""

    status: RunStatus


def read_page(
    connection: sqlite3.Connection, task_id: str, after: Position, deltas: bool, paged: bool, corrupt: Corrupt
) -> StatusPage | None:
    """Return events starting at a position, including its durable event, or None for an unknown run.

    Args:
        connection: Database connection.
        task_id: Run ID.
        after: Start position.
        deltas: Include transient events.
        paged: Limit the size of the page. Otherwise, all events are returned.
        corrupt: Handling of unreadable events.
    """
    with read_transaction(connection):
        query = f"SELECT number, state, error, {STATUS_COLUMNS} FROM runs WHERE task_id = ?"
        row = connection.execute(query, (task_id,)).fetchone()
        if row is None:
            return None
        number, state, error, *status = row
        query = "SELECT ?, seq, sub, json FROM events WHERE run = ? AND (seq, sub) >= (?, 0)" + (
            " AND (sub = 0 OR (seq, sub) > (?, ?))" if deltas else " AND sub = 0"
        )
        position = (after[0], *after) if deltas else after[:1]
        cursor = connection.execute(f"{query} ORDER BY seq, sub", (task_id, number, *position))
        rows, is_full = _fetch_page(cursor, after) if paged else (_fetch_rows(cursor), False)
        # An unfinished statement would keep the transaction open.
        cursor.close()
    end = max(rows[-1][1:3], after) if rows else after
    seq, idle, sub = status
    finished = is_finished(state, error)
    return StatusPage(parse_events(rows, corrupt), is_full, end, seq, bool(idle), finished, number, (seq, idle, sub))


_EventRow = tuple[str, int, int, bytes]


def _fetch_rows(cursor: sqlite3.Cursor) -> list[_EventRow]:
    rows = cursor.fetchmany(PAGE_SIZE)
    with ignore_large_data(len(rows)):
        return [*rows, *cursor.fetchall()]


def _fetch_page(rows: Iterable[_EventRow], after: Position) -> tuple[list[_EventRow], bool]:
    """Return the rows of a page, and True if it has ended because of its size."""
    page: list[_EventRow] = []
    size = 0
    for row in rows:
        page.append(row)
        size += len(row[3]) if row[1:3] > after else 0
        if size >= PAGE_BYTES or len(page) == PAGE_SIZE:
            return page, True
    return page, False


def read_record(connection: sqlite3.Connection, task_id: str) -> RunRecord | None:
    """Return the run record, or None for an unknown run."""
    row = connection.execute(f"SELECT {RECORD} FROM runs WHERE task_id = ?", (task_id,)).fetchone()
    return None if row is None else to_record(row)


def read_records(connection: sqlite3.Connection, criteria: RunFilter) -> list[RunRecord]:
    """Return a page of matching records."""
    where, values = _build_condition(criteria)
    order, comparison = ("DESC", "<") if criteria.newest_first else ("ASC", ">")
    if criteria.after is not None:
        where = f"{where} AND number {comparison} (SELECT number FROM runs WHERE task_id = ?)"
        values = [*values, criteria.after]
    query = f"SELECT {RECORD} FROM runs WHERE {where} ORDER BY number {order} LIMIT ?"
    limit = -1 if criteria.limit is None else criteria.limit
    return [to_record(row) for row in connection.execute(query, (*values, limit))]


def count_records(connection: sqlite3.Connection, criteria: RunFilter) -> int:
    """Return the number of matching records."""
    where, values = _build_condition(criteria)
    count: int = connection.execute(f"SELECT count(*) FROM runs WHERE {where}", values).fetchone()[0]
    return count


def _build_condition(criteria: RunFilter) -> tuple[str, list[Any]]:
    """Return the SQL condition for a filter, with its parameters."""
    where, values = ["1"], list[Any]()
    for column, value in (
        *find_owner_conditions(criteria, "?"),
        ("agent_name = ?", criteria.agent_name),
        ("created >= ?", criteria.since),
        ("created < ?", criteria.until),
    ):
        if value is not None:
            where.append(column)
            values.append(value)
    if criteria.states is not None:
        where.append(f"state IN ({', '.join('?' * len(criteria.states))})")
        values += criteria.states
    if criteria.unfinished or (criteria.states is not None and not {*criteria.states} & {*FINISHED}):
        # The partial index requires this exact condition.
        where.append("state NOT IN ('completed', 'failed')")
    for key, value in (criteria.metadata or {}).items():
        where.append(
            "EXISTS (SELECT 1 FROM json_each(metadata) AS has, json_each(?) AS wanted"
            " WHERE has.key = ? AND has.type = wanted.type AND has.value IS wanted.value)"
        )
        values += [canonical_json([value]), key]
    condition = " AND ".join(where)
    if criteria.latest_only:
        # Unqualified columns in the subquery refer to `later`.
        later = "later.conversation = runs.conversation AND later.number > runs.number"
        return f"{condition} AND NOT EXISTS (SELECT 1 FROM runs AS later WHERE {later} AND {condition})", values * 2
    return condition, values


def read_commands(connection: sqlite3.Connection, task_id: str, after: int) -> list[tuple[int, Command]] | None:
    """Return commands after a number, or None for an unknown run."""
    with read_transaction(connection):
        row = connection.execute("SELECT number FROM runs WHERE task_id = ?", (task_id,)).fetchone()
        if row is None:
            return None
        return select_commands(connection, task_id, row[0], after)


def select_commands(connection: sqlite3.Connection, task_id: str, run: int, after: int) -> list[tuple[int, Command]]:
    """Return commands after a number, using the row number of the run."""
    rows = connection.execute(
        "SELECT number, json FROM commands WHERE run = ? AND number > ? ORDER BY number", (run, after)
    )
    return to_commands(task_id, rows.fetchall())


Condition = tuple[str, tuple[int, ...]]


def find_range(
    connection: sqlite3.Connection, conversation: str, before: str, after: Mark | None
) -> tuple[int | None, Condition]:
    """Return the last run number to skip, or None, and the end condition for a conversation range."""
    end = _find_number(connection, conversation, before)
    until: Condition = ("", ()) if end is None else (" AND number < ?", (end,))
    begin = None if after is None else _find_number(connection, conversation, after.last)
    if begin is not None and _read_mark(connection, conversation, " AND number <= ?", (begin,)) != after:
        begin = None
    if begin is not None and end is not None and begin >= end:
        begin = None
    return begin, until


def _find_number(connection: sqlite3.Connection, conversation: str, task_id: str) -> int | None:
    query = "SELECT number FROM runs WHERE task_id = ? AND conversation = ?"
    row = connection.execute(query, (task_id, conversation)).fetchone()
    return None if row is None else row[0]


def _read_mark(connection: sqlite3.Connection, conversation: str, where: str, values: tuple[int, ...]) -> Mark:
    # SQLite takes the bare column `task_id` from the row with max(number).
    query = f"SELECT count(*), sum(seq), sum(updated), max(number), task_id FROM runs WHERE conversation = ?{where}"
    runs, events, updated, _, last = connection.execute(query, (conversation, *values)).fetchone()
    return Mark(runs, events or 0, updated or 0, last or "")


def parse_events(rows: Sequence[_EventRow], corrupt: Corrupt) -> list[Event]:
    """Parse event rows. Unreadable events raise an error, or are skipped with a warning."""
    events: list[Event] = []
    with ignore_large_data(len(rows)):
        for task_id, seq, _, data in rows:
            try:
                events.append(Event.from_json(data))
            except Exception as error:
                message = f"Cannot read event {seq} of run {task_id}: {error}"
                if corrupt == "refuse":
                    raise EventLogError(
                        f'{message}. To skip the event, use SqliteEventLog(..., corrupt="skip") or the option '
                        "--skip-corrupt. Other runs are not affected.",
                        retryable=False,
                    ) from error
                log.warning("%s. Skipping the event", message)
    return events


@contextmanager
def read_transaction(connection: sqlite3.Connection) -> Generator[None]:
    """Run the block in a read transaction with a consistent view."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")


def read_conversation(
    connection: sqlite3.Connection, conversation: str, before: str, after: Mark | None, version: int, corrupt: Corrupt
) -> ConversationPage:
    """Return earlier runs of a conversation. With a valid mark, only runs after the mark are returned."""
    with read_transaction(connection):
        return read_conversation_page(connection, conversation, before, after, version, corrupt)


def read_conversation_page(
    connection: sqlite3.Connection, conversation: str, before: str, after: Mark | None, version: int, corrupt: Corrupt
) -> ConversationPage:
    """Return a conversation page within the current transaction."""
    begin, until = find_range(connection, conversation, before, after)
    position = (conversation, -1 if begin is None else begin)
    query = f"SELECT number, task_id, seq, updated, idle FROM runs WHERE conversation = ? AND number > ?{until[0]}"
    runs = [RunRow(*row) for row in connection.execute(f"{query} ORDER BY number", (*position, *until[1]))]
    query = f"SELECT first, {FOLD} FROM folds WHERE context_id = ? AND first > ? AND version = ?"
    folds: dict[int, FoldRow] = {row[0]: row[1:] for row in connection.execute(query, (*position, version))}
    parts: list[RunFold | RunEvents] = []
    covered_runs = cover_runs(runs, folds)
    with ignore_large_data(sum(run.seq for run, fold in covered_runs if fold is None)):
        for run, fold in covered_runs:
            query = "SELECT ?, seq, sub, json FROM events WHERE run = ? AND sub = 0 ORDER BY seq"
            rows = [] if fold else connection.execute(query, (run.task_id, run.number)).fetchall()
            events = parse_events(rows, corrupt)
            parts.append(fold or RunEvents(run.task_id, bool(run.idle) and len(events) == run.seq, events))
    return ConversationPage(parts, extend_mark(None if begin is None else after, runs), from_start=begin is None)


def store_folds(connection: sqlite3.Connection, conversation: str, folds: Sequence[RunFold], version: int) -> None:
    """Store folds whose runs are unchanged, replacing overlapping folds."""
    for fold in folds:
        query = "SELECT number FROM runs WHERE task_id = ? AND conversation = ?"
        ends = [connection.execute(query, (run, conversation)).fetchone() for run in (fold.first, fold.last)]
        if None in ends:
            continue
        first, last = (end[0] for end in ends)
        query = "SELECT count(*), sum(seq) FROM runs WHERE conversation = ? AND number BETWEEN ? AND ?"
        if connection.execute(query, (conversation, first, last)).fetchone() != (fold.runs, fold.events):
            continue
        query = "DELETE FROM folds WHERE context_id = ? AND first <= ? AND last >= ?"
        connection.execute(query, (conversation, last, first))
        connection.execute(
            "INSERT INTO folds (context_id, first, last, runs, events, version, crc, summary, messages)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(conversation, first, last, fold.runs, fold.events),
                *(version, checksum(fold.summary, fold.messages), fold.summary, fold.messages),
            ),
        )


_RUN = f"SELECT number, {RECORD} FROM runs WHERE task_id = ?"

_EVENTS = "SELECT ?, seq, sub, json FROM events WHERE run = ? AND sub = 0 AND seq > ? ORDER BY seq"

_EARLIER_RUN = f"""
    SELECT {RECORD} FROM runs WHERE conversation = ? AND number < ? AND state IN ('input-required', 'auth-required')
    AND state NOT IN ('completed', 'failed') ORDER BY number DESC
"""

_LATER_RUN = f"""
    SELECT {RECORD} FROM runs WHERE conversation = ? AND number > ? AND state <> 'submitted'
    AND NOT (state IN ('canceled', 'failed') AND seq <= {IDLE_RUN_EVENTS}) ORDER BY number LIMIT 1
"""


def read_snapshot(
    connection: sqlite3.Connection,
    task_id: str,
    since: Snapshot | None,
    history: HistoryQuery | None,
    corrupt: Corrupt,
) -> Snapshot | None:
    """Return a consistent run snapshot, or None for an unknown run."""
    known_events = since.events if since is not None else ()
    last_command = since.state.last_command if since is not None else 0
    with read_transaction(connection):
        row = connection.execute(_RUN, (task_id,)).fetchone()
        if row is None:
            return None
        number, record = row[0], to_record(row[1:])
        last = known_events[-1].seq if known_events else 0
        rows = _fetch_rows(connection.execute(_EVENTS, (task_id, number, last)))
        commands = select_commands(connection, task_id, number, last_command)
        position = (record.conversation, number)
        waiting = [to_record(each) for each in connection.execute(_EARLIER_RUN, position)]
        later = _find_later_run(connection, position)
        page = None
        if history is not None:
            after, version = history
            page = read_conversation_page(connection, record.conversation, task_id, after, version, corrupt)
    return Snapshot(record, [*known_events, *parse_events(rows, corrupt)], commands, waiting, later, page)


def _find_later_run(connection: sqlite3.Connection, position: tuple[str, int]) -> RunRecord | None:
    row = connection.execute(_LATER_RUN, position).fetchone()
    return None if row is None else to_record(row)
