"""Sending and watching commands in a SQLite log."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rxloop import SqliteEventLog
from rxloop.errors import EventLogError
from rxloop.protocol.commands import CancelCommand
from rxloop.protocol.events import CustomEvent, Event, TaskEvent
from rxloop.protocol.messages import Message
from rxloop.storage.sqlite import database

SEND = """
import asyncio, os, signal, sys
from rxloop import SqliteEventLog
from rxloop.protocol.commands import CancelCommand

async def main():
    log = SqliteEventLog(sys.argv[1])
    print(await log.send_command("run", CancelCommand(reason="the user left")), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def task(task_id: str) -> list[Event]:
    return [TaskEvent(seq=1, attempt=1, task_id=task_id, messages=[Message.user("Hi")], model="m", agent_name="a")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """SQL statements executed during the test."""
    statements: list[str] = []
    connect_original = database._connect  # pyright: ignore[reportPrivateUsage]

    def connect(*arguments: Any) -> sqlite3.Connection:
        connection = connect_original(*arguments)
        connection.set_trace_callback(statements.append)
        return connection

    monkeypatch.setattr(database, "_connect", connect)
    return statements


@pytest.fixture
async def logs(path: Path, statements: list[str]) -> AsyncIterator[tuple[SqliteEventLog, SqliteEventLog]]:
    """Two logs on one file, as in two processes."""
    log, other_log = SqliteEventLog(path), SqliteEventLog(path)
    for number in range(1_000):
        await other_log.append(f"run{number}", task(f"run{number}"), expected_seq=0)
    yield log, other_log
    await log.aclose()
    await other_log.aclose()


async def wait_for_statements(statements: list[str], words: str, count: int) -> None:
    """Wait until at least `count` statements contain the words."""
    for _ in range(4_000):
        if sum(words in each for each in statements) >= count:
            return
        await asyncio.sleep(0.005)
    raise AssertionError(f"{words}: not {count} times")


async def wait_for_polls(statements: list[str], count: int) -> None:
    """Wait for `count` more polls."""
    await wait_for_statements(statements, "PRAGMA data_version", statements.count("PRAGMA data_version") + count)


async def test_thousand_watchers_and_followers_share_one_poll(
    logs: tuple[SqliteEventLog, SqliteEventLog], statements: list[str]
) -> None:
    log, _ = logs
    notified: list[int] = []
    stops = [
        log.watch_commands(f"run{number}", lambda number=number: notified.append(number)) for number in range(1_000)
    ]
    followers = [asyncio.ensure_future(anext(log.follow(f"run{number}", after_seq=1))) for number in range(1_000)]
    # Every follower reads twice: once at its start and once after joining the shared poll.
    await wait_for_statements(statements, "json FROM events", 2_000)
    await wait_for_polls(statements, 2)
    statements.clear()
    notified.clear()

    await wait_for_polls(statements, 10)

    assert set(statements) == {"PRAGMA data_version"}
    assert notified == []
    for stop in stops:
        stop()
    for follower in followers:
        follower.cancel()
    await asyncio.wait(followers)


async def test_command_wakes_the_watchers_of_its_run_with_one_query(
    logs: tuple[SqliteEventLog, SqliteEventLog], statements: list[str]
) -> None:
    log, other_log = logs
    notified: list[int] = []
    arrived = asyncio.Event()

    def notify(number: int) -> None:
        notified.append(number)
        arrived.set()

    stops = [log.watch_commands(f"run{number}", lambda number=number: notify(number)) for number in range(1_000)]
    await wait_for_polls(statements, 2)
    await asyncio.sleep(0)
    statements.clear()
    notified.clear()
    arrived.clear()

    await other_log.append("run6", [CustomEvent(seq=2, name="note")], expected_seq=1)
    await wait_for_polls(statements, 2)
    assert notified == []
    await other_log.send_command("run7", CancelCommand())
    await asyncio.wait_for(arrived.wait(), 10)

    assert notified == [7]
    assert sum(each.startswith("SELECT DISTINCT task_id FROM commands") for each in statements) == 1
    for stop in stops:
        stop()


async def test_polling_ends_with_the_last_watcher(
    logs: tuple[SqliteEventLog, SqliteEventLog], statements: list[str]
) -> None:
    log, _ = logs
    stop = log.watch_commands("run1", lambda: None)
    await wait_for_polls(statements, 3)
    stop()
    await log.list_runs()
    statements.clear()
    for _ in range(3):
        await log.list_runs()
        await asyncio.sleep(0.03)
    assert "PRAGMA data_version" not in statements


async def test_command_is_stored_when_its_sender_is_killed(path: Path) -> None:
    log = SqliteEventLog(path)
    await log.append("run", task("run"), expected_seq=0)
    arrived = asyncio.Event()
    stop = log.watch_commands("run", arrived.set)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SEND, str(path), stdout=asyncio.subprocess.PIPE
    )
    printed, _ = await asyncio.wait_for(process.communicate(), 20)
    await asyncio.wait_for(arrived.wait(), 10)
    assert await log.read_commands("run") == [(int(printed), CancelCommand(reason="the user left"))]
    stop()
    await log.aclose()


async def test_unreadable_command_is_an_error_that_names_it(path: Path) -> None:
    log = SqliteEventLog(path)
    await log.append("run", task("run"), expected_seq=0)
    number = await log.send_command("run", CancelCommand())
    with sqlite3.connect(path) as connection:
        connection.execute("""UPDATE commands SET json = '{"kind": "message"}'""")
    connection.close()
    with pytest.raises(EventLogError, match=f"(?s)Cannot read command {number} of run run.*messages"):
        await log.read_commands("run")
    await log.aclose()


async def test_watcher_of_a_file_that_cannot_be_opened_is_notified(tmp_path: Path) -> None:
    log = SqliteEventLog(tmp_path / "missing" / "runs.db")
    arrived = asyncio.Event()
    stop = log.watch_commands("run", arrived.set)
    await asyncio.wait_for(arrived.wait(), 10)
    stop()
    await log.aclose()
