"""Command in a SQLite file: what waiting for it costs, and what becomes of it."""

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
    """What SQLite is asked from now on."""
    statements: list[str] = []
    opened = database._connect  # pyright: ignore[reportPrivateUsage]

    def traced(*arguments: Any) -> sqlite3.Connection:
        connection = opened(*arguments)
        connection.set_trace_callback(statements.append)
        return connection

    monkeypatch.setattr(database, "_connect", traced)
    return statements


@pytest.fixture
async def logs(path: Path, statements: list[str]) -> AsyncIterator[tuple[SqliteEventLog, SqliteEventLog]]:
    """One log that watches, and another one as in another process."""
    mine, theirs = SqliteEventLog(path), SqliteEventLog(path)
    for number in range(1_000):
        await theirs.append(f"run{number}", task(f"run{number}"), expected_seq=0)
    yield mine, theirs
    await mine.aclose()
    await theirs.aclose()


async def until(statements: list[str], words: str, count: int) -> None:
    """Wait until SQLite was asked something that many times more."""
    for _ in range(4_000):
        if sum(words in each for each in statements) >= count:
            return
        await asyncio.sleep(0.005)
    raise AssertionError(f"{words}: not {count} times")


async def looks(statements: list[str], count: int) -> None:
    """Wait until somebody has looked at the file that many times more."""
    await until(statements, "PRAGMA data_version", statements.count("PRAGMA data_version") + count)


async def test_a_thousand_who_watch_and_follow_cost_one_look_for_all_while_nothing_comes(
    logs: tuple[SqliteEventLog, SqliteEventLog], statements: list[str]
) -> None:
    mine, _ = logs
    told: list[int] = []
    stops = [mine.watch_commands(f"run{number}", lambda number=number: told.append(number)) for number in range(1_000)]
    followers = [asyncio.ensure_future(anext(mine.follow(f"run{number}", after_seq=1))) for number in range(1_000)]
    # Each reads twice when it begins: what there is, and what came while it joined the others.
    await until(statements, "json FROM events", 2_000)
    await looks(statements, 2)
    statements.clear()
    told.clear()

    await looks(statements, 10)

    assert set(statements) == {"PRAGMA data_version"}
    assert told == []
    for stop in stops:
        stop()
    for follower in followers:
        follower.cancel()
    await asyncio.wait(followers)


async def test_a_letter_wakes_those_who_watch_its_run_and_is_looked_for_by_one_question(
    logs: tuple[SqliteEventLog, SqliteEventLog], statements: list[str]
) -> None:
    mine, theirs = logs
    told: list[int] = []
    arrived = asyncio.Event()

    def tell(number: int) -> None:
        told.append(number)
        arrived.set()

    stops = [mine.watch_commands(f"run{number}", lambda number=number: tell(number)) for number in range(1_000)]
    await looks(statements, 2)
    await asyncio.sleep(0)
    statements.clear()
    told.clear()
    arrived.clear()

    await theirs.append("run6", [CustomEvent(seq=2, name="note")], expected_seq=1)
    await looks(statements, 2)
    assert told == []
    await theirs.send_command("run7", CancelCommand())
    await asyncio.wait_for(arrived.wait(), 10)

    assert told == [7]
    assert sum(each.startswith("SELECT DISTINCT task_id FROM mail") for each in statements) == 1
    for stop in stops:
        stop()


async def test_who_stops_watching_stops_the_looking(
    logs: tuple[SqliteEventLog, SqliteEventLog], statements: list[str]
) -> None:
    mine, _ = logs
    stop = mine.watch_commands("run1", lambda: None)
    await looks(statements, 3)
    stop()
    await mine.list_runs()
    statements.clear()
    for _ in range(3):
        await mine.list_runs()
        await asyncio.sleep(0.03)
    assert "PRAGMA data_version" not in statements


async def test_a_letter_is_there_when_its_sender_is_killed(path: Path) -> None:
    log = SqliteEventLog(path)
    await log.append("run", task("run"), expected_seq=0)
    arrived = asyncio.Event()
    stop = log.watch_commands("run", arrived.set)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SEND, str(path), stdout=asyncio.subprocess.PIPE
    )
    said, _ = await asyncio.wait_for(process.communicate(), 20)
    await asyncio.wait_for(arrived.wait(), 10)
    assert await log.read_commands("run") == [(int(said), CancelCommand(reason="the user left"))]
    stop()
    await log.aclose()


async def test_a_letter_that_cannot_be_read_is_an_error_that_names_it(path: Path) -> None:
    log = SqliteEventLog(path)
    await log.append("run", task("run"), expected_seq=0)
    number = await log.send_command("run", CancelCommand())
    with sqlite3.connect(path) as connection:
        connection.execute("""UPDATE mail SET json = '{"kind": "say"}'""")
    connection.close()
    with pytest.raises(EventLogError, match=f"(?s)letter {number} to the run run cannot be read.*messages"):
        await log.read_commands("run")
    await log.aclose()


async def test_who_watches_a_file_that_cannot_be_opened_is_told_and_gets_the_error_by_reading(tmp_path: Path) -> None:
    log = SqliteEventLog(tmp_path / "missing" / "runs.db")
    arrived = asyncio.Event()
    stop = log.watch_commands("run", arrived.set)
    await asyncio.wait_for(arrived.wait(), 10)
    stop()
    await log.aclose()
