"""A log in Postgres that is given strange values, closed in the middle, or whose statements fail half-way."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import time
import traceback
from collections.abc import Callable, Generator
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
from rxloop.storage.postgres import listener as hearing
from rxloop.storage.postgres import rows as removing
from rxloop.storage.postgres.address import Connection
from rxloop.storage.postgres.rows import Batch, write
from rxloop.testing.event_log_contract.toolkit import Follower, begun, end, ids, note, task
from support.postgres.logs import MakeLog
from support.postgres.server import PostgresServer, new_schema, server_user
from support.processes.bound_processes import start_process

pytestmark = pytest.mark.service("postgres")

SECONDS = 10
NOWHERE = "postgresql://somebody:secret@127.0.0.1:1/db"


async def advisory_locks(address: str) -> int:
    """How many advisory locks there are in a database."""
    async with await psycopg.AsyncConnection.connect(address) as connection:
        cursor = await connection.execute(
            "SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database"
            " WHERE locktype = 'advisory' AND datname = current_database()"
        )
        [[count]] = await cursor.fetchall()
        return count


def finished(task_id: str) -> list[Event]:
    """All events of a run."""
    return [task(task_id=task_id), end(2, task_id=task_id)]


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(SECONDS):
        while not condition():  # noqa: ASYNC110 it is not told
            await asyncio.sleep(0)


def listens(log: PostgresEventLog) -> bool:
    """Whether a log is told of what comes."""
    with psycopg.connect(log._address.dsn) as connection:
        query = "SELECT FROM pg_stat_activity WHERE state = 'idle' AND query = %s"
        return connection.execute(query, (f'LISTEN "{log._address.channel}"',)).fetchone() is not None


# -- what is given


async def test_an_id_that_postgres_cannot_have_is_that_of_no_run(new_log: MakeLog) -> None:
    log = new_log()
    await log.append("run", begun(), expected_seq=0)
    await log.read("run")
    await log.read("run")
    lanes = log._engine().read.lanes
    connections = {lane._connection for lane in lanes}
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
    # None of that has cost a connection.
    assert {lane._connection for lane in lanes} == connections
    assert ids(await log.list_runs()) == ["run"]


async def test_what_nobody_could_read_is_told_without_the_password() -> None:
    for dsn in ("postgresql//somebody:secret@h/db", f"{NOWHERE}?nonsense=secret"):
        with pytest.raises(ConfigurationError) as caught:
            PostgresEventLog(dsn)
        assert "secret" not in "".join(traceback.format_exception(caught.value))
    log = PostgresEventLog(NOWHERE, patience=0)
    with pytest.raises(LogUnreachable) as unreachable:
        await log.get_record("run")
    said = "".join(traceback.format_exception(unreachable.value))
    assert "secret" not in f"{said} {log!r} {vars(log)!r}"


async def test_two_long_pieces_that_are_alike_are_both_told(new_log: MakeLog) -> None:
    reader, writer = new_log(), new_log()
    await writer.append("run", begun(), expected_seq=0)
    seen: list[Event] = []
    heard, both = asyncio.Event(), asyncio.Event()

    async def follow() -> None:
        async for event in reader.follow("run", deltas=True):
            seen.append(event)
            if not event.durable:
                heard.set()
            if event.sub == 501:
                both.set()

    def delta(sub: int, branch: str, text: str) -> ContentDeltaEvent:
        return ContentDeltaEvent(task_id="run", seq=2, sub=sub, step=branch, branch=branch, delta=text)

    follower = asyncio.create_task(follow())
    for sub in range(1, 200):
        # What is told reaches those who listen by then.
        await writer.append("run", [delta(sub, "a", "x")], expected_seq=2)
        with suppress(TimeoutError):
            await asyncio.wait_for(heard.wait(), 0.05)
            break
    await writer.append("run", [delta(500, "a", "x" * 6000), delta(501, "b", "x" * 6000)], expected_seq=2)
    # Before the end, which may overtake what is told.
    await asyncio.wait_for(both.wait(), SECONDS)
    await writer.append("run", [end(3)], expected_seq=2)
    await asyncio.wait_for(follower, SECONDS)
    assert [(event.seq, event.sub) for event in seen][-3:] == [(2, 500), (2, 501), (3, 0)]


# -- what fails


async def test_a_log_without_patience_asks_again_the_next_time() -> None:
    with PostgresServer() as server:
        log = PostgresEventLog(server.dsn, patience=0)
        await log.append("run", begun(), expected_seq=0)
        server.stop()
        for _ in range(2):
            with pytest.raises(LogUnreachable):
                await log.append("run", [end(3)], expected_seq=2)
        server.start()
        await log.append("run", [end(3)], expected_seq=2)
        await log.aclose()


async def test_a_turn_that_is_taken_at_the_second_try_is_free_when_it_is_given_back(
    postgres_database: str,
) -> None:
    hurried = f"{postgres_database}?options=-c%20lock_timeout%3D100"
    log = PostgresEventLog(hurried)
    await log.append("run", begun(context_id="c"), expected_seq=0)
    async with await psycopg.AsyncConnection.connect(postgres_database) as other:
        await other.execute("SELECT FROM rxloop.runs FOR UPDATE")
        taking = asyncio.create_task(log.acquire_lease("c", "run", pytest.fail))
        await asyncio.sleep(0.4)
        await other.rollback()
        assert await asyncio.wait_for(taking, SECONDS)
    await log.release_lease("c", "run")
    assert not await advisory_locks(postgres_database)
    await log.aclose()


async def test_a_turn_that_cannot_be_taken_is_left_to_others(postgres_database: str) -> None:
    hurried = f"{postgres_database}?options=-c%20lock_timeout%3D50"
    log = PostgresEventLog(hurried, patience=0)
    await log.append("run", begun(context_id="c"), expected_seq=0)
    async with await psycopg.AsyncConnection.connect(postgres_database) as other:
        await other.execute("SELECT FROM rxloop.runs FOR UPDATE")
        with pytest.raises(EventLogError):
            await log.acquire_lease("c", "run", pytest.fail)
        assert not await advisory_locks(postgres_database)
    await log.aclose()


# -- what is closed in the middle


def log_tasks() -> set[str]:
    """The tasks of logs that are under way here."""
    return {name for task in asyncio.all_tasks() if (name := task.get_name()).startswith("rxloop-log")}


async def test_a_follower_that_goes_on_after_the_log_was_closed_is_told_so(new_log: MakeLog) -> None:
    log = new_log()
    await log.append("run", begun(), expected_seq=0)
    events = log.follow("run")
    await anext(events)
    await log.aclose()
    assert (await anext(events)).seq == 2
    with pytest.raises(EventLogError, match="was closed"):
        await asyncio.wait_for(anext(events), SECONDS)
    assert not log_tasks()
    assert not log._engines._engines


async def test_a_turn_that_is_being_taken_when_the_log_is_closed_is_free(postgres_database: str) -> None:
    log = PostgresEventLog(postgres_database)
    await log.append("run", begun(context_id="c"), expected_seq=0)
    async with await psycopg.AsyncConnection.connect(postgres_database) as other:
        await other.execute("SELECT FROM rxloop.runs FOR UPDATE")
        taking = asyncio.create_task(log.acquire_lease("c", "run", lambda: None))
        await asyncio.sleep(0.1)
        closing = asyncio.create_task(log.aclose())
        await asyncio.sleep(0.1)
    assert await asyncio.wait_for(asyncio.gather(taking, closing), SECONDS) == [False, None]
    assert not log_tasks()
    assert not await advisory_locks(postgres_database)


async def test_a_log_with_many_turns_is_closed_soon_though_the_server_is_gone() -> None:
    with PostgresServer() as server:
        log = PostgresEventLog(server.dsn, patience=1)
        for number in range(10):
            assert await log.acquire_lease(f"c{number}", "run", lambda: None)
        server.stop()
        async with asyncio.timeout(4):
            await log.aclose()


# -- what is removed, or was there already


async def test_events_are_appended_while_many_runs_are_removed(
    new_log: MakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removing, "AT_ONCE", 2)
    monkeypatch.setattr(postgres_log, "AT_ONCE", 2)
    log = new_log()
    await asyncio.gather(*(log.append(f"{name}", [*finished(name)], expected_seq=0) for name in map(str, range(20))))
    await log.append("run", begun(), expected_seq=0)
    removing_all = asyncio.create_task(log.trim(-60))
    await until(lambda: log._engine().write.busy)
    await log.append("run", [end(3, "canceled")], expected_seq=2)
    assert not removing_all.done()
    assert len(await removing_all) == 20
    assert ids(await log.list_runs()) == ["run"]


async def test_a_reader_that_is_far_behind_is_told_that_the_log_went_back_in_time(new_log: MakeLog) -> None:
    log = new_log()
    await log.append("run", begun(), expected_seq=0)
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

    async def rest() -> None:
        async for _ in events:
            pass

    # How far it comes depends on what was kept for it before.
    with pytest.raises(LogRolledBack, match=r"event \d+ of the run run is not there any more"):
        await asyncio.wait_for(rest(), SECONDS)


async def test_a_follower_here_has_at_once_what_was_written_though_its_answer_was_lost(
    new_log: MakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hearing, "POLL_SECONDS", 3600)
    log = new_log()
    await log.append("run", begun(), expected_seq=0, writer="me")
    follower = Follower(log)
    await follower.sees(1, 2)
    engine = log._engine()
    last = [end(3)]
    await until(lambda: listens(log))

    # As if its connection had broken between the commit and the answer.
    async def lost(connection: Connection) -> None:
        batch = Batch("run", last, 2, "me", mine=False, live=True)
        [outcome] = await write(connection, log._address, engine.turns.me, [batch])
        assert outcome.number is not None

    await engine.writing(lost)
    await log.append("run", last, expected_seq=2, writer="me")
    await asyncio.wait_for(follower.task, SECONDS)


# -- where it is


async def test_a_database_that_cannot_have_every_text_is_refused(postgres: str) -> None:
    name = new_schema()
    async with await psycopg.AsyncConnection.connect(postgres, autocommit=True) as connection:
        await connection.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'".encode())
        try:
            log = PostgresEventLog(f"{postgres.rpartition('/')[0]}/{name}")
            with pytest.raises(EventLogError, match="LATIN1, and UTF8"):
                await log.append("run", begun(), expected_seq=0)
            await log.aclose()
        finally:
            await connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.mark.skipif(
    shutil.which("pgbouncer") is None, reason="there is no pgbouncer (Debian: apt-get install pgbouncer)"
)
async def test_turns_are_refused_where_a_bouncer_shares_the_sessions(postgres: str) -> None:
    with TemporaryDirectory() as folder, bouncer(postgres, Path(folder)) as shared:
        good = PostgresEventLog(shared, session_dsn=postgres, schema=new_schema())
        await good.append("run", begun(context_id="c"), expected_seq=0)
        follower = Follower(good)
        await follower.sees(1, 2)
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
    """A PgBouncer that gives a connection for the time of a transaction, as an address."""
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


async def test_a_role_that_owns_the_schema_needs_no_right_to_make_one(postgres: str) -> None:
    schema, role = new_schema(), f"owner_{new_schema()}"
    async with await psycopg.AsyncConnection.connect(postgres, autocommit=True) as connection:
        await connection.execute(f"CREATE ROLE {role} LOGIN".encode())
        await connection.execute(f"CREATE SCHEMA {schema} AUTHORIZATION {role}".encode())
        log = PostgresEventLog(postgres.replace("//postgres@", f"//{role}@"), schema=schema)
        await log.append("run", begun(), expected_seq=0)
        assert ids(await log.list_runs()) == ["run"]
        await log.aclose()
        await connection.execute(f"DROP OWNED BY {role}".encode())
        await connection.execute(f"DROP ROLE {role}".encode())


async def test_a_process_that_is_frozen_in_a_transaction_holds_nobody_up_for_long(
    new_log: MakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(address, "_SILENT_IN_TRANSACTION", 300)
    frozen, log = new_log(), new_log()
    await log.append("run", begun(), expected_seq=0)
    began = asyncio.Event()
    tries = 0

    async def work(connection: Connection) -> int:
        nonlocal tries
        tries += 1
        async with connection.transaction():
            await connection.execute(f"SELECT FROM {frozen._address.schema}.runs FOR UPDATE".encode())
            began.set()
            # No word to the server for so long, the first time.
            await asyncio.sleep(4 if tries == 1 else 0)
        return tries

    writing = asyncio.create_task(frozen._engine().writing(work))
    await began.wait()
    async with asyncio.timeout(3):
        await log.append("run", [end(3)], expected_seq=2)
    assert await writing == 2
