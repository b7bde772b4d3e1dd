"""Migration of logs with an old schema. See `old_schemas/record.py`."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

from rxloop import PostgresEventLog, SqliteEventLog, history, open_log
from rxloop.errors import EventLogError
from rxloop.pipeline.artifacts import Artifacts
from rxloop.protocol.commands import MessageCommand
from rxloop.protocol.envelope import COMMAND_ID
from rxloop.protocol.events import CustomEvent
from rxloop.protocol.messages import Message
from rxloop.state.fold import fold_all
from rxloop.storage.postgres import schema as postgres_schema
from rxloop.storage.sqlite import database as sqlite_database
from rxloop.storage.sqlite.leases import get_process_name
from storage.old_schemas.record import FIRST, LEASED, SECOND, WAITING, make_agent

FOLDER = Path(__file__).parent / "old_schemas"
PROGRAM = """
import asyncio, sys
from rxloop import open_log
log = open_log(sys.argv[1])
print("ready", flush=True)
print(len(asyncio.run(log.list_runs())))
"""
PROCESSES = 4

Log = SqliteEventLog | PostgresEventLog


class OldDatabase(Protocol):
    """Database with an old schema."""

    address: str
    old_version: int

    def query(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Execute a statement and return its rows."""
        ...

    def dump(self) -> object:
        """Return the tables and their rows."""
        ...

    def version(self) -> int:
        """Return the schema version."""
        ...

    def revive_owner(self) -> Callable[[], None]:
        """Make the owner of the leased run a live one. Return a function that ends it."""
        ...

    def block(self) -> AbstractContextManager[object]:
        """Let programs find the old version, but not migrate."""
        ...

    def supported_version(self) -> int:
        """Return the schema version of the program."""
        ...

    def set_steps(self, patch: pytest.MonkeyPatch, change: Callable[[tuple[str, ...]], tuple[str, ...]]) -> None:
        """Change the migrations of the program."""
        ...


class OldFile:
    """SQLite file with schema 8."""

    old_version = 8

    def __init__(self, path: Path) -> None:
        self.address = str(path)
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.executescript((FOLDER / "sqlite_8.sql").read_text(encoding="utf-8"))
            connection.execute("PRAGMA journal_mode = WAL")
            # The recorded heartbeat could be a recent one by the clock of this machine.
            connection.execute("UPDATE holders SET beat = 0")

    def query(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.address, isolation_level=None)) as connection:
            return connection.execute(statement, values).fetchall()

    def dump(self) -> object:
        with closing(sqlite3.connect(self.address)) as connection:
            return [*connection.iterdump(), self.version(), self.query("PRAGMA schema_version")]

    def version(self) -> int:
        return self.query("PRAGMA user_version")[0][0]

    def revive_owner(self) -> Callable[[], None]:
        self.query("UPDATE holders SET process = ?, beat = ?, lease = 60", get_process_name(), time.monotonic())

        def end() -> None:
            self.query("UPDATE lease_holders SET heartbeat_at = 0, lease_seconds = 0")

        return end

    @contextmanager
    def block(self) -> Generator[None]:
        with closing(sqlite3.connect(self.address, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield

    def supported_version(self) -> int:
        return len(sqlite_database.SCHEMA)

    def set_steps(self, patch: pytest.MonkeyPatch, change: Callable[[tuple[str, ...]], tuple[str, ...]]) -> None:
        patch.setattr(sqlite_database, "SCHEMA", change(sqlite_database.SCHEMA))


class OldSchema:
    """Postgres database with schema 2."""

    old_version = 2

    def __init__(self, address: str) -> None:
        self.address = address
        self.query((FOLDER / "postgres_2.sql").read_text(encoding="utf-8"))

    def query(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        import psycopg

        with psycopg.connect(self.address, autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def dump(self) -> object:
        columns = self.query(
            "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'rxloop' ORDER BY 1, 2"
        )
        tables = {table: self.query(f"SELECT *, xmin::text FROM rxloop.{table}") for table, _ in columns}
        indexes = self.query("SELECT indexdef FROM pg_indexes WHERE schemaname = 'rxloop' ORDER BY 1")
        return columns, tables, indexes

    def version(self) -> int:
        return self.query("SELECT number FROM rxloop.version")[0][0]

    def revive_owner(self) -> Callable[[], None]:
        import psycopg

        [(key,)] = self.query("SELECT key FROM rxloop.turns")
        connection = psycopg.connect(self.address, autocommit=True)
        connection.execute("SELECT pg_advisory_lock(%s)", (key,))

        def end() -> None:
            connection.execute("SELECT pg_advisory_unlock(%s)", (key,))
            connection.close()

        return end

    @contextmanager
    def block(self) -> Generator[None]:
        import psycopg

        with psycopg.connect(self.address) as connection:
            # Reading the version does not need this lock, but renaming columns does.
            connection.execute("LOCK TABLE rxloop.runs IN ACCESS SHARE MODE")
            yield

    def supported_version(self) -> int:
        return len(postgres_schema.SCHEMA)

    def set_steps(self, patch: pytest.MonkeyPatch, change: Callable[[tuple[str, ...]], tuple[str, ...]]) -> None:
        patch.setattr(postgres_schema, "SCHEMA", change(postgres_schema.SCHEMA))


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.service("postgres"))])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OldDatabase]:
    """Database as the old program left it."""
    if request.param == "sqlite":
        yield OldFile(tmp_path / "runs.db")
    else:
        yield OldSchema(request.getfixturevalue("postgres_database"))


@pytest.fixture
async def log(old: OldDatabase) -> AsyncIterator[Log]:
    """Log of the current program over the old database."""
    log = open_log(old.address)
    yield log
    await log.aclose()


async def open_and_close(old: OldDatabase) -> None:
    log = open_log(old.address)
    await log.list_runs()
    await log.aclose()


async def test_old_runs_folds_and_artifacts_are_read_after_the_migration(old: OldDatabase, log: Log) -> None:
    records = await log.list_runs()
    # Missing folds would be created again when the history is read.
    prefix = "" if isinstance(old, OldFile) else "rxloop."
    assert old.query(f"SELECT count(*) FROM {prefix}folds") == [(2,)]
    assert {record.task_id: record.state for record in records} == {
        FIRST: "completed",
        SECOND: "completed",
        WAITING: "input-required",
        LEASED: "working",
    }
    assert (records[0].owner, dict(records[0].metadata)) == ("ann", {"tenant": "north"})
    assert [len(await log.read(record.task_id)) for record in records] == [6, 6, 7, 2]
    assert [message.text for message in await history(log, "ann")] == [
        "I am Ann.",
        "Hello Ann.",
        "Who am I?",
        "You are Ann.",
    ]
    artifacts = Artifacts(log.artifacts, records[0].conversation)
    assert await artifacts.read("page") == b"<p>Hello Ann</p>"
    assert await artifacts.read("page", offset=9) == b"Ann</p>"
    assert await log.artifacts.list("ann") == []
    assert old.version() == old.supported_version()


async def test_old_runs_can_be_continued_and_deleted_after_the_migration(log: Log) -> None:
    assert await log.acquire_lease("carl", LEASED, pytest.fail)
    await log.append(LEASED, [CustomEvent(seq=3, name="note")], expected_seq=2, writer="owner")
    assert (await log.get_record(LEASED)).seq == 3
    await log.delete(FIRST)
    assert len(await log.list_runs(context_id="ann")) == 1


async def test_command_sent_by_the_old_program_is_delivered(log: Log) -> None:
    assert await log.send_command(LEASED, MessageCommand(messages=[Message.user("Hurry.")])) == 2
    assert [number for number, _ in await log.read_commands(WAITING)] == [1]
    assert WAITING in [record.task_id for record in await log.list_orphaned()]
    record = await make_agent(log, "It is refunded.").get_run(WAITING).execute()
    assert record.state == "completed"
    assert "Refunded 5." in str(await history(log, "bob"))
    assert WAITING not in [record.task_id for record in await log.list_orphaned()]


async def test_lease_of_the_old_program_is_kept_until_its_owner_dies(old: OldDatabase, log: Log) -> None:
    end = old.revive_owner()
    try:
        assert not await log.acquire_lease("carl", LEASED, pytest.fail)
        assert LEASED not in [record.task_id for record in await log.list_orphaned()]
    finally:
        end()
    assert LEASED in [record.task_id for record in await log.list_orphaned()]
    assert await log.acquire_lease("carl", LEASED, pytest.fail)


async def test_second_open_changes_nothing(old: OldDatabase) -> None:
    await open_and_close(old)
    migrated = old.dump()
    await open_and_close(old)
    assert old.dump() == migrated


async def test_processes_that_open_an_old_database_at_once_migrate_it_once(old: OldDatabase) -> None:
    command = (sys.executable, "-c", PROGRAM, old.address)
    with old.block():
        processes = [await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE) for _ in range(PROCESSES)]
        for process in processes:
            assert process.stdout is not None
            await process.stdout.readline()
        await asyncio.sleep(0.5)
    outputs = [await process.communicate() for process in processes]
    assert [(out.strip(), error) for out, error in outputs] == [(b"4", b"")] * PROCESSES
    migrated = old.dump()
    await open_and_close(old)
    assert old.dump() == migrated


async def test_failed_migration_changes_nothing(old: OldDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    before = old.dump()
    with monkeypatch.context() as patch:
        old.set_steps(patch, lambda steps: (*steps[:-1], f"{steps[-1].rstrip().rstrip(';')}; DROP TABLE missing"))
        with pytest.raises(EventLogError, match="missing"):
            await open_and_close(old)
    assert old.dump() == before
    await open_and_close(old)
    assert old.version() > old.old_version


async def test_old_program_refuses_a_migrated_database(old: OldDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    await open_and_close(old)
    old.set_steps(monkeypatch, lambda steps: steps[: old.old_version])
    with pytest.raises(EventLogError, match="newer version of rxloop"):
        await open_and_close(old)


async def test_open_log_reports_another_version_when_its_tables_are_renamed(old: OldDatabase, log: Log) -> None:
    assert await log.acquire_lease("carl", LEASED, pytest.fail)
    await log.append(LEASED, [CustomEvent(seq=3, name="note")], expected_seq=2, writer="owner")
    prefix = "" if isinstance(old, OldFile) else "rxloop."
    old.query(f"ALTER TABLE {prefix}runs RENAME COLUMN idle TO at_rest")
    with pytest.raises(EventLogError, match="another version of rxloop has changed the tables") as failure:
        await log.append(LEASED, [CustomEvent(seq=4, name="note")], expected_seq=3, writer="owner")
    assert not failure.value.retryable


async def test_message_sent_by_the_old_program_is_read(old: OldDatabase, log: Log) -> None:
    data = b'{"kind":"say","messages":[{"role":"user","content":"Hurry."}],"interrupt":false,"letsGo":"next"}'
    if isinstance(old, OldFile):
        old.query("INSERT INTO mail (run, json) VALUES (3, ?)", data)
    else:
        old.query("INSERT INTO rxloop.mail (run, kind, key, json) VALUES (3, 'say', 'k', %s)", data)
    (_, answer), (_, message) = await log.read_commands(WAITING)
    assert answer.kind == "answer"
    assert message == MessageCommand(messages=[Message.user("Hurry.")], superseding_task_id="next")
    # Only the answer resumes the run.
    prefix = "" if isinstance(old, OldFile) else "rxloop."
    old.query(f"DELETE FROM {prefix}commands WHERE number = 1")
    assert WAITING not in [record.task_id for record in await log.list_orphaned()]


async def test_command_applied_by_the_old_program_is_not_delivered_again(old: OldDatabase, log: Log) -> None:
    event = CustomEvent(seq=8, attempt=1, task_id=WAITING, context_id="bob", name="note", metadata={COMMAND_ID: 1})
    data = event.to_json().replace(b'"command_id"', b'"mail_id"')
    if isinstance(old, OldFile):
        old.query("INSERT INTO events VALUES (3, 8, 0, ?)", data)
        old.query("UPDATE runs SET seq = 8 WHERE number = 3")
    else:
        old.query("INSERT INTO rxloop.events VALUES (3, 8, 0, %s)", data)
        old.query("UPDATE rxloop.runs SET seq = 8, taken = 1 WHERE number = 3")
    assert WAITING not in [record.task_id for record in await log.list_orphaned()]
    events = await log.read(WAITING)
    assert events[-1] == event
    assert fold_all(events).last_command == 1
