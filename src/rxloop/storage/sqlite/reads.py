"""Queries: pages, records, folds."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal
from zlib import crc32

import orjson

from rxloop.errors import ConfigurationError, EventLogError
from rxloop.pipeline.records import (
    FINISHED,
    ConversationPage,
    Mark,
    RunEvents,
    RunFilter,
    RunRecord,
    as_json,
    is_finished,
)
from rxloop.protocol.commands import Command, read_command
from rxloop.protocol.events import Event
from rxloop.protocol.messages import ErrorInfo, Usage
from rxloop.state.kept_folds import RunFold
from rxloop.storage.sqlite.followers import STANDING, Standing
from rxloop.storage.tail import Page, Place

log = logging.getLogger("rxloop")

Corrupt = Literal["refuse", "skip"]

RECORD = "task_id, context_id, agent_name, state, attempt, seq, created, updated, model, owner, metadata, usage, error"
"""The columns that `record_of` takes."""


@dataclass(frozen=True, slots=True)
class SeenPage(Page):
    """A page, and how the run stood in the words of those who look whether it has grown."""

    standing: Standing


def read_page(
    connection: sqlite3.Connection, task_id: str, after: Place, deltas: bool, limit: int, corrupt: Corrupt
) -> SeenPage | None:
    """The events of a run after a place, behind the durable one there; None if the log has no such run."""
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
    """The record of a run; None if the log has no such run."""
    row = connection.execute(f"SELECT {RECORD} FROM runs WHERE task_id = ?", (task_id,)).fetchone()
    return None if row is None else record_of(row)


def read_records(connection: sqlite3.Connection, wanted: RunFilter) -> list[RunRecord]:
    """Return the page of the matching runs."""
    where, values = _condition(wanted)
    order, beyond = ("DESC", "<") if wanted.newest_first else ("ASC", ">")
    if wanted.after is not None:
        where = f"{where} AND number {beyond} (SELECT number FROM runs WHERE task_id = ?)"
        values = [*values, wanted.after]
    query = f"SELECT {RECORD} FROM runs WHERE {where} ORDER BY number {order} LIMIT ?"
    limit = -1 if wanted.limit is None else wanted.limit
    return [record_of(row) for row in connection.execute(query, (*values, limit))]


def _condition(wanted: RunFilter) -> tuple[str, list[Any]]:
    """Return the filters as the condition of a query over the table `runs`, and its values."""
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
        # In these words, for the index that has only these runs.
        where.append("state NOT IN ('completed', 'failed')")
    for key, value in (wanted.metadata or {}).items():
        where.append(
            "EXISTS (SELECT 1 FROM json_each(metadata) AS has, json_each(?) AS wanted"
            " WHERE has.key = ? AND has.type = wanted.type AND has.value IS wanted.value)"
        )
        values += [as_json([value]), key]
    met = " AND ".join(where)
    if wanted.latest_only:
        # Inside, the names of the columns are those of `later`.
        later = "later.context_id = runs.context_id AND later.number > runs.number"
        return f"{met} AND NOT EXISTS (SELECT 1 FROM runs AS later WHERE {later} AND {met})", values * 2
    return met, values


def record_of(row: Sequence[Any]) -> RunRecord:
    """The record that a row of `RECORD` makes."""
    *plain, metadata, usage, error = row
    return RunRecord(
        *plain,
        metadata=orjson.loads(metadata) if metadata else {},
        usage=Usage.model_validate_json(usage) if usage else None,
        error=ErrorInfo.model_validate_json(error) if error else None,
    )


def read_commands(connection: sqlite3.Connection, task_id: str, after: int) -> list[tuple[int, Command]] | None:
    """The letters of a run after a number; None if the log has no such run."""
    with one_moment(connection):
        found = connection.execute("SELECT number FROM runs WHERE task_id = ?", (task_id,)).fetchone()
        if found is None:
            return None
        return commands_of(connection, task_id, found[0], after)


def commands_of(connection: sqlite3.Connection, task_id: str, run: int, after: int) -> list[tuple[int, Command]]:
    """The commands of the run with that number in the file."""
    rows = connection.execute(
        "SELECT number, json FROM mail WHERE run = ? AND number > ? ORDER BY number", (run, after)
    )
    letters = [(number, _letter(task_id, number, json)) for number, json in rows.fetchall()]
    return [(number, letter) for number, letter in letters if letter is not None]


def _letter(task_id: str, number: int, json: bytes) -> Command | None:
    try:
        return read_command(json)
    except ConfigurationError as error:
        raise EventLogError(
            f"the letter {number} to the run {task_id} cannot be read: {error}", retryable=False
        ) from error


Condition = tuple[str, tuple[int, ...]]


def span(
    connection: sqlite3.Connection, context_id: str, before: str, after: Mark | None
) -> tuple[int | None, Condition]:
    """After which run a part of a conversation begins, None for its first one; and where it ends."""
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
    # With max(), SQLite takes the other columns from the row that has it.
    query = f"SELECT count(*), sum(seq), sum(updated), max(number), task_id FROM runs WHERE context_id = ?{where}"
    runs, events, updated, _, last = connection.execute(query, (context_id, *values)).fetchone()
    return Mark(runs, events or 0, updated or 0, last or "")


def parsed(rows: Iterable[tuple[str, int, int, bytes]], corrupt: Corrupt) -> list[Event]:
    """The events of rows; one that cannot be read is an error that names it, or is left out with a warning."""
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
    """Read everything in the block as of one moment, whatever is written meanwhile."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")


_Row = tuple[int, int, int, int, int, Any, Any]
"""Of a fold: its first and last run, how many runs and events it has, its check sum, its summary and its messages."""


def read_conversation(
    connection: sqlite3.Connection, context_id: str, before: str, after: Mark | None, version: int, corrupt: Corrupt
) -> ConversationPage:
    """The runs of a conversation; only those after a mark, if nothing before it has changed."""
    with one_moment(connection):
        return conversation_page(connection, context_id, before, after, version, corrupt)


def conversation_page(
    connection: sqlite3.Connection, context_id: str, before: str, after: Mark | None, version: int, corrupt: Corrupt
) -> ConversationPage:
    """The same, within a transaction."""
    begin, until = span(connection, context_id, before, after)
    place = (context_id, -1 if begin is None else begin)
    query = f"SELECT number, task_id, seq, at_rest, updated FROM runs WHERE context_id = ? AND number > ?{until[0]}"
    runs = connection.execute(f"{query} ORDER BY number", (*place, *until[1])).fetchall()
    query = (
        "SELECT first, last, runs, events, crc, summary, messages FROM folds"
        " WHERE context_id = ? AND first > ? AND version = ?"
    )
    folds: dict[int, _Row] = {row[0]: row for row in connection.execute(query, (*place, version))}
    found: list[RunFold | RunEvents] = []
    at = 0
    while at < len(runs):
        number, task_id, seq, at_rest, _ = runs[at]
        fold = _fitting(folds.get(number), runs, at)
        if fold is None:
            query = "SELECT ?, seq, sub, json FROM events WHERE run = ? AND sub = 0 ORDER BY seq"
            events = parsed(connection.execute(query, (task_id, number)), corrupt)
            found.append(RunEvents(task_id, bool(at_rest) and len(events) == seq, events))
        else:
            found.append(fold)
        at += 1 if fold is None else fold.runs
    known = after if after is not None and begin is not None else Mark(0, 0, 0, "")
    events, updated = known.events + sum(run[2] for run in runs), known.updated + sum(run[4] for run in runs)
    mark = Mark(known.runs + at, events, updated, runs[-1][1] if runs else known.last)
    return ConversationPage(found, mark, whole=begin is None)


def _fitting(row: _Row | None, runs: Sequence[tuple[int, str, int, int, int]], at: int) -> RunFold | None:
    """The fold of a row that begins at that run, if its runs are as they were."""
    if row is None:
        return None
    _, last, count, events, crc, summary, messages = row
    covered = runs[at : at + count]
    if len(covered) < count or covered[-1][0] != last or sum(run[2] for run in covered) != events:
        return None
    if crc != _crc(summary, messages):
        return None
    return RunFold(covered[0][1], covered[-1][1], count, events, summary, messages)


def store_folds(connection: sqlite3.Connection, context_id: str, folds: Sequence[RunFold], version: int) -> None:
    """Keep folds whose runs are as they were, in place of those of the same runs."""
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
                *(version, _crc(fold.summary, fold.messages), fold.summary, fold.messages),
            ),
        )


def _crc(summary: Any, messages: Any) -> int | None:
    """The check sum; None of what nobody here has written."""
    return crc32(messages, crc32(summary)) if isinstance(summary, bytes) and isinstance(messages, bytes) else None
