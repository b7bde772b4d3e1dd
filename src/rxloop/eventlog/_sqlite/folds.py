"""What runs add to their conversations, kept in a SQLite file beside their events."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any
from zlib import crc32

from rxloop.eventlog._sqlite.reads import Corrupt, one_moment, parsed, span
from rxloop.pipeline.values import KeptFold, Mark, Parts, RunEvents

_Row = tuple[int, int, int, int, int, Any, Any]
"""Of a fold: its first and last run, how many runs and events it has, its check sum, its summary and its messages."""


def parts(
    connection: sqlite3.Connection, context_id: str, before: str, after: Mark | None, version: int, corrupt: Corrupt
) -> Parts:
    """The runs of a conversation; only those after a mark, if nothing before it has changed."""
    with one_moment(connection):
        begin, until = span(connection, context_id, before, after)
        place = (context_id, -1 if begin is None else begin)
        query = f"SELECT number, task_id, seq, at_rest, updated FROM runs WHERE context_id = ? AND number > ?{until[0]}"
        runs = connection.execute(f"{query} ORDER BY number", (*place, *until[1])).fetchall()
        query = (
            "SELECT first, last, runs, events, crc, summary, messages FROM folds"
            " WHERE context_id = ? AND first > ? AND version = ?"
        )
        folds: dict[int, _Row] = {row[0]: row for row in connection.execute(query, (*place, version))}
        found: list[KeptFold | RunEvents] = []
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
    return Parts(found, mark, whole=begin is None)


def _fitting(row: _Row | None, runs: Sequence[tuple[int, str, int, int, int]], at: int) -> KeptFold | None:
    """The fold of a row that begins at that run, if its runs are as they were."""
    if row is None:
        return None
    _, last, count, events, crc, summary, messages = row
    covered = runs[at : at + count]
    if len(covered) < count or covered[-1][0] != last or sum(run[2] for run in covered) != events:
        return None
    if crc != _crc(summary, messages):
        return None
    return KeptFold(covered[0][1], covered[-1][1], count, events, summary, messages)


def keep(connection: sqlite3.Connection, context_id: str, folds: Sequence[KeptFold], version: int) -> None:
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
