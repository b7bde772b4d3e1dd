"""Query plans of appends and of the search for orphaned runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from rxloop import PostgresEventLog
from rxloop.storage.postgres import reads
from rxloop.storage.postgres.address import Connection
from rxloop.testing.event_log_contract.toolkit import note, start_events
from support.postgres.logs import MakeLog, query_rows

pytestmark = pytest.mark.service("postgres")

_PREPARED = """
SELECT name, cardinality(parameter_types), generic_plans, custom_plans FROM pg_prepared_statements
WHERE statement LIKE '%INSERT INTO%events%'
"""
_INSERT_WAITING = """
INSERT INTO $s.runs (task_id, context_id, agent_name, state, idle, attempt, seq, created, updated, writer, last_command,
    model, labels, inserted_at)
SELECT 'old' || n, 'c' || n, 'a', 'submitted', false, 1, 1, 0, 0, 'w', 0, 'm', '{}', now() - interval '1 hour'
FROM generate_series(1, 20000) AS n
"""
_INSERT_FINISHED = """
INSERT INTO $s.runs (task_id, context_id, agent_name, state, idle, attempt, seq, created, updated, writer, last_command,
    model, labels)
SELECT 'old' || n, 'c', 'a', 'completed', true, 1, 1, 0, 0, 'w', 0, 'm', '{}' FROM generate_series(1, 20000) AS n
"""


async def test_appends_use_a_shared_plan(new_log: MakeLog) -> None:
    log = new_log()
    await _append(log)
    shared, custom, _ = await _plan(log)
    assert shared > 10
    assert custom == 0


async def test_append_stops_scanning_the_table_soon_after_it_has_grown(postgres: str, new_log: MakeLog) -> None:
    log = new_log()
    await _append(log)
    assert "Seq Scan on runs" in (await _plan(log))[2]
    await query_rows(postgres, _INSERT_FINISHED.replace("$s", log._address.schema))
    async with asyncio.timeout(10):
        while "Seq Scan on runs" in (await _plan(log))[2]:  # noqa: ASYNC110 (the plan changes without a notification)
            await asyncio.sleep(0.05)


async def test_orphaned_runs_are_found_without_reading_all_waiting_runs(postgres: str, new_log: MakeLog) -> None:
    log = new_log()
    await log.append("run", start_events(), expected_seq=0)
    await query_rows(postgres, _INSERT_WAITING.replace("$s", log._address.schema))
    for table in ("runs", "leases", "commands"):
        await query_rows(postgres, f"VACUUM ANALYZE {log._address.schema}.{table}")
    explain = "EXPLAIN (ANALYZE, FORMAT JSON) " + reads._ORPHANED.replace("$s", log._address.schema)
    values = {"before": 20, "limit": 0, "after": "NULL", "grace_period": 0}
    [[[plan]]] = await query_rows(postgres, explain % values)
    assert plan["Plan"]["Actual Rows"] == 1
    assert sum(_count_run_rows(plan["Plan"])) < 10


def _count_run_rows(plan: dict[str, Any]) -> Iterator[int]:
    """Yield the rows read from the table `runs` by each part of a plan."""
    if plan.get("Relation Name") == "runs":
        yield (plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)) * plan["Actual Loops"]
    for part in plan.get("Plans", ()):
        yield from _count_run_rows(part)


async def _append(log: PostgresEventLog) -> None:
    """Append often enough to prepare the statement."""
    await log.append("run", start_events(), expected_seq=0)
    for seq in range(3, 23):
        await log.append("run", [note(seq)], expected_seq=seq - 1)


async def _plan(log: PostgresEventLog) -> tuple[int, int, str]:
    """Return the use counts of shared and custom plans for appends, and the text of the shared plan."""

    async def work(connection: Connection) -> tuple[int, int, str]:
        cursor = await connection.execute(_PREPARED.encode(), prepare=False)
        [[name, values, shared, custom]] = await cursor.fetchall()
        execute = f'EXPLAIN (COSTS OFF) EXECUTE "{name}"({", ".join(["NULL"] * values)})'
        lines = await (await connection.execute(execute.encode(), prepare=False)).fetchall()
        return shared, custom, "\n".join(line for (line,) in lines)

    return await log._engine().run_write(work)
