"""Invalid values, closed logs and failing statements in Postgres."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import time
import traceback
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from rxloop import ConfigurationError, PostgresEventLog
from rxloop.errors import EventLogError, LogRolledBack, LogUnreachable, UnknownRun
from rxloop.protocol.commands import CancelCommand
from rxloop.protocol.events import ContentDeltaEvent, Event
from rxloop.storage import postgres_log as postgres_log
from rxloop.storage.postgres import address
from rxloop.storage.postgres import listener as listener_module
from rxloop.storage.postgres import rows as removing
from rxloop.storage.postgres.address import Connection
from rxloop.storage.postgres.rows import Batch, write
from rxloop.testing.event_log_contract.toolkit import Follower, end, ids, note, start_events, task
from support.postgres.logs import MakeLog, is_listening, wait_until
from support.postgres.server import PostgresServer, new_schema, server_user
from support.processes.bound_processes import start_process

pytestmark = pytest.mark.service("postgres")

SECONDS = 10
UNREACHABLE = "postgresql://somebody:secret@127.0.0.1:1/db"


async def count_advisory_locks(address: str) -> int:
    async with await psycopg.AsyncConnection.connect(address) as connection:
        cursor = await connection.execute(
            "SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database"
            " WHERE locktype = 'advisory' AND datname = current_database()"
        )
        [[count]] = await cursor.fetchall()
        return count


def finished_run(task_id: str) -> list[Event]:
    return [task(task_id=task_id), end(2, task_id=task_id)]


# -- values


async def test_id_that_postgres_cannot_store_belongs_to_no_run(new_log: MakeLog) -> None:
    log = new_log()
    await log.append("run", start_events(), expected_seq=0)
    await log.read("run")
    await log.read("run")
    pool = log._engine().read.connections
    connections = {slot._connection for slot in pool}
    for strange in ("a\0b", "\ud800"):
        for ask in (
            log.read,
            log.get_record,
            log.read_commands,
            log.delete,
            lambda name: log.send_command(name, CancelCommand()),
        ):
            with pytest.raises(UnknownRun):
                await ask(strange)
        with pytest.raises(UnknownRun):
            async for _ in log.follow(strange):
                pass
        with pytest.raises(UnknownRun):
            await log.list_runs(after=strange)
        assert not await log.list_runs(owner=strange)
        assert not await log.list_runs(context_id=strange)
        assert not await log.list_runs(agent_name=strange)
        assert not await log.list_runs(metadata={strange: strange})
        with pytest.raises(EventLogError):
            await log.acquire_lease(strange, "run", pytest.fail)
    # No connection was replaced.
    assert {slot._connection for slot in pool} == connections
    assert ids(await log.list_runs()) == ["run"]


async def test_errors_do_not_contain_the_password() -> None:
    for dsn in ("postgresql//somebody:secret@h/db", f"{UNREACHABLE}?nonsense=secret"):
        with pytest.raises(ConfigurationError) as caught:
            PostgresEventLog(dsn)
        assert "secret" not in "".join(traceback.format_exception(caught.value))
    log = PostgresEventLog(UNREACHABLE, timeout=0)
    with pytest.raises(LogUnreachable) as unreachable:
        await log.get_record("run")
    texts = "".join(traceback.format_exception(unreachable.value))
    assert "secret" not in f"{texts} {log!r} {vars(log)!r}"


async def test_two_equal_long_deltas_are_both_delivered(new_log: MakeLog) -> None:
    reader, writer = new_log(), new_log()
    await writer.append("run", start_events(), expected_seq=0)
    seen: list[Event] = []
    received, both = asyncio.Event(), asyncio.Event()

    async def follow() -> None:
        async for event in reader.follow("run", deltas=True):
            seen.append(event)
            if not event.durable:
                received.set()
            if event.sub == 501:
                both.set()

    def delta(sub: int, branch: str, text: str) -> ContentDeltaEvent:
        return ContentDeltaEvent(task_id="run", seq=2, sub=sub, step=branch, branch=branch, delta=text)

    follower = asyncio.create_task(follow())
    for sub in range(1, 200):
        # Repeat until the listener receives notifications.
        await writer.append("run", [delta(sub, "a", "x")], expected_seq=2)
        with suppress(TimeoutError):
            await asyncio.wait_for(received.wait(), 0.05)
            break
    await writer.append("run", [delta(500, "a", "x" * 6000), delta(501, "b", "x" * 6000)], expected_seq=2)
    # The end may overtake the notifications.
    await asyncio.wait_for(both.wait(), SECONDS)
    await writer.append("run", [end(3)], expected_seq=2)
    await asyncio.wait_for(follower, SECONDS)
    assert [(event.seq, event.sub) for event in seen][-3:] == [(2, 500), (2, 501), (3, 0)]


# -- failures


async def test_log_without_a_timeout_reconnects_at_the_next_call() -> None:
    with PostgresServer() as server:
        log = PostgresEventLog(server.dsn, timeout=0)
        await log.append("run", start_events(), expected_seq=0)
        server.stop()
        for _ in range(2):
            with pytest.raises(LogUnreachable):
                await log.append("run", [end(3)], expected_seq=2)
        server.start()
        await log.append("run", [end(3)], expected_seq=2)
        await log.aclose()


async def test_lease_acquired_at_the_second_try_is_free_after_its_release(
    postgres_database: str,
) -> None:
    impatient_dsn = f"{postgres_database}?options=-c%20lock_timeout%3D100"
    log = PostgresEventLog(impatient_dsn)
    await log.append("run", start_events(context_id="c"), expected_seq=0)
    async with await psycopg.AsyncConnection.connect(postgres_database) as other:
        await other.execute("SELECT FROM rxloop.runs FOR UPDATE")
        acquisition = asyncio.create_task(log.acquire_lease("c", "run", pytest.fail))
        await asyncio.sleep(0.4)
        await other.rollback()
        assert await asyncio.wait_for(acquisition, SECONDS)
    await log.release_lease("c", "run")
    assert not await count_advisory_locks(postgres_database)
    await log.aclose()


async def test_lease_that_could_not_be_acquired_is_free(postgres_database: str) -> None:
    impatient_dsn = f"{postgres_database}?options=-c%20lock_timeout%3D50"
    log = PostgresEventLog(impatient_dsn, timeout=0)
    await log.append("run", start_events(context_id="c"), expected_seq=0)
    async with await psycopg.AsyncConnection.connect(postgres_database) as other:
        await other.execute("SELECT FROM rxloop.runs FOR UPDATE")
        with pytest.raises(EventLogError):
            await log.acquire_lease("c", "run", pytest.fail)
        assert not await count_advisory_locks(postgres_database)
    await log.aclose()


# -- logs closed during use


def log_tasks() -> set[str]:
    """Names of the running tasks of event logs."""
    return {name for task in asyncio.all_tasks() if (name := task.get_name()).startswith("rxloop-log")}


async def test_follower_raises_an_error_after_the_log_is_closed(new_log: MakeLog) -> None:
    log = new_log()
    await log.append("run", start_events(), expected_seq=0)
    events = log.follow("run")
    await anext(events)
    await log.aclose()
    assert (await anext(events)).seq == 2
    with pytest.raises(EventLogError, match="was closed"):
        await asyncio.wait_for(anext(events), SECONDS)
    assert not log_tasks()
    assert not log._engines._engines


async def test_lease_that_is_being_acquired_is_free_after_the_log_is_closed(postgres_database: str) -> None:
    log = PostgresEventLog(postgres_database)
    await log.append("run", start_events(context_id="c"), expected_seq=0)
    async with await psycopg.AsyncConnection.connect(postgres_database) as other:
        await other.execute("SELECT FROM rxloop.runs FOR UPDATE")
        acquisition = asyncio.create_task(log.acquire_lease("c", "run", lambda: None))
        await asyncio.sleep(0.1)
        closing = asyncio.create_task(log.aclose())
        await asyncio.sleep(0.1)
    assert await asyncio.wait_for(asyncio.gather(acquisition, closing), SECONDS) == [False, None]
    assert not log_tasks()
    assert not await count_advisory_locks(postgres_database)


async def test_log_with_many_leases_closes_quickly_when_the_server_is_gone() -> None:
    with PostgresServer() as server:
        log = PostgresEventLog(server.dsn, timeout=1)
        for number in range(10):
            assert await log.acquire_lease(f"c{number}", "run", lambda: None)
        server.stop()
        async with asyncio.timeout(4):
            await log.aclose()


# -- removed and restored data


async def test_events_are_appended_while_many_runs_are_deleted(
    new_log: MakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removing, "RUNS_PER_TRANSACTION", 2)
    monkeypatch.setattr(postgres_log, "RUNS_PER_TRANSACTION", 2)
    log = new_log()
    await asyncio.gather(
        *(log.append(f"{name}", [*finished_run(name)], expected_seq=0) for name in map(str, range(20)))
    )
    await log.append("run", start_events(), expected_seq=0)
    removing_all = asyncio.create_task(log.trim(-60))
    await wait_until(lambda: log._engine().write.is_busy)
    await log.append("run", [end(3, "canceled")], expected_seq=2)
    assert not removing_all.done()
    assert len(await removing_all) == 20
    assert ids(await log.list_runs()) == ["run"]


async def test_slow_reader_gets_an_error_when_the_log_is_rolled_back(new_log: MakeLog) -> None:
    log = new_log()
    await log.append("run", start_events(), expected_seq=0)
    events = log.follow("run")
    assert [(await anext(events)).seq, (await anext(events)).seq] == [1, 2]
    third = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0.05)
    await log.append("run", [note(3)], expected_seq=2)
    assert (await third).seq == 3
    await log.append("run", [note(seq) for seq in range(4, 400)], expected_seq=3)
    schema = log._address.schema
    async with await psycopg.AsyncConnection.connect(log._address.dsn) as connection:
        await connection.execute(f"DELETE FROM {schema}.events WHERE seq > 2".encode())
        await connection.execute(f"UPDATE {schema}.runs SET seq = 2".encode())

    async def read_rest() -> None:
        async for _ in events:
            pass

    # First, the reader gets an unknown number of buffered events.
    with pytest.raises(LogRolledBack, match=r"event \d+ of run run is missing"):
        await asyncio.wait_for(read_rest(), SECONDS)


async def test_local_follower_gets_a_batch_at_once_when_its_answer_was_lost(
    new_log: MakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener_module, "POLL_SECONDS", 3600)
    log = new_log()
    await log.append("run", start_events(), expected_seq=0, writer="me")
    follower = Follower(log)
    await follower.wait_for_events(1, 2)
    engine = log._engine()
    last = [end(3)]
    await wait_until(lambda: is_listening(log))

    # Simulate a connection that breaks between the commit and the answer.
    async def lose_answer(connection: Connection) -> None:
        batch = Batch("run", last, 2, "me", has_lease=False, live=True)
        [outcome] = await write(connection, log._address, engine.leases.holder_id, [batch])
        assert outcome.number is not None

    await engine.run_write(lose_answer)
    await log.append("run", last, expected_seq=2, writer="me")
    await asyncio.wait_for(follower.task, SECONDS)


# -- the server


async def test_database_with_a_limited_encoding_is_refused(postgres: str) -> None:
    name = new_schema()
    async with await psycopg.AsyncConnection.connect(postgres, autocommit=True) as connection:
        await connection.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'".encode())
        try:
            log = PostgresEventLog(f"{postgres.rpartition('/')[0]}/{name}")
            with pytest.raises(EventLogError, match="encoding UTF8, got LATIN1"):
                await log.append("run", start_events(), expected_seq=0)
            await log.aclose()
        finally:
            await connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.mark.skipif(
    shutil.which("pgbouncer") is None, reason="there is no pgbouncer (Debian: apt-get install pgbouncer)"
)
async def test_lease_is_refused_when_a_bouncer_shares_sessions(postgres: str) -> None:
    with TemporaryDirectory() as folder, bouncer(postgres, Path(folder)) as shared:
        good = PostgresEventLog(shared, session_dsn=postgres, schema=new_schema())
        await good.append("run", start_events(context_id="c"), expected_seq=0)
        follower = Follower(good)
        await follower.wait_for_events(1, 2)
        assert await good.acquire_lease("c", "run", pytest.fail)
        await good.append("run", [end(3, context_id="c")], expected_seq=2)
        await asyncio.wait_for(follower.task, SECONDS)
        await good.aclose()
        log = PostgresEventLog(shared, schema=new_schema())
        with pytest.raises(EventLogError, match="session_dsn"):
            await log.acquire_lease("c", "run", pytest.fail)
        await log.aclose()


@contextmanager
def bouncer(address: str, folder: Path) -> Generator[str]:
    """Run a PgBouncer in transaction mode, and return its address."""
    there = conninfo_to_dict(address)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "users").write_text('"postgres" ""')
    (folder / "ini").write_text(
        f"[databases]\n* = host={there['host']} port={there['port']}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
        f"listen_port = {port}\nauth_type = trust\nauth_file = {folder / 'users'}\npool_mode = transaction\n"
        f"unix_socket_dir =\nlogfile = {folder / 'log'}\n"
    )
    user = server_user()
    if user is not None:
        for path in (folder, *folder.iterdir()):
            shutil.chown(path, user)
    process = start_process(["pgbouncer", folder / "ini"], user=user, stderr=subprocess.DEVNULL)
    shared = f"postgresql://postgres@127.0.0.1:{port}/{there['dbname']}"
    try:
        for _ in range(200):
            with suppress(psycopg.Error), psycopg.connect(shared, connect_timeout=2):
                break
            time.sleep(0.05)
        yield shared
    finally:
        process.kill()
        process.wait()


async def test_role_that_owns_the_schema_needs_no_right_to_create_schemas(postgres: str) -> None:
    schema, role = new_schema(), f"owner_{new_schema()}"
    async with await psycopg.AsyncConnection.connect(postgres, autocommit=True) as connection:
        await connection.execute(f"CREATE ROLE {role} LOGIN".encode())
        await connection.execute(f"CREATE SCHEMA {schema} AUTHORIZATION {role}".encode())
        log = PostgresEventLog(postgres.replace("//postgres@", f"//{role}@"), schema=schema)
        await log.append("run", start_events(), expected_seq=0)
        assert ids(await log.list_runs()) == ["run"]
        await log.aclose()
        await connection.execute(f"DROP OWNED BY {role}".encode())
        await connection.execute(f"DROP ROLE {role}".encode())


async def test_process_frozen_in_a_transaction_blocks_others_only_briefly(
    new_log: MakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(address, "_TRANSACTION_TIMEOUT", 300)
    frozen, log = new_log(), new_log()
    await log.append("run", start_events(), expected_seq=0)
    began = asyncio.Event()
    tries = 0

    async def work(connection: Connection) -> int:
        nonlocal tries
        tries += 1
        async with connection.transaction():
            await connection.execute(f"SELECT FROM {frozen._address.schema}.runs FOR UPDATE".encode())
            began.set()
            # Exceed the limit only in the first call.
            await asyncio.sleep(4 if tries == 1 else 0)
        return tries

    run_write = asyncio.create_task(frozen._engine().run_write(work))
    await began.wait()
    async with asyncio.timeout(3):
        await log.append("run", [end(3)], expected_seq=2)
    assert await run_write == 2
