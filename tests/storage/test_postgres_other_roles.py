"""Locks held and notifications sent by a role that can only connect to the database."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator

import psycopg
import pytest

from rxloop import PostgresEventLog
from rxloop.errors import ArtifactExists
from rxloop.runtime import PostgresQueue
from rxloop.runtime import postgres_queue as module
from rxloop.runtime.tenant_slots import TenantSlots
from rxloop.testing.event_log_contract.toolkit import note, start_events
from support.postgres.logs import query_rows
from support.postgres.queues import JobRecorder, open_queue, serve_queue

pytestmark = pytest.mark.service("postgres")

Connection = psycopg.AsyncConnection[tuple[object, ...]]


@pytest.fixture
async def stranger(postgres_database: str) -> AsyncIterator[Connection]:
    """Connection of a role that can only connect."""
    role = f"rxloop_{secrets.token_hex(4)}"
    await query_rows(postgres_database, f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
    dsn = postgres_database.replace("postgres@", f"{role}:x@")
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        yield connection
    await query_rows(postgres_database, f"DROP ROLE {role}")


async def test_artifacts_are_written_while_another_role_holds_all_their_locks(
    postgres_database: str, stranger: Connection
) -> None:
    log = PostgresEventLog(postgres_database)
    await log.append("run", start_events(), expected_seq=0)
    await stranger.execute("SELECT pg_advisory_lock(hashtextextended('rxloop/c/report', 1))")
    async with asyncio.timeout(5):
        await log.artifacts.create("c", "report", name="r", media_type="text/plain", override=False, key="a", now=1)
        await log.append("run", [note(3)], expected_seq=2)
    await log.aclose()


async def test_concurrent_processes_create_the_first_version_of_an_artifact_once(postgres_database: str) -> None:
    logs = [PostgresEventLog(postgres_database) for _ in range(4)]
    for number in range(5):
        outcomes = await asyncio.gather(
            *(
                log.artifacts.create(
                    "c", f"a{number}", name="r", media_type="text/plain", override=False, key=f"{index}", now=1
                )
                for index, log in enumerate(logs)
            ),
            return_exceptions=True,
        )
        assert sum(isinstance(outcome, ArtifactExists) for outcome in outcomes) == 3, outcomes
        assert len(await logs[0].artifacts.versions("c", f"a{number}")) == 1
    for log in logs:
        await log.aclose()


async def test_queue_opens_while_another_role_holds_the_lock_for_its_tables(
    postgres_database: str, stranger: Connection
) -> None:
    async with open_queue(postgres_database) as queue:
        await queue.waiting()
    await stranger.execute("SELECT pg_advisory_lock(%s)", (module._LOCK,))
    async with open_queue(postgres_database) as queue, asyncio.timeout(5):
        assert await queue.waiting() == 0


@pytest.mark.parametrize("payload", ["", "x", "[]", "{}", '{"type":"abort_job_requested","job_id":1}'])
async def test_forged_notification_does_not_interrupt_a_worker(
    postgres_database: str, stranger: Connection, payload: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_POLL_INTERVAL", 3600.0)
    started, finish, finished = asyncio.Event(), asyncio.Event(), JobRecorder(1)

    async def execute(task_id: str) -> None:
        started.set()
        await finish.wait()
        await finished(task_id)

    async with open_queue(postgres_database) as queue, serve_queue(queue, execute) as task:
        await queue.enqueue("a")
        await started.wait()
        manager = await _wait_until_listening(queue)
        before = manager._notifications
        await stranger.execute("SELECT pg_notify('procrastinate_queue_v1#rxloop', %s)", (payload,))
        async with asyncio.timeout(10):
            while manager._notifications == before and not task.done():  # noqa: ASYNC110 (no notification exists)
                await asyncio.sleep(0.01)
        finish.set()
        async with asyncio.timeout(10):
            await finished.all.wait()
        assert not task.done()


async def _wait_until_listening(queue: PostgresQueue) -> TenantSlots:
    manager = (await queue._get_app()).job_manager
    assert isinstance(manager, TenantSlots)
    async with asyncio.timeout(10):
        while not manager._notifications:
            await queue.enqueue(secrets.token_hex(4))
            await asyncio.sleep(0.01)
    return manager
