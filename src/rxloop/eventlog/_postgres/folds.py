"""What runs add to their conversations, kept in Postgres beside their events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any
from zlib import crc32

from rxloop.eventlog._postgres.address import Address, Connection
from rxloop.eventlog._postgres.reads import NOWHERE, SPAN, mark_after, parsed
from rxloop.eventlog._postgres.rows import numbers
from rxloop.pipeline.values import KeptFold, Mark, Parts, RunEvents

_RUNS = f"""
WITH {SPAN}
SELECT s.number, s.task_id, s.seq, s.updated, s.at_rest, EXISTS (SELECT FROM mark),
    f.last, f.runs, f.events, f.crc, f.summary, f.messages
FROM (SELECT 1) AS one LEFT JOIN span s ON true
LEFT JOIN $s.folds f ON f.context_id = %(context)s AND f.first = s.number AND f.version = %(version)s
ORDER BY s.number
"""
_EVENTS = "SELECT run, seq, json FROM $s.events WHERE run = ANY (%s::bigint[]) AND sub = 0 ORDER BY run, seq"
_KEEP = """
WITH ends AS (
    SELECT (SELECT number FROM $s.runs WHERE task_id = %(first)s AND context_id = %(context)s) AS first,
        (SELECT number FROM $s.runs WHERE task_id = %(last)s AND context_id = %(context)s) AS last
), fitting AS (
    SELECT first, last FROM ends WHERE (%(runs)s, %(events)s) = (
        SELECT count(*), coalesce(sum(seq), 0) FROM $s.runs
        WHERE context_id = %(context)s AND number BETWEEN ends.first AND ends.last
    )
), gone AS (
    DELETE FROM $s.folds f USING fitting
    WHERE f.context_id = %(context)s AND f.first <= fitting.last AND f.last >= fitting.first
)
INSERT INTO $s.folds (context_id, first, last, runs, events, version, crc, summary, messages)
SELECT %(context)s, first, last, %(runs)s, %(events)s, %(version)s, %(crc)s, %(summary)b, %(messages)b FROM fitting
"""
_Run = tuple[int, str, int, int, bool]
"""The number of a run, its id, its last `seq`, when it was updated, and whether it is at rest."""


async def parts(
    connection: Connection, address: Address, context_id: str, before: str, after: Mark | None, version: int
) -> Parts:
    """The runs of a conversation; only those after a mark, if nothing before it has changed."""
    values = {"context": context_id, "before": before, "version": version, **asdict(after or NOWHERE)}
    rows = await (await connection.execute(address.sql(_RUNS), values, binary=True)).fetchall()
    marked = bool(rows[0][5])
    folds: dict[int, list[Any]] = {}
    runs: list[_Run] = []
    for number, task_id, seq, updated, at_rest, _, *fold in rows:
        if number is None:
            continue
        if not runs or runs[-1][0] != number:
            runs.append((number, task_id, seq, updated, at_rest))
        if fold[0] is not None:
            folds[number] = fold
    covered = _covered(runs, folds)
    events = await _events(connection, address, [run for run, fold in covered if fold is None])
    found = [fold or _unfolded(run, events.get(run[0], ())) for run, fold in covered]
    mark = mark_after(after if marked else None, [run[1:4] for run in runs])
    return Parts(found, mark, whole=not marked)


def _covered(runs: Sequence[_Run], folds: dict[int, list[Any]]) -> list[tuple[_Run, KeptFold | None]]:
    """Each run with the fold that begins with it; those that an earlier fold covers are left out."""
    found: list[tuple[_Run, KeptFold | None]] = []
    at = 0
    while at < len(runs):
        fold = _fitting(folds.get(runs[at][0]), runs, at)
        found.append((runs[at], fold))
        at += 1 if fold is None else fold.runs
    return found


def _fitting(row: list[Any] | None, runs: Sequence[_Run], at: int) -> KeptFold | None:
    """The fold of a row that begins at that run, if its runs are as they were."""
    if row is None:
        return None
    last, count, events, crc, summary, messages = row
    covered = runs[at : at + count]
    if len(covered) < count or covered[-1][0] != last or sum(run[2] for run in covered) != events:
        return None
    if crc != crc32(messages, crc32(summary)):
        return None
    return KeptFold(covered[0][1], covered[-1][1], count, events, summary, messages)


async def _events(
    connection: Connection, address: Address, runs: Sequence[_Run]
) -> dict[int, list[tuple[str, int, int, bytes]]]:
    """The durable events of some runs, as they are to be parsed."""
    if not runs:
        return {}
    names = {run[0]: run[1] for run in runs}
    cursor = await connection.execute(address.sql(_EVENTS), (numbers(names),), binary=True)
    events: dict[int, list[tuple[str, int, int, bytes]]] = {}
    for number, seq, json in await cursor.fetchall():
        events.setdefault(number, []).append((names[number], seq, 0, json))
    return events


def _unfolded(run: _Run, rows: Sequence[tuple[str, int, int, bytes]]) -> RunEvents:
    _, task_id, seq, _, at_rest = run
    # What came since its row was read is not counted there.
    events = parsed(row for row in rows if row[1] <= seq)
    return RunEvents(task_id, at_rest and len(events) == seq, events)


async def keep(
    connection: Connection, address: Address, context_id: str, folds: Sequence[KeptFold], version: int
) -> None:
    """Keep folds whose runs are as they were, in place of those of the same runs."""
    for fold in folds:
        values = {
            "context": context_id,
            "first": fold.first,
            "last": fold.last,
            "version": version,
            "runs": fold.runs,
            "events": fold.events,
            "crc": crc32(fold.messages, crc32(fold.summary)),
            "summary": fold.summary,
            "messages": fold.messages,
        }
        await connection.execute(address.sql(_KEEP), values)
