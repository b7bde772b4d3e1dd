"""Query of the snapshot of a run."""

from __future__ import annotations

import sqlite3

from rxloop.pipeline.records import NOTHING_DONE, HistoryQuery, RunRecord, Snapshot
from rxloop.storage.sqlite.reads import (
    RECORD,
    Corrupt,
    commands_of,
    conversation_page,
    one_moment,
    parsed,
    record_of,
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
    """Return the snapshot of a run as of one moment; None if the log has no such run."""
    known = since.events if since is not None else ()
    mail = since.state.mail if since is not None else 0
    with one_moment(connection):
        row = connection.execute(_RUN, (task_id,)).fetchone()
        if row is None:
            return None
        number, record = row[0], record_of(row[1:])
        last = known[-1].seq if known else 0
        rows = connection.execute(_EVENTS, (task_id, number, last)).fetchall()
        commands = commands_of(connection, task_id, number, mail)
        place = (record.context_id, number)
        waiting = [record_of(each) for each in connection.execute(_EARLIER, place)]
        later = _first(connection, place)
        page = None
        if history is not None:
            after, version = history
            page = conversation_page(connection, record.context_id, task_id, after, version, corrupt)
    return Snapshot(record, [*known, *parsed(rows, corrupt)], commands, waiting, later, page)


def _first(connection: sqlite3.Connection, place: tuple[str, int]) -> RunRecord | None:
    row = connection.execute(_LATER, place).fetchone()
    return None if row is None else record_of(row)
