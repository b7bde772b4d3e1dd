"""Notifications that foreign roles cannot read or forge."""

from __future__ import annotations

import asyncio
import secrets

import psycopg
import pytest

from rxloop import PostgresEventLog
from rxloop.protocol.events import ContentDeltaEvent
from rxloop.testing.event_log_contract.toolkit import Follower, end, note, start_events
from support.postgres.logs import MakeLog, is_listening, query_rows, wait_until

pytestmark = pytest.mark.service("postgres")


async def test_role_that_can_only_connect_neither_receives_nor_sends_notifications(postgres_database: str) -> None:
    role = f"rxloop_{secrets.token_hex(4)}"
    # A monitoring role sees the statements of other roles.
    await query_rows(postgres_database, f"CREATE ROLE {role} LOGIN PASSWORD 'x' IN ROLE pg_monitor")
    log = PostgresEventLog(postgres_database)
    try:
        await log.append("run", start_events(), expected_seq=0)
        follower = Follower(log, deltas=True)
        await follower.wait_for_events(1, 2)
        [[channel]] = await query_rows(postgres_database, "SELECT channel FROM rxloop.version")
        dsn = postgres_database.replace("postgres@", f"{role}:x@")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await query_rows(dsn, "SELECT channel FROM rxloop.version")
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as stranger:
            statements = await (await stranger.execute("SELECT query FROM pg_stat_activity")).fetchall()
            assert any("LISTEN" in statement for [statement] in statements)
            assert channel not in str(statements)
            for guess in ("rxloop", "rxloop_rxloop", "*"):
                await stranger.execute(f'LISTEN "{guess}"'.encode())
            delta = ContentDeltaEvent(task_id="run", seq=2, sub=1, delta="x")
            await log.append("run", [delta, note(3)], expected_seq=2)
            await log.append("run", [end(4)], expected_seq=3)
            await asyncio.wait_for(follower.task, 10)
            assert [notify async for notify in stranger.notifies(timeout=0.2)] == []
    finally:
        await log.aclose()
        await query_rows(postgres_database, f"DROP ROLE {role}")


async def test_notification_cannot_add_a_durable_event(postgres: str, new_log: MakeLog) -> None:
    log = new_log()
    await log.append("run", start_events(), expected_seq=0)
    follower = Follower(log, deltas=True)
    await follower.wait_for_events(1, 2)
    query = log._address.sql("SELECT version.channel, runs.number FROM $s.version, $s.runs").decode()
    [[channel, number]] = await query_rows(postgres, query)
    await wait_until(lambda: is_listening(log))
    for forged in (end(3), note(3), note(4)):
        payload = f"d{number}:{forged.seq}.0:0:1:{forged.to_json().decode()}"
        await query_rows(postgres, "SELECT pg_notify(%s, %s)", channel, payload)
    # This delta shows that the previous notifications were processed.
    delta = ContentDeltaEvent(task_id="run", seq=2, sub=1, delta="x")
    await query_rows(postgres, "SELECT pg_notify(%s, %s)", channel, f"d{number}:2.1:0:1:{delta.to_json().decode()}")
    await follower.wait_for_events(1, 2, 2)
    await log.append("run", [end(3)], expected_seq=2)
    await asyncio.wait_for(follower.task, 10)
