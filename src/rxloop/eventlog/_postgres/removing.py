"""How runs are removed from a Postgres log."""

from __future__ import annotations

from collections.abc import Sequence

from rxloop.eventlog._postgres.address import Address, Connection, can_keep
from rxloop.eventlog._postgres.rows import numbers
from rxloop.eventlog.rules import check_finished, unknown_run

AT_ONCE = 200
"""Runs that are removed in one transaction: what is appended meanwhile waits for it."""
_OF_RUNS = (
    "DELETE FROM $s.folds f USING $s.runs r WHERE r.number = ANY (%(runs)s::bigint[])"
    " AND f.context_id = r.context_id AND r.number BETWEEN f.first AND f.last",
    "DELETE FROM $s.mail WHERE run = ANY (%(runs)s::bigint[])",
    "DELETE FROM $s.events WHERE run = ANY (%(runs)s::bigint[])",
    "DELETE FROM $s.runs WHERE number = ANY (%(runs)s::bigint[])",
)
_DELTAS = "DELETE FROM $s.events WHERE run = ANY (%(runs)s::bigint[]) AND sub > 0"


async def remove_run(connection: Connection, address: Address, task_id: str) -> None:
    """Remove a run that has ended for good.

    Raises:
        UnknownRun: The log holds no such run.
        EventLogError: It can still go on.
    """
    if not can_keep(task_id):
        raise unknown_run(task_id)
    async with connection.transaction():
        query = address.sql("SELECT number, state FROM $s.runs WHERE task_id = %s FOR UPDATE")
        found = await (await connection.execute(query, (task_id,))).fetchone()
        if found is None:
            raise unknown_run(task_id)
        check_finished(task_id, found[1])
        await _remove(connection, address, [found[0]], deltas_only=False)


async def trim(
    connection: Connection, address: Address, before: int, states: Sequence[str], deltas_only: bool, after: int
) -> list[tuple[int, str]]:
    """Remove the next runs in these states that are older than that, or their transient events.

    Args:
        connection: The connection.
        address: The database.
        before: The time that they are older than.
        states: The states.
        deltas_only: Remove only their transient events.
        after: The number of the last run that was removed.

    Returns:
        The numbers and ids of the runs, at most `AT_ONCE`.
    """
    having = " AND EXISTS (SELECT FROM $s.events WHERE run = number AND sub > 0)" if deltas_only else ""
    query = address.sql(
        f"SELECT number, task_id FROM $s.runs WHERE number > %s AND updated < %s AND state = ANY (%s){having}"
        f" ORDER BY number LIMIT {AT_ONCE} FOR UPDATE"
    )
    async with connection.transaction():
        found = await (await connection.execute(query, (after, before, [*states]))).fetchall()
        await _remove(connection, address, [number for number, _ in found], deltas_only=deltas_only)
    return [(number, task_id) for number, task_id in found]


async def _remove(connection: Connection, address: Address, runs: Sequence[int], *, deltas_only: bool) -> None:
    if runs:
        for statement in (_DELTAS,) if deltas_only else _OF_RUNS:
            await connection.execute(address.sql(statement), {"runs": numbers(runs)})
