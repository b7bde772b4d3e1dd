"""Permissions, schemas and addresses for Postgres logs."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from typing import Any

import psycopg
import pytest

from rxloop import ConfigurationError, PostgresEventLog
from rxloop.errors import EventLogError
from rxloop.protocol.commands import CancelCommand
from rxloop.storage.postgres import schema
from rxloop.testing.event_log_contract.toolkit import Follower, end, ids, note, start_events, task, wait_for
from support.postgres.logs import MakeLog, query_rows
from support.postgres.proxies import Proxy
from support.postgres.server import new_schema

pytestmark = pytest.mark.service("postgres")


async def test_concurrent_processes_create_the_tables_once(postgres: str) -> None:
    ours = new_schema()
    logs = [PostgresEventLog(postgres, schema=ours) for _ in range(5)]
    await asyncio.gather(*(log.append(f"run{number}", [task()], expected_seq=0) for number, log in enumerate(logs)))
    assert len(await logs[0].list_runs()) == 5
    for log in logs:
        await log.aclose()


async def test_logs_in_two_schemas_are_independent(new_log: MakeLog) -> None:
    one, two = new_log(), new_log(schema=new_schema())
    await one.append("run", start_events(), expected_seq=0)
    assert ids(await two.list_runs()) == []
    assert await one.acquire_lease("c", "run", pytest.fail)
    assert await two.acquire_lease("c", "run", pytest.fail)


async def test_role_with_few_rights_can_use_existing_tables(postgres_database: str) -> None:
    role = f"rxloop_{secrets.token_hex(4)}"
    await query_rows(postgres_database, f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
    try:
        log = PostgresEventLog(postgres_database.replace("postgres@", f"{role}:x@"), lease=1_000)
        with pytest.raises(EventLogError, match=r"permission denied .*migrate\(grant=\.\.\.\)"):
            await log.list_runs()
        owner = PostgresEventLog(postgres_database)
        await owner.migrate(grant=role)
        await owner.migrate(grant=role)
        await log.append("run", start_events(context_id="c"), expected_seq=0)
        assert await log.acquire_lease("c", "run", pytest.fail)
        await log.send_command("run", CancelCommand())
        assert ids(await log.list_orphaned()) == []
        ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s"
        await query_rows(postgres_database, ended, role)
        assert await log.has_lease("c", "run")
        await log.append("run", [end(3)], expected_seq=2)
        await log.delete("run")
        for statement in ("DROP TABLE rxloop.runs", "UPDATE rxloop.version SET number = 0"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                await query_rows(log._address.dsn, statement)
        await log.aclose()
        await owner.aclose()
    finally:
        await query_rows(postgres_database, f"DROP OWNED BY {role}")
        await query_rows(postgres_database, f"DROP ROLE {role}")


async def test_tables_of_an_older_version_are_migrated(
    postgres: str, new_log: MakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr(schema, "SCHEMA", schema.SCHEMA[:1])
        await new_log().migrate()
    log = new_log()
    await log.append("run", start_events(), expected_seq=0)
    assert ids(await log.list_runs()) == ["run"]
    indexes = "SELECT indexname FROM pg_indexes WHERE schemaname = %s AND indexname LIKE 'runs_%%ing'"
    assert await query_rows(postgres, indexes, log._address.schema) == [("runs_waiting",)]


async def test_tables_of_a_newer_version_are_refused(postgres: str, new_log: MakeLog) -> None:
    log = new_log()
    await log.append("run", start_events(), expected_seq=0)
    await log.aclose()
    await query_rows(postgres, f"UPDATE {log._address.schema}.version SET number = 99")
    with pytest.raises(EventLogError, match="newer version of rxloop"):
        await new_log().append("run", [note(3)], expected_seq=2)


async def test_log_works_over_a_transaction_bouncer_with_a_session_dsn(postgres: str, new_log: MakeLog) -> None:
    proxy = Proxy()
    shared = await proxy.start(postgres)
    log = new_log(shared, session_dsn=postgres)
    await log.append("run", start_events(), expected_seq=0)
    follower = Follower(log)
    await follower.wait_for_events(1, 2)
    assert await log.acquire_lease("c", "run", pytest.fail)
    # The shared connection must not use the state of a session.
    for connection_slot in (log._engine().write, *log._engine().read.connections):
        connection = connection_slot._connection
        assert connection is None or connection.prepare_threshold is None
    proxy.cut_answers = True
    await asyncio.sleep(0.05)
    proxy.cut_answers = False
    await log.append("run", [end(3)], expected_seq=2, writer="mine")
    await wait_for(follower)
    assert await log.has_lease("c", "run")
    await log.aclose()
    await proxy.stop()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dsn": "postgresql://h:1/db?nonsense=1"}, "dsn must be a Postgres URL"),
        ({"dsn": "", "schema": 'a"b'}, "schema must be a name"),
        ({"dsn": "", "lease": 0}, "lease must be a positive number of seconds"),
        ({"dsn": "", "timeout": -1}, "timeout must be a number of seconds"),
        ({"dsn": "", "deltas": "some"}, "deltas must be 'drop', 'live' or 'keep', got 'some'"),
    ],
)
def test_invalid_option_is_refused(options: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        PostgresEventLog(**options)


@pytest.mark.parametrize("credentials", ["u:se@cret@h/db", "u:se/cret@h/db", "u:se@cr/et@h:1/db?connect_timeout=1"])
def test_unescaped_at_sign_is_refused_without_showing_the_password(credentials: str) -> None:
    with pytest.raises(ConfigurationError, match=r"contains an unescaped @ .* Write %40") as refused:
        PostgresEventLog(f"postgresql://{credentials}")
    assert "cret" not in str(refused.value)


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://u%40e.org:p%40w%2F@h:5432/a%40b",
        "postgresql:///db?host=/run/a@b&password=p@w",
        "host=@abstract dbname=a@b password=p@w/",
    ],
)
def test_escaped_at_sign_is_accepted(address: str) -> None:
    PostgresEventLog(address)


def test_forked_process_opens_its_own_connections(postgres: str) -> None:
    log = PostgresEventLog(postgres, schema=new_schema())

    async def fork_during_use() -> None:
        await log.append("run", start_events(), expected_seq=0)
        assert await log.acquire_lease("c", "run", pytest.fail)
        child = os.fork()
        if not child:
            code = 1
            try:
                # The event loop of the parent does not run in the child.
                asyncio.events._set_running_loop(None)
                code = asyncio.run(use_in_child())
            finally:
                os._exit(code)
        assert await asyncio.to_thread(os.waitpid, child, 0) == (child, 0)
        assert await log.has_lease("c", "run")
        await log.append("run", [note(3)], expected_seq=2)
        assert ids(await log.list_runs()) == ["run", "child"]
        await log.aclose()

    async def use_in_child() -> int:
        assert not await log.acquire_lease("c", "run", lambda: None)
        await log.append("child", start_events("child"), expected_seq=0)
        await log.aclose()
        return 0

    if sys.platform == "win32":
        pytest.skip("there are no forks")
    asyncio.run(fork_during_use())
