"""Postgres read queries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

import psycopg

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
    is_finished,
)
from rxloop.protocol.commands import Command
from rxloop.protocol.events import Event
from rxloop.state.run_state import RunFold
from rxloop.storage.postgres.address import Address, Connection, can_keep
from rxloop.storage.postgres.leases import ALIVE
from rxloop.storage.postgres.rows import labels, numbers
from rxloop.storage.rules import unknown_run
from rxloop.storage.sql_rows import RECORD, FoldRow, RunRow, checksum, cover_runs, extend_mark, to_commands, to_record
from rxloop.storage.tail import Page, Place

MOST = (1 << 31) - 1
"""Maximum event number in the schema."""

_PAGE = """
SELECT r.number, r.seq, r.at_rest, r.state, r.error, e.seq, e.sub, e.json FROM $s.runs r LEFT JOIN LATERAL (
    SELECT seq, sub, json FROM $s.events WHERE run = r.number AND {after} ORDER BY seq, sub LIMIT %(limit)s
) AS e ON true WHERE r.task_id = %(task)s ORDER BY e.seq, e.sub
"""

NOWHERE = Mark(-1, 0, 0, "")
"""Placeholder for a missing mark, which matches no conversation."""

SPAN = """until AS (
    SELECT number FROM $s.runs WHERE task_id = %(before)s AND context_id = %(context)s
), mark AS (
    SELECT m.number FROM $s.runs m WHERE m.task_id = %(last)s AND m.context_id = %(context)s
        AND m.number < coalesce((SELECT number FROM until), m.number + 1)
        AND (%(runs)s, %(events)s, %(updated)s) = (
            SELECT count(*), coalesce(sum(seq), 0), coalesce(sum(updated), 0) FROM $s.runs
            WHERE context_id = %(context)s AND number <= m.number
        )
), span AS (
    SELECT number, task_id, seq, updated, at_rest FROM $s.runs WHERE context_id = %(context)s
        AND number > coalesce((SELECT number FROM mark), 0)
        AND number < coalesce((SELECT number FROM until), number + 1)
)
"""
"""Runs before a given run of a conversation. With a valid mark, only later runs are included."""

_ORPHANS = f"""
WITH alive AS MATERIALIZED ({ALIVE}), submitted AS (
    SELECT number FROM $s.runs s WHERE state = 'submitted' AND NOT at_rest
        AND arrived <= now() - %(before)s * interval '1 second'
        AND number > coalesce((SELECT number FROM $s.runs WHERE task_id = %(after)s), 0)
        AND NOT EXISTS (SELECT FROM $s.turns t WHERE t.context_id = s.context_id AND t.task_id = s.task_id)
    ORDER BY number LIMIT %(limit)s
)
SELECT {RECORD} FROM $s.runs r
WHERE now() > pg_postmaster_start_time() + %(settling)s * interval '1 second' AND number IN (
    SELECT number FROM $s.runs WHERE NOT at_rest AND state <> 'submitted'
    UNION ALL
    SELECT number FROM submitted
    UNION ALL
    SELECT b.number FROM $s.turns JOIN $s.runs b USING (task_id) WHERE b.state = 'submitted' AND NOT b.at_rest
    UNION ALL
    SELECT number FROM $s.runs w WHERE at_rest AND state IN ('input-required', 'auth-required')
        AND EXISTS (SELECT FROM $s.mail m WHERE m.run = w.number AND m.number > w.taken AND m.kind <> 'say')
) AND NOT EXISTS (
    SELECT FROM $s.turns t JOIN alive USING (key) WHERE t.context_id = r.context_id AND t.task_id = r.task_id
) ORDER BY number
"""


async def read_page(
    connection: Connection, address: Address, task_id: str, after: Place, deltas: bool, limit: int | None
) -> Page:
    """Return events starting at a position, including its durable event.

    Raises:
        UnknownRun: If the run does not exist.
    """
    transient = "(seq, sub) > (%(seq)s, %(sub)s)" if deltas else "false"
    condition = f"(seq, sub) >= (%(seq)s, 0) AND (sub = 0 OR {transient})"
    place = (min(after[0], MOST), min(after[1], MOST))
    values = {"task": task_id, "seq": place[0], "sub": place[1], "limit": limit}
    query = address.sql(_PAGE.replace("{after}", condition))
    rows = await (await connection.execute(query, values, binary=True)).fetchall() if can_keep(task_id) else []
    if not rows:
        raise unknown_run(task_id)
    number, seq, at_rest, state, error = rows[0][:5]
    found = [row[5:] for row in rows if row[5] is not None]
    end = max(found[-1][:2], after) if found else after
    return Page(
        parsed((task_id, *row) for row in found), len(found), end, seq, at_rest, is_finished(state, error), number
    )


async def read_record(connection: Connection, address: Address, task_id: str) -> RunRecord:
    """Return the run record.

    Raises:
        UnknownRun: If the run does not exist.
    """
    query = address.sql(f"SELECT {RECORD} FROM $s.runs WHERE task_id = %s")
    row = await (await connection.execute(query, (task_id,))).fetchone() if can_keep(task_id) else None
    if row is None:
        raise unknown_run(task_id)
    return to_record(row)


async def read_records(connection: Connection, address: Address, wanted: RunFilter) -> list[RunRecord]:
    """Return a page of matching records.

    Raises:
        UnknownRun: If the run `after` does not exist.
    """
    condition, values = _condition(wanted)
    order, beyond = ("DESC", "<") if wanted.newest_first else ("ASC", ">")
    if wanted.after is not None:
        query = address.sql("SELECT number FROM $s.runs WHERE task_id = %s")
        row = await (await connection.execute(query, (wanted.after,))).fetchone() if can_keep(wanted.after) else None
        if row is None:
            raise unknown_run(wanted.after)
        condition, values = f"{condition} AND number {beyond} %s", [*values, row[0]]
    if not can_keep(*values):
        return []
    query = f"SELECT {RECORD} FROM $s.runs WHERE {condition} ORDER BY number {order} LIMIT %s"
    rows = await (await connection.execute(address.sql(query), (*values, wanted.limit))).fetchall()
    return [to_record(row) for row in rows]


def _condition(wanted: RunFilter) -> tuple[str, list[Any]]:
    """Return the SQL condition for a filter, with its parameters."""
    where, values = ["true"], list[Any]()
    for column, value in (
        ("context_id = %s", wanted.context_id),
        ("agent_name = %s", wanted.agent_name),
        ("owner = %s", wanted.owner),
        ("created >= %s", wanted.since),
        ("created < %s", wanted.until),
    ):
        if value is not None:
            where.append(column)
            values.append(value)
    if wanted.states is not None:
        where.append("state = ANY (%s)")
        values.append([*wanted.states])
    if wanted.unfinished or (wanted.states is not None and not {*wanted.states} & {*FINISHED}):
        # The partial index requires this exact condition.
        where.append("state NOT IN ('completed', 'failed')")
    if wanted.metadata:
        where.append("labels @> %s")
        values.append(labels(wanted.metadata))
    met = " AND ".join(where)
    if wanted.latest_only:
        # Unqualified columns in the subquery refer to `later`.
        later = "later.context_id = runs.context_id AND later.number > runs.number"
        return f"{met} AND NOT EXISTS (SELECT FROM $s.runs AS later WHERE {later} AND {met})", values * 2
    return met, values


async def read_commands(
    connection: Connection, address: Address, task_id: str, after: int
) -> list[tuple[int, Command]]:
    """Return commands after a number.

    Raises:
        UnknownRun: If the run does not exist.
        EventLogError: If a command cannot be parsed.
    """
    query = address.sql(
        "SELECT m.number, m.json FROM $s.runs r LEFT JOIN $s.mail m ON m.run = r.number AND m.number > %s"
        " WHERE r.task_id = %s ORDER BY m.number"
    )
    rows = (
        await (await connection.execute(query, (after, task_id), binary=True)).fetchall() if can_keep(task_id) else []
    )
    if not rows:
        raise unknown_run(task_id)
    return to_commands(task_id, [row for row in rows if row[0] is not None])


async def list_orphaned(
    connection: Connection, address: Address, submitted: tuple[float, int | None, str | None], settling: float
) -> list[RunRecord]:
    """Return resumable runs without a live holder, including runs submitted long ago.

    Args:
        connection: Database connection.
        address: Database address.
        submitted: Filter for submitted runs: minimum age in seconds, maximum number, and previous run ID.
        settling: Grace period in seconds after a server start, in which owners acquire their leases again.
    """
    before, limit, after = submitted
    values = {"before": before, "limit": limit, "after": after, "settling": settling}
    rows = await (await connection.execute(address.sql(_ORPHANS), values)).fetchall()
    return [to_record(row) for row in rows]


def parsed(rows: Iterable[tuple[str, int, int, bytes]]) -> list[Event]:
    """Parse event rows.

    Raises:
        EventLogError: If an event cannot be parsed.
    """
    events: list[Event] = []
    for task_id, seq, _, data in rows:
        try:
            events.append(Event.from_json(data))
        except Exception as error:
            raise EventLogError(
                f"the event {seq} of the run {task_id} cannot be read: {error}; all other runs are as they were",
                retryable=False,
            ) from error
    return events


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


async def read_conversation(
    connection: Connection, address: Address, context_id: str, before: str, after: Mark | None, version: int
) -> ConversationPage:
    """Return earlier runs of a conversation. With a valid mark, only runs after the mark are returned."""
    values = {"context": context_id, "before": before, "version": version, **asdict(after or NOWHERE)}
    rows = await (await connection.execute(address.sql(_RUNS), values, binary=True)).fetchall()
    marked = bool(rows[0][5])
    folds: dict[int, FoldRow] = {}
    runs: list[RunRow] = []
    for row in rows:
        if row[0] is None:
            continue
        run, fold = RunRow(*row[:5]), row[6:]
        if not runs or runs[-1].number != run.number:
            runs.append(run)
        if fold[0] is not None:
            folds[run.number] = fold
    covered = cover_runs(runs, folds)
    events = await _events(connection, address, [run for run, fold in covered if fold is None])
    parts = [fold or _unfolded(run, events.get(run.number, ())) for run, fold in covered]
    return ConversationPage(parts, extend_mark(after if marked else None, runs), whole=not marked)


async def _events(
    connection: Connection, address: Address, runs: Sequence[RunRow]
) -> dict[int, list[tuple[str, int, int, bytes]]]:
    """Return durable event rows by run number."""
    if not runs:
        return {}
    names = {run.number: run.task_id for run in runs}
    cursor = await connection.execute(address.sql(_EVENTS), (numbers(names),), binary=True)
    events: dict[int, list[tuple[str, int, int, bytes]]] = {}
    for number, seq, json in await cursor.fetchall():
        events.setdefault(number, []).append((names[number], seq, 0, json))
    return events


def _unfolded(run: RunRow, rows: Sequence[tuple[str, int, int, bytes]]) -> RunEvents:
    # Later events are not included in the `seq` of the run row.
    events = parsed(row for row in rows if row[1] <= run.seq)
    return RunEvents(run.task_id, run.at_rest and len(events) == run.seq, events)


async def store_folds(
    connection: Connection, address: Address, context_id: str, folds: Sequence[RunFold], version: int
) -> None:
    """Store folds whose runs are unchanged, replacing overlapping folds."""
    for fold in folds:
        values = {
            "context": context_id,
            "first": fold.first,
            "last": fold.last,
            "version": version,
            "runs": fold.runs,
            "events": fold.events,
            "crc": checksum(fold.summary, fold.messages),
            "summary": fold.summary,
            "messages": fold.messages,
        }
        await connection.execute(address.sql(_KEEP), values)


_RUN = "(SELECT number FROM $s.runs WHERE task_id = %(task)s)"

_NEW_EVENTS = f"SELECT seq, json FROM $s.events WHERE run = {_RUN} AND sub = 0 AND seq > %(seq)s ORDER BY seq"

_NEW_COMMANDS = f"SELECT number, json FROM $s.mail WHERE run = {_RUN} AND number > %(mail)s ORDER BY number"

_NEIGHBOURS = f"""
WITH run AS MATERIALIZED (SELECT number, context_id FROM $s.runs WHERE task_id = %(task)s), later AS (
    SELECT r.number FROM run, $s.runs r WHERE r.context_id = run.context_id AND r.number > run.number
        AND r.state <> 'submitted' AND NOT (r.state IN ('canceled', 'failed') AND r.seq <= {NOTHING_DONE})
    ORDER BY r.number LIMIT 1
), found AS (
    SELECT number FROM run UNION ALL SELECT number FROM later UNION ALL
    SELECT r.number FROM run, $s.runs r WHERE r.context_id = run.context_id AND r.number < run.number
        AND r.state IN ('input-required', 'auth-required') AND r.state NOT IN ('completed', 'failed')
)
SELECT number, {RECORD} FROM $s.runs JOIN found USING (number) ORDER BY number
"""
"""Query for the run, earlier runs waiting for input, and the first later run that has started."""


async def read_snapshot(
    connection: Connection, address: Address, task_id: str, since: Snapshot | None, history: HistoryQuery | None
) -> Snapshot:
    """Return a run snapshot.

    Raises:
        UnknownRun: If the run does not exist.
        EventLogError: If an event or command cannot be parsed.
    """
    if not can_keep(task_id):
        raise unknown_run(task_id)
    known = since.events if since is not None else ()
    values = {
        "task": task_id,
        "seq": known[-1].seq if known else 0,
        "mail": since.state.last_command if since is not None else 0,
    }
    # The statements share a round trip and are executed in this order.
    async with connection.pipeline() if psycopg.Pipeline.is_supported() else nullcontext():
        runs = await connection.execute(address.sql(_NEIGHBOURS), values)
        events = await connection.execute(address.sql(_NEW_EVENTS), values, binary=True)
        commands = await connection.execute(address.sql(_NEW_COMMANDS), values, binary=True)
        records = [to_record(row[1:]) for row in await runs.fetchall()]
        rows = await events.fetchall()
        sent = await commands.fetchall()
    place = next((place for place, record in enumerate(records) if record.task_id == task_id), None)
    if place is None:
        raise unknown_run(task_id)
    page = None
    if history is not None:
        after, version = history
        page = await read_conversation(connection, address, records[place].context_id, task_id, after, version)
    return Snapshot(
        record=records[place],
        events=[*known, *parsed((task_id, seq, 0, json) for seq, json in rows)],
        commands=to_commands(task_id, sent),
        waiting=records[:place][::-1],
        later=next(iter(records[place + 1 :]), None),
        history=page,
    )
