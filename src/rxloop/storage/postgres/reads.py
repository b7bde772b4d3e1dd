"""Postgres read queries."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from typing import Any

from rxloop.pipeline.records import (
    FINISHED,
    IDLE_RUN_EVENTS,
    ConversationPage,
    HistoryQuery,
    Mark,
    RunFilter,
    RunRecord,
    Snapshot,
    is_finished,
)
from rxloop.protocol.commands import Command
from rxloop.state.run_state import RunFold
from rxloop.storage.postgres import psycopg
from rxloop.storage.postgres.address import Address, Connection, Row, can_store
from rxloop.storage.postgres.leases import ALIVE
from rxloop.storage.postgres.results import MAX_ROWS, convert, fetch_rows, make_parts, parse_events
from rxloop.storage.postgres.rows import hash_labels, to_array
from rxloop.storage.rules import find_owner_conditions, make_unknown_run_error
from rxloop.storage.sql_rows import RECORD, FoldRow, RunRow, checksum, cover_runs, extend_mark, to_commands, to_record
from rxloop.storage.tail import PAGE_BYTES, PAGE_SIZE, Page, Position

MAX_NUMBER = (1 << 31) - 1
"""Maximum event number in the schema."""

_PAGE = """
SELECT r.number, r.seq, r.idle, r.state, r.error, e.seq, e.sub, e.json FROM $s.runs r LEFT JOIN LATERAL (
    {events}
) AS e ON true WHERE r.task_id = %(task)s ORDER BY e.seq, e.sub
"""

_RUN_EVENTS = "SELECT seq, sub, json FROM $s.events WHERE run = r.number AND {after} ORDER BY seq, sub"

_EVENTS_OF_PAGE = f"""
    SELECT seq, sub, json FROM (
        SELECT seq, sub, json, sum(octet_length(json)) FILTER (WHERE (seq, sub) > (%(seq)s, %(sub)s))
            OVER (ORDER BY seq, sub ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS size_before
        FROM ({_RUN_EVENTS} LIMIT {PAGE_SIZE}) AS events
    ) AS sized WHERE size_before IS NULL OR size_before < {PAGE_BYTES}
"""

NO_MARK = Mark(-1, 0, 0, "")
"""Placeholder for a missing mark, which matches no conversation."""

RANGE_CTE = """until AS (
    SELECT number FROM $s.runs WHERE task_id = %(before)s AND conversation = %(conversation)s
), mark AS (
    SELECT m.number FROM $s.runs m WHERE m.task_id = %(last)s AND m.conversation = %(conversation)s
        AND m.number < coalesce((SELECT number FROM until), m.number + 1)
        AND (%(runs)s, %(events)s, %(updated)s) = (
            SELECT count(*), coalesce(sum(seq), 0), coalesce(sum(updated), 0) FROM $s.runs
            WHERE conversation = %(conversation)s AND number <= m.number
        )
), span AS (
    SELECT number, task_id, seq, updated, idle FROM $s.runs WHERE conversation = %(conversation)s
        AND number > coalesce((SELECT number FROM mark), 0)
        AND number < coalesce((SELECT number FROM until), number + 1)
)
"""
"""Runs before a given run of a conversation. With a valid mark, only later runs are included."""

_HAS_RUN_LONG = "now() > pg_postmaster_start_time() + %(grace_period)s * interval '1 second'"
_HAS_NO_OWNER = """NOT EXISTS (
    SELECT FROM $s.leases l JOIN alive USING (lock_key) WHERE l.context_id = r.conversation AND l.task_id = r.task_id
)"""

_ORPHANED = f"""
WITH alive AS MATERIALIZED ({ALIVE}), submitted AS (
    SELECT number FROM $s.runs s WHERE state = 'submitted' AND NOT idle
        AND inserted_at <= now() - %(before)s * interval '1 second'
        AND number > coalesce((SELECT number FROM $s.runs WHERE task_id = %(after)s), 0)
        AND NOT EXISTS (SELECT FROM $s.leases l WHERE l.context_id = s.conversation AND l.task_id = s.task_id)
    ORDER BY number LIMIT %(limit)s
)
SELECT {RECORD} FROM $s.runs r
WHERE {_HAS_RUN_LONG} AND number IN (
    SELECT number FROM $s.runs WHERE NOT idle AND state <> 'submitted'
    UNION ALL
    SELECT number FROM submitted
    UNION ALL
    SELECT b.number FROM $s.leases JOIN $s.runs b USING (task_id) WHERE b.state = 'submitted' AND NOT b.idle
    UNION ALL
    SELECT number FROM $s.runs w WHERE idle AND state IN ('input-required', 'auth-required')
        AND EXISTS (
            SELECT FROM $s.commands c WHERE c.run = w.number AND c.number > w.last_command AND c.kind <> 'message'
        )
) AND {_HAS_NO_OWNER} ORDER BY number
"""

_IS_ORPHANED = f"""
WITH alive AS MATERIALIZED ({ALIVE})
SELECT number FROM $s.runs r WHERE {_HAS_RUN_LONG} AND task_id = %(task)s AND NOT idle AND state = 'working'
    AND {_HAS_NO_OWNER}
"""


async def read_page(
    connection: Connection, address: Address, task_id: str, after: Position, deltas: bool, paged: bool
) -> Page:
    """Return a page of events starting at a position, including its durable event, or all of these events.

    Raises:
        UnknownRun: If the run does not exist.
    """
    transient = "(seq, sub) > (%(seq)s, %(sub)s)" if deltas else "false"
    condition = f"(seq, sub) >= (%(seq)s, 0) AND (sub = 0 OR {transient})"
    position = (min(after[0], MAX_NUMBER), min(after[1], MAX_NUMBER))
    values = {"task": task_id, "seq": position[0], "sub": position[1]}
    events_query = _EVENTS_OF_PAGE if paged else _RUN_EVENTS
    query = address.sql(_PAGE.replace("{events}", events_query).replace("{after}", condition))
    rows = await fetch_rows(await connection.execute(query, values, binary=True)) if can_store(task_id) else []
    if not rows:
        raise make_unknown_run_error(task_id)
    number, seq, idle, state, error = rows[0][:5]
    if rows[0][5] is None:
        # The join without events.
        rows = []
    end = max(rows[-1][5:7], after) if rows else after
    is_full = paged and (len(rows) == PAGE_SIZE or sum(len(row[7]) for row in rows if row[5:7] > after) >= PAGE_BYTES)
    events = await convert(partial(parse_events, task_id), rows)
    return Page(events, is_full, end, seq, idle, is_finished(state, error), number)


async def read_record(connection: Connection, address: Address, task_id: str) -> RunRecord:
    """Return the run record.

    Raises:
        UnknownRun: If the run does not exist.
    """
    query = address.sql(f"SELECT {RECORD} FROM $s.runs WHERE task_id = %s")
    row = await (await connection.execute(query, (task_id,))).fetchone() if can_store(task_id) else None
    if row is None:
        raise make_unknown_run_error(task_id)
    return to_record(row)


async def read_records(connection: Connection, address: Address, criteria: RunFilter) -> list[RunRecord]:
    """Return a page of matching records.

    Raises:
        UnknownRun: If the run `after` does not exist.
    """
    condition, values = _build_condition(criteria)
    order, comparison = ("DESC", "<") if criteria.newest_first else ("ASC", ">")
    if criteria.after is not None:
        query = address.sql("SELECT number FROM $s.runs WHERE task_id = %s")
        after = criteria.after
        row = await (await connection.execute(query, (after,))).fetchone() if can_store(after) else None
        if row is None:
            raise make_unknown_run_error(after)
        condition, values = f"{condition} AND number {comparison} %s", [*values, row[0]]
    if not can_store(*values):
        return []
    query = f"SELECT {RECORD} FROM $s.runs WHERE {condition} ORDER BY number {order} LIMIT %s"
    rows = await (await connection.execute(address.sql(query), (*values, criteria.limit))).fetchall()
    return [to_record(row) for row in rows]


def _build_condition(criteria: RunFilter) -> tuple[str, list[Any]]:
    """Return the SQL condition for a filter, with its parameters."""
    where, values = ["true"], list[Any]()
    for column, value in (
        *find_owner_conditions(criteria, "%s"),
        ("agent_name = %s", criteria.agent_name),
        ("created >= %s", criteria.since),
        ("created < %s", criteria.until),
    ):
        if value is not None:
            where.append(column)
            values.append(value)
    if criteria.states is not None:
        where.append("state = ANY (%s)")
        values.append([*criteria.states])
    if criteria.unfinished or (criteria.states is not None and not {*criteria.states} & {*FINISHED}):
        # The partial index requires this exact condition.
        where.append("state NOT IN ('completed', 'failed')")
    if criteria.metadata:
        where.append("labels @> %s")
        values.append(hash_labels(criteria.metadata))
    condition = " AND ".join(where)
    if criteria.latest_only:
        # Unqualified columns in the subquery refer to `later`.
        later = "later.conversation = runs.conversation AND later.number > runs.number"
        return f"{condition} AND NOT EXISTS (SELECT FROM $s.runs AS later WHERE {later} AND {condition})", values * 2
    return condition, values


async def read_commands(
    connection: Connection, address: Address, task_id: str, after: int
) -> list[tuple[int, Command]]:
    """Return commands after a number.

    Raises:
        UnknownRun: If the run does not exist.
        EventLogError: If a command cannot be parsed.
    """
    query = address.sql(
        "SELECT c.number, c.json FROM $s.runs r LEFT JOIN $s.commands c ON c.run = r.number AND c.number > %s"
        " WHERE r.task_id = %s ORDER BY c.number"
    )
    rows = (
        await (await connection.execute(query, (after, task_id), binary=True)).fetchall() if can_store(task_id) else []
    )
    if not rows:
        raise make_unknown_run_error(task_id)
    return to_commands(task_id, [row for row in rows if row[0] is not None])


async def list_orphaned(
    connection: Connection, address: Address, submitted: tuple[float, int | None, str | None], grace_period: float
) -> list[RunRecord]:
    """Return resumable runs without a live holder, including runs submitted long ago.

    Args:
        connection: Database connection.
        address: Database address.
        submitted: Filter for submitted runs: minimum age in seconds, maximum number, and previous run ID.
        grace_period: Grace period in seconds after a server start, in which owners acquire their leases again.
    """
    before, limit, after = submitted
    values = {"before": before, "limit": limit, "after": after, "grace_period": grace_period}
    rows = await (await connection.execute(address.sql(_ORPHANED), values)).fetchall()
    return [to_record(row) for row in rows]


async def is_orphaned(connection: Connection, address: Address, task_id: str, grace_period: float) -> bool:
    """Return True if a working run has no live holder; see `list_orphaned`."""
    values = {"task": task_id, "grace_period": grace_period}
    rows = await (await connection.execute(address.sql(_IS_ORPHANED), values)).fetchall() if can_store(task_id) else []
    return bool(rows)


_RUNS = f"""
WITH {RANGE_CTE}
SELECT s.number, s.task_id, s.seq, s.updated, s.idle, EXISTS (SELECT FROM mark),
    f.last, f.runs, f.events, f.crc, f.summary, f.messages
FROM (SELECT 1) AS one LEFT JOIN span s ON true
LEFT JOIN $s.folds f ON f.context_id = %(conversation)s AND f.first = s.number AND f.version = %(version)s
ORDER BY s.number
"""

_EVENTS = "SELECT run, seq, sub, json FROM $s.events WHERE run = ANY (%s::bigint[]) AND sub = 0 ORDER BY run, seq"

_STORE_FOLD = """
WITH ends AS (
    SELECT (SELECT number FROM $s.runs WHERE task_id = %(first)s AND conversation = %(conversation)s) AS first,
        (SELECT number FROM $s.runs WHERE task_id = %(last)s AND conversation = %(conversation)s) AS last
), fitting AS (
    SELECT first, last FROM ends WHERE (%(runs)s, %(events)s) = (
        SELECT count(*), coalesce(sum(seq), 0) FROM $s.runs
        WHERE conversation = %(conversation)s AND number BETWEEN ends.first AND ends.last
    )
), gone AS (
    DELETE FROM $s.folds f USING fitting
    WHERE f.context_id = %(conversation)s AND f.first <= fitting.last AND f.last >= fitting.first
)
INSERT INTO $s.folds (context_id, first, last, runs, events, version, crc, summary, messages)
SELECT %(conversation)s, first, last, %(runs)s, %(events)s, %(version)s, %(crc)s, %(summary)b, %(messages)b FROM fitting
"""


async def read_conversation(
    connection: Connection, address: Address, conversation: str, before: str, after: Mark | None, version: int
) -> ConversationPage:
    """Return earlier runs of a conversation. With a valid mark, only runs after the mark are returned."""
    values = {"conversation": conversation, "before": before, "version": version, **asdict(after or NO_MARK)}
    rows = await (await connection.execute(address.sql(_RUNS), values, binary=True)).fetchall()
    has_mark = bool(rows[0][5])
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
    covered_runs = cover_runs(runs, folds)
    event_rows: list[Row] = []
    if numbers := [run.number for run, fold in covered_runs if fold is None]:
        cursor = await connection.execute(address.sql(_EVENTS), (to_array(numbers),), binary=True)
        event_rows = await fetch_rows(cursor)
    parts = await convert(partial(make_parts, covered_runs), event_rows)
    return ConversationPage(parts, extend_mark(after if has_mark else None, runs), from_start=not has_mark)


async def store_folds(
    connection: Connection, address: Address, conversation: str, folds: Sequence[RunFold], version: int
) -> None:
    """Store folds whose runs are unchanged, replacing overlapping folds."""
    for fold in folds:
        values = {
            "conversation": conversation,
            "first": fold.first,
            "last": fold.last,
            "version": version,
            "runs": fold.runs,
            "events": fold.events,
            "crc": checksum(fold.summary, fold.messages),
            "summary": fold.summary,
            "messages": fold.messages,
        }
        await connection.execute(address.sql(_STORE_FOLD), values)


_RUN = "(SELECT number FROM $s.runs WHERE task_id = %(task)s)"

_NEW_EVENTS = f"SELECT seq, sub, json FROM $s.events WHERE run = {_RUN} AND sub = 0 AND seq > %(seq)s ORDER BY seq"

_NEW_COMMANDS = f"SELECT number, json FROM $s.commands WHERE run = {_RUN} AND number > %(command)s ORDER BY number"

_NEIGHBOURS = f"""
WITH run AS MATERIALIZED (SELECT number, conversation FROM $s.runs WHERE task_id = %(task)s), later AS (
    SELECT r.number FROM run, $s.runs r WHERE r.conversation = run.conversation AND r.number > run.number
        AND r.state <> 'submitted' AND NOT (r.state IN ('canceled', 'failed') AND r.seq <= {IDLE_RUN_EVENTS})
    ORDER BY r.number LIMIT 1
), listed AS (
    SELECT number FROM run UNION ALL SELECT number FROM later UNION ALL
    SELECT r.number FROM run, $s.runs r WHERE r.conversation = run.conversation AND r.number < run.number
        AND r.state IN ('input-required', 'auth-required') AND r.state NOT IN ('completed', 'failed')
)
SELECT number, {RECORD} FROM $s.runs JOIN listed USING (number) ORDER BY number
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
    if not can_store(task_id):
        raise make_unknown_run_error(task_id)
    known = since.events if since is not None else ()
    values = {
        "task": task_id,
        "seq": known[-1].seq if known else 0,
        "command": since.state.last_command if since is not None else 0,
    }
    # The statements share a round trip and are executed in this order.
    async with connection.pipeline() if psycopg.Pipeline.is_supported() else nullcontext():
        runs = await connection.execute(address.sql(_NEIGHBOURS), values)
        first_events = f"{_NEW_EVENTS} LIMIT {MAX_ROWS}"
        events = await connection.execute(address.sql(first_events), values, binary=True)
        commands = await connection.execute(address.sql(_NEW_COMMANDS), values, binary=True)
        records = [to_record(row[1:]) for row in await runs.fetchall()]
        rows = await events.fetchall()
        command_rows = await commands.fetchall()
    if len(rows) == MAX_ROWS:
        # A pipeline would receive all rows at once.
        events = await connection.execute(address.sql(_NEW_EVENTS), values | {"seq": rows[-1][0]}, binary=True)
        rows += await fetch_rows(events)
        # No command must be missing that was stored before the last event.
        commands = await connection.execute(address.sql(_NEW_COMMANDS), values, binary=True)
        command_rows = await commands.fetchall()
    position = next((position for position, record in enumerate(records) if record.task_id == task_id), None)
    if position is None or (len(rows) >= MAX_ROWS and rows[-1][0] < records[position].seq):
        # The run does not exist, or was deleted between the statements.
        raise make_unknown_run_error(task_id)
    page = None
    if history is not None:
        after, version = history
        page = await read_conversation(connection, address, records[position].conversation, task_id, after, version)
    return Snapshot(
        record=records[position],
        events=[*known, *await convert(partial(parse_events, task_id), rows)],
        commands=to_commands(task_id, command_rows),
        waiting=records[:position][::-1],
        later=next(iter(records[position + 1 :]), None),
        history=page,
    )
