"""Logs of an earlier version, which must be read and continued in the same way. See `old_logs/README.md`."""

from __future__ import annotations

import asyncio
import gzip
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rxloop import PostgresEventLog, SqliteEventLog
from rxloop.cli.app import app
from rxloop.state.history import CANCELED_CALL, INTERRUPTED, NEVER_BEGAN
from rxloop.storage import SqliteArtifacts
from rxloop.thinking import SequentialThought, ThinkingSessions
from storage.old_logs import observed
from support.sequential_thoughts import thought

FOLDER = Path(__file__).parent / "old_logs"
RENAMED = {'"mail_id"': '"command_id"', '"letsGo"': '"supersedingTaskId"', '"kind": "say"': '"kind": "message"'}
"""Names in the old logs and the current names."""


def rename(text: str) -> str:
    """Return JSON with the current names."""
    for old, new in RENAMED.items():
        text = text.replace(old, new)
    return text


OPEN_RESULTS = (CANCELED_CALL, NEVER_BEGAN, INTERRUPTED)
"""Results of open calls, which only models receive."""


def read_expected() -> dict[str, Any]:
    """Read the recorded results.

    Unlike the earlier version, public histories omit the results of calls that are still open, and a run with a command
    that it has not applied yet does not wait any more.
    """
    expected: dict[str, Any] = json.loads(rename((FOLDER / "expected.json").read_text(encoding="utf-8")))
    states = {record["contextId"]: record["state"] for record in expected["records"].values()}
    for context_id, messages in expected["histories"].items():
        if states[context_id] in ("working", "input-required", "auth-required"):
            public = messages["public"]
            messages["public"] = [each for each in public if each.get("content") not in OPEN_RESULTS]
    for name, replay in expected["replays"].items():
        if name.endswith(("answer sent", "refusal sent", "waiting, cancel sent")):
            replay.update(state="working", pending=[])
    return expected


EXPECTED = read_expected()
EXPORT = gzip.decompress((FOLDER / "runs.jsonl.gz").read_bytes())
RUNS: dict[str, str] = EXPECTED["runs"]
STATES: dict[str, str] = {name: record["state"] for name, record in EXPECTED["records"].items()}
FINISHED = [name for name in RUNS if name not in EXPECTED["settled"]]


def read_export() -> dict[str, list[Any]]:
    """Group the exported events by the run whose log contains them."""
    runs: dict[str, list[Any]] = {task_id: [] for task_id in RUNS.values()}
    current = ""
    for line in rename(EXPORT.decode()).splitlines():
        event = json.loads(line)
        # A log contains nested runs between events of the outermost run.
        current = event["taskId"] if event["taskId"] in runs else current
        runs[current].append(event)
    return runs


EVENTS = read_export()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Copy of the old file."""
    copy = tmp_path / "runs.sqlite"
    copy.write_bytes(gzip.decompress((FOLDER / "runs.sqlite.gz").read_bytes()))
    return copy


@pytest.fixture
async def log(path: Path) -> AsyncIterator[SqliteEventLog]:
    """Log over the copy."""
    log = SqliteEventLog(path)
    yield log
    await log.aclose()


@pytest.fixture
async def postgres_log(postgres_database: str) -> AsyncIterator[PostgresEventLog]:
    """Log over a database with the old dump."""
    import psycopg

    with psycopg.connect(postgres_database, autocommit=True) as connection:
        connection.execute(gzip.decompress((FOLDER / "runs.sql.gz").read_bytes()))
    log = PostgresEventLog(postgres_database, schema="rxloop_old")
    yield log
    await log.aclose()


@pytest.fixture(scope="module")
def read_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy of the old file, shared by read-only tests."""
    copy = tmp_path_factory.mktemp("old") / "runs.sqlite"
    copy.write_bytes(gzip.decompress((FOLDER / "runs.sqlite.gz").read_bytes()))
    return copy


@pytest.fixture
async def read_log(read_path: Path) -> AsyncIterator[SqliteEventLog]:
    """Log for read-only tests."""
    log = SqliteEventLog(read_path)
    yield log
    await log.aclose()


# -- reading


async def test_old_runs_are_listed_in_order(read_log: SqliteEventLog) -> None:
    assert await observed.list_records(read_log) == EXPECTED["listed"]
    assert await observed.list_records(read_log, unfinished=True) == EXPECTED["unfinished"]
    assert await observed.list_records(read_log, owner="ann") == EXPECTED["owned"]


async def test_old_orphaned_runs_are_found(read_log: SqliteEventLog) -> None:
    assert await observed.list_orphaned(read_log) == EXPECTED["orphaned"]


@pytest.mark.parametrize("name", RUNS)
async def test_old_run_has_its_record(read_log: SqliteEventLog, name: str) -> None:
    assert await observed.read_record(read_log, RUNS[name]) == EXPECTED["records"][name]


@pytest.mark.parametrize("name", RUNS)
async def test_old_run_has_its_exported_events(read_log: SqliteEventLog, name: str) -> None:
    assert await observed.read_events(read_log, RUNS[name]) == EVENTS[RUNS[name]]


async def test_old_run_has_its_deltas(read_log: SqliteEventLog) -> None:
    assert await observed.read_events(read_log, RUNS["deltas"], deltas=True) == EXPECTED["deltas"]


@pytest.mark.parametrize("name", RUNS)
async def test_old_run_has_its_commands(read_log: SqliteEventLog, name: str) -> None:
    assert await observed.read_commands(read_log, RUNS[name]) == EXPECTED["commands"][name]


@pytest.mark.parametrize("name", RUNS)
async def test_old_run_is_folded(read_log: SqliteEventLog, name: str) -> None:
    assert await observed.fold_events(read_log, RUNS[name]) == expected_fold(name)


@pytest.mark.parametrize("name", RUNS)
async def test_old_run_is_replayed(read_log: SqliteEventLog, name: str) -> None:
    assert await observed.replay_run(read_log, RUNS[name]) == EXPECTED["replays"][name]


@pytest.mark.parametrize("name", RUNS)
async def test_old_run_can_be_followed(read_log: SqliteEventLog, name: str) -> None:
    events, ends = EVENTS[RUNS[name]], STATES[name] not in ("working", "submitted")
    assert await observed.follow_run(read_log, RUNS[name], len(events), ends=ends) == events


async def test_old_run_can_be_followed_after_an_old_cursor(read_log: SqliteEventLog) -> None:
    cursor = f"{RUNS['attempts']}/2.10.0"
    followed = await observed.follow_run(read_log, RUNS["attempts"], 22, ends=True, after=cursor)
    assert followed == EVENTS[RUNS["attempts"]][10:]


@pytest.mark.parametrize("context_id", EXPECTED["histories"])
async def test_old_conversation_is_read_from_its_stored_folds(read_log: SqliteEventLog, context_id: str) -> None:
    assert await observed.read_history(read_log, context_id) == EXPECTED["histories"][context_id]


@pytest.mark.parametrize("context_id", EXPECTED["histories"])
async def test_old_conversation_is_read_without_its_stored_folds(
    path: Path, log: SqliteEventLog, context_id: str
) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("DELETE FROM folds")
    assert await observed.read_history(log, context_id) == EXPECTED["histories"][context_id]


async def test_old_artifacts_are_read(read_log: SqliteEventLog) -> None:
    assert await observed.read_artifacts(read_log, "pages") == EXPECTED["artifacts"]


async def test_tables_of_old_thinking_sessions_stay_and_new_sessions_can_be_stored(path: Path) -> None:
    sessions = ThinkingSessions(SqliteArtifacts(path))
    result = await sessions.think(thought(), session_id="move")
    assert len(result.session) == 1
    assert result.warnings == ()
    await sessions.aclose()
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute(
            "SELECT session_id, tool_session_entries.json FROM tool_session_entries"
            " JOIN tool_sessions ON session = number ORDER BY place"
        ).fetchall()
    assert [name for name, _ in rows] == ["move"] * 2
    assert observed.to_json([SequentialThought.model_validate_json(row) for _, row in rows]) == EXPECTED["session"]


# -- continuing


async def test_finished_old_runs_are_not_executed(log: SqliteEventLog) -> None:
    for name in FINISHED:
        outcome = await observed.execute(log, RUNS[name])
        assert (outcome["kinds"], outcome["effects"], outcome["requests"]) == ([], [], []), name
        assert await observed.read_record(log, RUNS[name]) == EXPECTED["records"][name], name


@pytest.mark.parametrize("name", EXPECTED["settled"])
async def test_old_run_is_executed(log: SqliteEventLog, name: str) -> None:
    assert await observed.execute(log, RUNS[name]) == EXPECTED["settled"][name]


async def test_old_interrupted_tool_is_not_called_again(log: SqliteEventLog) -> None:
    outcome = await observed.execute(log, RUNS["crashed in tools"])
    [interrupted] = [
        event
        for event in (await observed.read_events(log, RUNS["crashed in tools"]))[9:]
        if event["kind"] == "tool-complete" and event["call"]["id"] == "p1"
    ]
    assert outcome["effects"] == ["look slowly Oslo"]
    assert not interrupted["success"]
    assert "interrupted, effect unknown" in interrupted["content"]


@pytest.mark.parametrize("name", EXPECTED["resumed"])
async def test_old_run_is_resumed(log: SqliteEventLog, name: str) -> None:
    assert await observed.resume(log, RUNS[name]) == EXPECTED["resumed"][name]


@pytest.mark.parametrize("name", EXPECTED["answered"])
async def test_old_questions_are_answered(log: SqliteEventLog, name: str) -> None:
    assert await observed.answer(log, RUNS[name]) == EXPECTED["answered"][name]


@pytest.mark.parametrize("name", EXPECTED["declined"])
async def test_old_questions_are_declined(log: SqliteEventLog, name: str) -> None:
    assert await observed.decline(log, RUNS[name]) == EXPECTED["declined"][name]


@pytest.mark.parametrize("name", EXPECTED["cancelled"])
async def test_old_run_is_cancelled(log: SqliteEventLog, name: str) -> None:
    assert await observed.cancel(log, RUNS[name]) == EXPECTED["cancelled"][name]


@pytest.mark.parametrize("name", EXPECTED["told"])
async def test_old_run_receives_a_message(log: SqliteEventLog, name: str) -> None:
    assert await observed.send_message(log, RUNS[name]) == EXPECTED["told"][name]


@pytest.mark.parametrize(("name", "at", "outcome"), EXPECTED["forked"])
async def test_old_run_is_forked(log: SqliteEventLog, name: str, at: int, outcome: Any) -> None:
    found = await observed.fork_run(log, RUNS[name], at)
    if name == "tools":
        # Three concurrent calls, whose events have no fixed order.
        found, outcome = ({**each, "kinds": sorted(each["kinds"])} for each in (found, outcome))
    assert found == outcome


@pytest.mark.parametrize("context_id", EXPECTED["next"])
async def test_old_conversation_continues(log: SqliteEventLog, context_id: str) -> None:
    assert await observed.run_next(log, context_id) == EXPECTED["next"][context_id]


async def test_runtime_adopts_old_runs(log: SqliteEventLog) -> None:
    assert await observed.adopt(log) == EXPECTED["adopted"]


async def test_old_key_refers_to_its_old_run(log: SqliteEventLog) -> None:
    assert await observed.start_again(log, key="request-17", owner="ann") == EXPECTED["started"]


# -- the export


def import_runs(folder: Path) -> Path:
    """Import the old export into a new file."""
    export, database = folder / "runs.jsonl", folder / "imported.db"
    export.write_bytes(EXPORT)
    done = CliRunner().invoke(app, ["import", "--trusted", str(export), "--db", str(database)])
    assert done.exit_code == 0, done.output
    return database


@pytest.fixture
async def imported(tmp_path: Path) -> AsyncIterator[SqliteEventLog]:
    """Log with the runs of the old export."""
    log = SqliteEventLog(await asyncio.to_thread(import_runs, tmp_path))
    yield log
    await log.aclose()


async def test_old_export_is_imported(imported: SqliteEventLog) -> None:
    for name, task_id in RUNS.items():
        assert await observed.read_events(imported, task_id) == EVENTS[task_id], name
        events = await imported.read(task_id)
        copied = getattr(events[0], "fork_seq", None) or 0
        # The old version recorded the time of the original run for forks.
        expected = EXPECTED["records"][name] | {"created": events[copied].timestamp}
        assert await observed.read_record(imported, task_id) == expected, name
    for context_id, messages in EXPECTED["histories"].items():
        assert await observed.read_history(imported, context_id) == messages


async def test_imported_runs_continue(imported: SqliteEventLog) -> None:
    for name in ("crashed in tools", "crashed in model", "crashed in second attempt", "nested, crashed", "submitted"):
        assert await observed.execute(imported, RUNS[name]) == EXPECTED["settled"][name], name
    for name, outcome in EXPECTED["answered"].items():
        assert await observed.answer(imported, RUNS[name]) == outcome, name


# -- Postgres


@pytest.mark.service("postgres")
async def test_old_postgres_log_is_read(postgres_log: PostgresEventLog) -> None:
    assert await observed.list_records(postgres_log) == EXPECTED["listed"]
    assert await observed.list_orphaned(postgres_log) == EXPECTED["orphaned"]
    assert await observed.read_artifacts(postgres_log, "pages") == EXPECTED["artifacts"]
    for name, task_id in RUNS.items():
        assert await observed.read_record(postgres_log, task_id) == EXPECTED["records"][name], name
        assert await observed.read_events(postgres_log, task_id) == EVENTS[task_id], name
        assert await observed.replay_run(postgres_log, task_id) == EXPECTED["replays"][name], name
    for context_id, messages in EXPECTED["histories"].items():
        assert await observed.read_history(postgres_log, context_id) == messages


@pytest.mark.service("postgres")
async def test_old_postgres_runs_are_executed(postgres_log: PostgresEventLog) -> None:
    for name, outcome in EXPECTED["settled"].items():
        assert await observed.execute(postgres_log, RUNS[name]) == outcome, name


@pytest.mark.service("postgres")
async def test_old_postgres_runs_are_answered_and_cancelled(postgres_log: PostgresEventLog) -> None:
    for name in ("waiting", "nested, waiting"):
        assert await observed.answer(postgres_log, RUNS[name]) == EXPECTED["answered"][name], name
    for name in ("carl waits", "crashed in tools", "nested, crashed"):
        assert await observed.cancel(postgres_log, RUNS[name]) == EXPECTED["cancelled"][name], name
    assert await observed.run_next(postgres_log, "bob") == EXPECTED["next"]["bob"]


def expected_fold(name: str) -> dict[str, Any]:
    """Return the expected fold. It uses the messages of the replay unless others are recorded."""
    return {"messages": EXPECTED["replays"][name]["messages"], **EXPECTED["folds"][name]}
