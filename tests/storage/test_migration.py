"""Files with older and newer versions of the schema."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from rxloop import SqliteEventLog
from rxloop.errors import EventLogError
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.events import CustomEvent, Event, StatusUpdateEvent, TaskEvent
from rxloop.protocol.messages import ErrorInfo, Message, Usage
from rxloop.storage.sqlite import database

BEFORE_LEASES = 4
"""Last schema version without leases and commands."""


def task(**fields: object) -> TaskEvent:
    values = {"seq": 1, "attempt": 1, "messages": [Message.user("Hi")], "model": "m", "agent_name": "helper", **fields}
    return TaskEvent.model_validate(values)


def notes(first: int, last: int) -> list[Event]:
    return [CustomEvent(seq=seq, attempt=1, name=f"note {seq}") for seq in range(first, last + 1)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


async def write_run(path: Path) -> None:
    log = SqliteEventLog(path)
    await log.append("run", [task(task_id="run"), *notes(2, 3)], expected_seq=0)
    await log.aclose()


async def get_refusal(path: Path) -> str:
    log = SqliteEventLog(path)
    with pytest.raises(EventLogError) as failure:
        await log.append("run", [task(task_id="run")], expected_seq=0)
    await log.aclose()
    return str(failure.value)


def write_old_file(path: Path, *runs: tuple[str, int, bytes, bytes]) -> None:
    """Write a file with the schema `BEFORE_LEASES`. Each run is an id, an idle flag, and two events."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        for step in database.SCHEMA[:BEFORE_LEASES]:
            connection.executescript(step)
        connection.execute(f"PRAGMA application_id = {database.APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {BEFORE_LEASES}")
        for number, (task_id, at_rest, *events) in enumerate(runs, 1):
            state = "failed" if at_rest else "working"
            values = (number, task_id, "c", "helper", state, at_rest, 1, 2, 0, 0, "token")
            connection.execute(f"INSERT INTO runs VALUES ({', '.join('?' * len(values))})", values)
            for seq, event in enumerate(events, 1):
                connection.execute("INSERT INTO events VALUES (?, ?, 0, ?)", (number, seq, event))


async def test_records_of_an_old_file_are_derived_from_its_events(path: Path) -> None:
    usage, error = Usage(input_tokens=7), ErrorInfo(code="server", message="503")
    first_task = task(task_id="run", context_id="c", metadata={"tenant": "t", "public": {"n": 1}})
    failed = StatusUpdateEvent(seq=2, attempt=1, state="failed", final=True, usage=usage, error=error)
    working = StatusUpdateEvent(seq=2, attempt=1, state="working")
    plain = task(context_id="c")
    write_old_file(
        path,
        ("run", 1, first_task.to_json(), failed.to_json()),
        ("plain", 0, plain.to_json(), working.to_json()),
        ("damaged", 1, b"{", b"\xff"),
    )

    log = SqliteEventLog(path)
    runs = await log.list_runs()
    orphans = await log.list_orphaned()
    await log.append("plain", notes(3, 3), expected_seq=2)
    await log.aclose()

    common = ("c", "helper")
    assert runs == [
        RunRecord(
            *("run", *common, "failed", 1, 2, 0, 0), model="m", metadata=first_task.metadata, usage=usage, error=error
        ),
        RunRecord("plain", *common, "working", 1, 2, 0, 0, model="m"),
        RunRecord("damaged", *common, "failed", 1, 2, 0, 0),
    ]
    assert orphans == [runs[1]]


async def test_newer_schema_is_refused(path: Path) -> None:
    # L93
    await write_run(path)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    says = await get_refusal(path)
    assert f"newer version of rxloop (schema 99, supported {len(database.SCHEMA)})" in says
    assert "Install" in says


async def test_first_schema_is_migrated_to_the_current_one(path: Path) -> None:
    # L93
    with sqlite3.connect(path) as connection:
        connection.executescript(database.SCHEMA[0])
        connection.execute(f"PRAGMA application_id = {database.APPLICATION_ID}")
        connection.execute("PRAGMA user_version = 1")
        connection.execute("INSERT INTO runs VALUES (1, 'run', '', 'helper', 'submitted', 0, 1, 3, 0, 0)")
        for event in (task(task_id="run"), *notes(2, 3)):
            connection.execute("INSERT INTO events VALUES (1, ?, 0, ?)", (event.seq, event.to_json()))
    connection.close()
    await append_note(path)
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (len(database.SCHEMA),)
        assert connection.execute("SELECT count(*) FROM artifacts").fetchone() == (0,)
        assert not connection.execute("SELECT 1 FROM sqlite_schema WHERE name LIKE 'tool_session%'").fetchall()
        assert connection.execute("SELECT writer, seq FROM runs").fetchall() == [("", 4)]
    connection.close()


async def test_older_schema_is_migrated(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # L93
    await write_run(path)
    steps = (*database.SCHEMA, "ALTER TABLE runs ADD COLUMN note TEXT; CREATE INDEX by_note ON runs (note);")
    monkeypatch.setattr(database, "SCHEMA", steps)
    await append_note(path)
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (len(steps),)
        assert connection.execute("SELECT note, seq FROM runs").fetchall() == [(None, 4)]
    connection.close()


async def append_note(path: Path) -> None:
    log = SqliteEventLog(path)
    await log.append("run", notes(4, 4), expected_seq=3)
    await log.aclose()


async def test_failed_migration_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await write_run(path)
    steps = (*database.SCHEMA, "ALTER TABLE runs ADD COLUMN note TEXT; CREATE TABLE runs (x);")
    with monkeypatch.context() as patch:
        patch.setattr(database, "SCHEMA", steps)
        assert "already exists" in await get_refusal(path)
    await append_note(path)
