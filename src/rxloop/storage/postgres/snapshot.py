"""Queries of the snapshot of a run."""

from __future__ import annotations

from contextlib import nullcontext

import psycopg

from rxloop.pipeline.records import NOTHING_DONE, HistoryQuery, Snapshot
from rxloop.storage.postgres.address import Address, Connection, can_keep
from rxloop.storage.postgres.reads import RECORD, commands_of, parsed, read_conversation, record_of
from rxloop.storage.rules import unknown_run

_RUN = "(SELECT number FROM $s.runs WHERE task_id = %(task)s)"

_EVENTS = f"SELECT seq, json FROM $s.events WHERE run = {_RUN} AND sub = 0 AND seq > %(seq)s ORDER BY seq"

_COMMANDS = f"SELECT number, json FROM $s.mail WHERE run = {_RUN} AND number > %(mail)s ORDER BY number"

_RUNS = f"""
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
"""The run, the earlier runs of its conversation that wait for answers, and the first later one that has begun."""


async def read_snapshot(
    connection: Connection, address: Address, task_id: str, since: Snapshot | None, history: HistoryQuery | None
) -> Snapshot:
    """Return the snapshot of a run.

    Raises:
        UnknownRun: The log has no such run.
        EventLogError: An event or a command cannot be read.
    """
    if not can_keep(task_id):
        raise unknown_run(task_id)
    known = since.events if since is not None else ()
    values = {
        "task": task_id,
        "seq": known[-1].seq if known else 0,
        "mail": since.state.mail if since is not None else 0,
    }
    # The statements travel together, and are executed in this order.
    async with connection.pipeline() if psycopg.Pipeline.is_supported() else nullcontext():
        runs = await connection.execute(address.sql(_RUNS), values)
        events = await connection.execute(address.sql(_EVENTS), values, binary=True)
        commands = await connection.execute(address.sql(_COMMANDS), values, binary=True)
        records = [record_of(row[1:]) for row in await runs.fetchall()]
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
        commands=commands_of(task_id, sent),
        waiting=records[:place][::-1],
        later=next(iter(records[place + 1 :]), None),
        history=page,
    )
