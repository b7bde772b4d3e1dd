"""Forks, file removal and write-ahead log size of an open SQLite log."""

import asyncio
import json
import os
import shutil
import sqlite3
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from rxloop import Agent, RunError, SqliteEventLog, tool
from rxloop.errors import EventLogError
from rxloop.protocol.events import CustomEvent, Event, TaskEvent
from rxloop.protocol.messages import Message
from rxloop.storage import SqliteArtifacts
from rxloop.storage.sqlite import file as open_file
from rxloop.testing import ScriptedModel, call
from rxloop.thinking import ThinkingSessions
from support.sequential_thoughts import thought

FORKER = Path(__file__).with_name("forker.py")


def task(task_id: str = "run") -> Event:
    return TaskEvent(seq=1, attempt=1, task_id=task_id, messages=[Message.user("Hi")], model="m", agent_name="helper")


def notes(first: int, last: int) -> list[Event]:
    return [CustomEvent(seq=seq, attempt=1, name=f"note {seq}", data="x" * 500) for seq in range(first, last + 1)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


# -- forks


async def test_processes_keep_all_events_after_a_fork_during_a_write(path: Path) -> None:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, FORKER, path, stdout=pipe)
    printed, _ = await process.communicate()
    lines = [json.loads(line) for line in printed.decode().splitlines()]
    assert lines == [[0, {"before": 502, "parent": 801, "child": 801}]] * 6


async def test_log_is_refused_in_a_child_whose_fork_python_did_not_notice(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = SqliteEventLog(path)
    await log.append("run", [task()], expected_seq=0)
    await log.read("run")
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        for use in (log.append("run", notes(2, 2), expected_seq=1), log.read("run")):
            with pytest.raises(EventLogError, match="Create the log after the fork"):
                await use
    await log.append("run", notes(2, 2), expected_seq=1)
    assert len(await log.read("run")) == 2
    await log.aclose()


async def test_append_without_a_thread_fails_and_is_not_written_later(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    log = SqliteEventLog(path)
    with monkeypatch.context() as exhausted:
        exhausted.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            await log.append("run", [task()], expected_seq=0)
    await log.append("run", [task()], expected_seq=0)
    assert len(await log.read("run")) == 1
    await log.aclose()


# -- missing files


def remove(path: Path) -> None:
    for file in path.parent.glob("runs.db*"):
        file.unlink()


def replace(path: Path) -> None:
    shutil.copy(path, path.with_name("backup"))
    path.with_name("backup").replace(path)


def move_folder(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))


def remove_write_ahead_log(path: Path) -> None:
    path.with_name("runs.db-wal").unlink()


LOSSES = [remove, replace, move_folder, remove_write_ahead_log]


@pytest.mark.parametrize("lose", LOSSES)
@pytest.mark.parametrize("count", [1, 100])
async def test_write_to_a_missing_file_is_an_error(tmp_path: Path, lose: Callable[[Path], None], count: int) -> None:
    (tmp_path / "folder").mkdir()
    path = tmp_path / "folder" / "runs.db"
    log = SqliteEventLog(path)
    await log.append("run", [task()], expected_seq=0)
    lose(path)
    for _ in range(2):
        with pytest.raises(EventLogError, match=r"runs\.db.* was removed or replaced while it was open"):
            await log.append("run", notes(2, 1 + count), expected_seq=1)
    await log.aclose()


async def test_reader_of_a_missing_file_reports_the_file_and_not_an_unknown_run(path: Path) -> None:
    log = SqliteEventLog(path)
    await log.append("run", [task()], expected_seq=0)
    follower = asyncio.ensure_future(anext(log.follow("run", after_seq=1)))
    await log.read("run")
    remove(path)
    for read in (log.read("run"), log.list_runs(), follower):
        with pytest.raises(EventLogError, match="was removed or replaced while it was open"):
            await asyncio.wait_for(read, 10)
    await log.aclose()
    assert await log.list_runs() == []


async def test_closed_log_opens_the_current_file(path: Path) -> None:
    log = SqliteEventLog(path)
    await log.append("run", [task()], expected_seq=0)
    remove(path)
    with pytest.raises(EventLogError):
        await log.append("run", notes(2, 2), expected_seq=1)
    await log.aclose()

    await log.append("another", [task("another")], expected_seq=0)

    assert [record.task_id for record in await log.list_runs()] == ["another"]
    await log.aclose()


async def test_run_fails_with_an_error_when_its_log_is_removed(path: Path) -> None:
    @tool
    async def clean_up() -> str:
        remove(path)
        return "done"

    log = SqliteEventLog(path)
    with pytest.raises(RunError, match="was removed or replaced") as failure:
        await Agent(ScriptedModel(call("clean_up"), "Never said."), tools=[clean_up], log=log).run("Hi")
    assert failure.value.code == "log"
    await log.aclose()


async def test_thinking_session_in_a_missing_file_is_an_error(path: Path) -> None:
    sessions = ThinkingSessions(SqliteArtifacts(path))
    await sessions.think(thought(), session_id="plan")
    remove(path)
    with pytest.raises(EventLogError, match="was removed or replaced"):
        await sessions.get_session("plan")
    await sessions.aclose()


# -- the write-ahead log


def wal_size(path: Path) -> int:
    return path.with_name("runs.db-wal").stat().st_size


async def test_closed_writers_leave_the_write_ahead_log_empty(path: Path) -> None:
    reader = SqliteEventLog(path)
    await reader.append("run", [task()], expected_seq=0)
    for seq in range(2, 402, 40):
        writer = SqliteEventLog(path)
        await writer.append("run", notes(seq, seq + 39), expected_seq=seq - 1)
        await writer.aclose()
        assert wal_size(path) == 0
    assert len(await reader.read("run")) == 401
    await reader.aclose()


async def test_open_writers_keep_the_write_ahead_log_below_its_limit(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_file, "WAL_BYTES", 100_000)
    reader = SqliteEventLog(path)
    await reader.append("run", [task()], expected_seq=0)
    largest = 0
    for seq in range(2, 802, 40):
        writer = SqliteEventLog(path)
        await writer.append("run", notes(seq, seq + 39), expected_seq=seq - 1)
        largest = max(largest, wal_size(path))
        del writer
    assert largest < 300_000
    await reader.aclose()


async def test_write_ahead_log_shrinks_when_a_long_reader_ends(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_file, "WAL_BYTES", 100_000)
    log = SqliteEventLog(path)
    await log.append("run", [task()], expected_seq=0)
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM runs").fetchone()
        for seq in range(2, 802, 40):
            await log.append("run", notes(seq, seq + 39), expected_seq=seq - 1)
        held_up = wal_size(path)
        reader.execute("ROLLBACK")
        for seq in range(802, 1_002, 40):
            await log.append("run", notes(seq, seq + 39), expected_seq=seq - 1)
        assert wal_size(path) < 300_000 < held_up
    await log.aclose()
