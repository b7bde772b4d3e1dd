"""What is read from the tables of a SQLite event log. In its thread: the events are parsed there as well."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from rxloop.errors import ConfigurationError, EventLogError
from rxloop.eventlog._sqlite.followers import STANDING, Standing
from rxloop.eventlog._tail import Page, Place
from rxloop.eventlog.rules import FINISHED
from rxloop.eventlog.wanted import Wanted, as_json
from rxloop.pipeline.values import Mark, RunRecord
from rxloop.protocol.events import Event
from rxloop.protocol.mail import Mail, read_mail
from rxloop.protocol.messages import ErrorInfo, Usage

log = logging.getLogger("rxloop")

Corrupt = Literal["refuse", "skip"]
RECORD = "task_id, context_id, agent_name, state, attempt, seq, created, updated, model, owner, metadata, usage, error"
"""The columns that `record_of` takes."""


@dataclass(frozen=True, slots=True)
class SeenPage(Page):
    """A page, and how the run stood in the words of those who look whether it has grown."""

    standing: Standing


def page(
    connection: sqlite3.Connection, task_id: str, after: Place, deltas: bool, limit: int, corrupt: Corrupt
) -> SeenPage | None:
    """The events of a run after a place, behind the durable one there; None if the log has no such run."""
    with one_moment(connection):
        query = f"SELECT number, state, {STANDING} FROM runs WHERE task_id = ?"
        found = connection.execute(query, (task_id,)).fetchone()
        if found is None:
            return None
        number, state, *standing = found
        query = "SELECT ?, seq, sub, json FROM events WHERE run = ? AND (seq, sub) >= (?, 0)" + (
            " AND (sub = 0 OR (seq, sub) > (?, ?))" if deltas else " AND sub = 0"
        )
        place = (after[0], *after) if deltas else after[:1]
        rows = connection.execute(f"{query} ORDER BY seq, sub LIMIT ?", (task_id, number, *place, limit)).fetchall()
    end = max(rows[-1][1:3], after) if rows else after
    seq, at_rest, sub = standing
    return SeenPage(parsed(rows, corrupt), len(rows), end, seq, bool(at_rest), state, number, (seq, at_rest, sub))


def record(connection: sqlite3.Connection, task_id: str) -> RunRecord | None:
    """The record of a run; None if the log has no such run."""
    row = connection.execute(f"SELECT {RECORD} FROM runs WHERE task_id = ?", (task_id,)).fetchone()
    return None if row is None else record_of(row)


def records(
    connection: sqlite3.Connection,
    where: str,
    values: Sequence[Any],
    after: str | None,
    limit: int | None,
    newest_first: bool,
) -> list[RunRecord]:
    """The runs that meet a condition, by their numbers, from the one after that run."""
    order, beyond = ("DESC", "<") if newest_first else ("ASC", ">")
    if after is not None:
        where = f"{where} AND number {beyond} (SELECT number FROM runs WHERE task_id = ?)"
        values = [*values, after]
    query = f"SELECT {RECORD} FROM runs WHERE {where} ORDER BY number {order} LIMIT ?"
    return [record_of(row) for row in connection.execute(query, (*values, -1 if limit is None else limit))]


def condition(wanted: Wanted, latest_only: bool) -> tuple[str, list[Any]]:
    """What somebody wants as the condition of a query over the table `runs`, and its values."""
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
    if latest_only:
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


def mail_of(connection: sqlite3.Connection, task_id: str, after: int) -> list[tuple[int, Mail]] | None:
    """The letters of a run after a number; None if the log has no such run."""
    with one_moment(connection):
        found = connection.execute("SELECT number FROM runs WHERE task_id = ?", (task_id,)).fetchone()
        if found is None:
            return None
        query = "SELECT number, json FROM mail WHERE run = ? AND number > ? ORDER BY number"
        rows = connection.execute(query, (found[0], after)).fetchall()
    letters = [(number, _letter(task_id, number, json)) for number, json in rows]
    return [(number, letter) for number, letter in letters if letter is not None]


def _letter(task_id: str, number: int, json: bytes) -> Mail | None:
    try:
        return read_mail(json)
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
