from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rxloop import Agent, ConfigurationError, SqliteEventLog
from rxloop.errors import ConflictError, EventLogError, Fenced
from rxloop.protocol.events import ContentDeltaEvent, CustomEvent, Event, StatusUpdateEvent, TaskEvent
from rxloop.protocol.messages import Message
from rxloop.storage.sqlite import database
from rxloop.testing import ScriptedModel, call
from rxloop.testing.event_log_contract import toolkit as tools

WRITER = Path(__file__).with_name("writer.py")
RACER = Path(__file__).with_name("racer.py")


def task(**fields: Any) -> TaskEvent:
    return TaskEvent(seq=1, attempt=1, messages=[Message.user("Hi")], model="m", agent_name="helper", **fields)


def notes(first: int, last: int) -> list[Event]:
    return [CustomEvent(seq=seq, attempt=1, name=f"note {seq}") for seq in range(first, last + 1)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


async def written(path: Path) -> None:
    log = SqliteEventLog(path)
    await log.append("run", [task(task_id="run"), *notes(2, 3)], expected_seq=0)
    await log.aclose()


async def refused(path: Path) -> str:
    """What a log says of a file that it cannot use, whether it reads or writes."""
    log = SqliteEventLog(path)
    with pytest.raises(EventLogError) as reading:
        await log.list_runs()
    with pytest.raises(EventLogError) as writing:
        await log.append("run", [task()], expected_seq=0)
    await log.aclose()
    assert str(reading.value) == str(writing.value)
    return str(reading.value)


async def test_nothing_is_written_before_the_first_event(path: Path) -> None:
    # L119
    log = SqliteEventLog(path)
    Agent(ScriptedModel("Hi"), log=log)
    assert await log.list_runs() == []
    with pytest.raises(EventLogError, match="no run nowhere"):
        await log.read("nowhere")
    assert not path.exists()
    await log.aclose()


async def test_what_one_process_wrote_another_reads(path: Path) -> None:
    await written(path)
    again = SqliteEventLog(path)
    assert [event.seq for event in await again.read("run")] == [1, 2, 3]
    await again.aclose()


async def test_a_log_that_was_closed_opens_again(path: Path) -> None:
    log = SqliteEventLog(path)
    await log.append("run", [task()], expected_seq=0)
    await log.aclose()
    await log.append("run", notes(2, 2), expected_seq=1)
    assert len(await log.read("run")) == 2
    await log.aclose()


@pytest.mark.parametrize("name", ["", ":memory:"])
def test_what_is_no_file_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="MemoryEventLog"):
        SqliteEventLog(name)


def test_an_unknown_fsync_is_refused(path: Path) -> None:
    with pytest.raises(ConfigurationError, match="'normal' or 'full', not 'always'"):
        SqliteEventLog(path, fsync="always")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(("fsync", "level"), [("normal", 1), ("full", 2)])
async def test_fsync_is_what_sqlite_is_told(path: Path, fsync: Any, level: int) -> None:
    connection = database.connect(path, fsync)
    assert connection.execute("PRAGMA synchronous").fetchone() == (level,)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


async def test_a_batch_whose_writer_did_not_hear_of_it_is_not_written_twice(path: Path) -> None:
    log = SqliteEventLog(path)
    await log.append("run", [task()], expected_seq=0)
    # More than is written without the thread.
    batch = notes(2, 100)
    lost = asyncio.ensure_future(log.append("run", batch, expected_seq=1, writer="me"))
    await asyncio.sleep(0)
    lost.cancel()
    with pytest.raises(asyncio.CancelledError):
        await lost

    await log.append("run", batch, expected_seq=1, writer="me")
    with pytest.raises(ConflictError, match="run run: the writer expected seq 1"):
        await log.append("run", [CustomEvent(seq=2, attempt=1, name="another")], expected_seq=1, writer="me")

    assert [event.seq for event in await log.read("run")] == list(range(1, 101))
    await log.aclose()


async def test_many_runs_write_at_once_and_each_has_its_own_outcome(path: Path) -> None:
    log = SqliteEventLog(path)
    names = [f"run-{number}" for number in range(50)]
    await asyncio.gather(*(log.append(name, [task(task_id=name)], expected_seq=0) for name in names))
    outcomes = await asyncio.gather(
        *(log.append(name, notes(2, 2), expected_seq=1 if place % 2 else 7) for place, name in enumerate(names)),
        return_exceptions=True,
    )
    for place, outcome in enumerate(outcomes):
        assert outcome is None if place % 2 else f"run-{place}" in str(outcome) or "seq" in str(outcome)
    assert sorted(record.seq for record in await log.list_runs()) == [1] * 25 + [2] * 25
    await log.aclose()


async def test_a_follower_sees_what_another_process_writes(path: Path) -> None:
    # L132
    await written(path)
    mine, theirs = SqliteEventLog(path), SqliteEventLog(path)
    seen: list[int] = []

    async def follow() -> None:
        seen.extend([event.seq async for event in mine.follow("run")])

    follower = asyncio.create_task(follow())
    for seq in range(4, 20):
        await theirs.append("run", notes(seq, seq), expected_seq=seq - 1)
    await theirs.append("run", [StatusUpdateEvent(seq=20, state="completed", final=True)], expected_seq=19)
    await asyncio.wait_for(follower, 10)
    assert seen == list(range(1, 21))
    await mine.aclose()
    await theirs.aclose()


async def test_a_follower_with_deltas_sees_those_that_another_process_writes(path: Path) -> None:
    mine, theirs = SqliteEventLog(path), SqliteEventLog(path, keep_deltas=True)
    await theirs.append("run", [task(task_id="run")], expected_seq=0)
    following = aiter(mine.follow("run", deltas=True))
    assert (await anext(following)).seq == 1
    for sub in (1, 2):
        waiting = asyncio.ensure_future(anext(following))
        await asyncio.sleep(0.05)
        await theirs.append("run", [ContentDeltaEvent(seq=1, sub=sub, delta="a")], expected_seq=1)
        assert (await asyncio.wait_for(waiting, 10)).sub == sub
    await theirs.aclose()
    await mine.aclose()


async def test_those_who_wait_cost_one_question_whether_anybody_has_written(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements: list[str] = []
    opened = database._connect

    def traced(*arguments: Any) -> sqlite3.Connection:
        connection = opened(*arguments)
        connection.set_trace_callback(statements.append)
        return connection

    await written(path)
    monkeypatch.setattr(database, "_connect", traced)
    log, other = SqliteEventLog(path), SqliteEventLog(path)
    await other.append("other", [task(task_id="other")], expected_seq=0)
    followers = [asyncio.ensure_future(anext(log.follow("run", after_seq=3))) for _ in range(100)]
    await asyncio.sleep(0.3)

    statements.clear()
    await asyncio.sleep(0.2)
    assert 2 <= len(statements) <= 11
    assert set(statements) == {"PRAGMA data_version"}

    statements.clear()
    await other.append("other", notes(2, 2), expected_seq=1)
    await asyncio.sleep(0.1)
    asked = [each for each in statements if each.startswith("SELECT task_id, seq, at_rest")]
    assert len(asked) == 1, "one question for all, and none of them reads"
    assert not any("json FROM events" in each for each in statements)

    await other.append("run", notes(4, 4), expected_seq=3)
    assert {event.seq for event in await asyncio.wait_for(asyncio.gather(*followers), 10)} == {4}
    await log.aclose()
    await other.aclose()


async def test_a_log_that_is_closed_under_a_follower_serves_it_on(path: Path) -> None:
    await written(path)
    mine, theirs = SqliteEventLog(path), SqliteEventLog(path)
    waiting = asyncio.ensure_future(anext(mine.follow("run", after_seq=3)))
    await asyncio.sleep(0.05)
    await mine.aclose()
    await theirs.append("run", notes(4, 4), expected_seq=3)
    assert (await asyncio.wait_for(waiting, 10)).seq == 4
    await theirs.aclose()
    await mine.aclose()


async def test_events_are_parsed_in_the_thread_and_not_on_the_event_loop(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parse, threads = Event.from_json, set[str]()

    def noted(data: bytes) -> Event:
        threads.add(threading.current_thread().name)
        return parse(data)

    await written(path)
    monkeypatch.setattr(Event, "from_json", noted)
    log = SqliteEventLog(path)
    assert len(await log.read("run")) == 3
    assert (await anext(log.follow("run"))).seq == 1
    assert len((await log.read_conversation("", before="none", version=1)).parts) == 1
    assert threads == {"rxloop-log-reader"}
    await log.aclose()


async def test_a_second_process_cannot_write_a_run_that_another_one_drives(path: Path) -> None:
    # L92
    log = SqliteEventLog(path)
    other = SqliteEventLog(path)

    async def meddle() -> str:
        (record,) = await other.list_runs()
        note = CustomEvent(seq=record.seq + 1, name="meddling")
        with pytest.raises(Fenced, match="somebody else has the turn"):
            await other.append(record.task_id, [note], expected_seq=record.seq)
        return "refused"

    agent = Agent(ScriptedModel(call("meddle"), "Refused."), tools=[meddle], log=log)
    assert (await agent.run("Hi")).output == "Refused."
    await log.aclose()
    await other.aclose()


async def test_a_file_of_another_program_is_refused_and_stays_as_it_is(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    before = path.read_bytes()
    assert "database of another program" in await refused(path)
    assert path.read_bytes() == before


async def test_what_is_no_database_is_refused_with_what_to_do(path: Path) -> None:
    path.write_bytes(b"no database at all, but long enough to look at" * 100)
    says = await refused(path)
    assert "not a SQLite file" in says
    assert str(path) in says


async def test_a_damaged_file_is_refused_with_what_to_do(path: Path) -> None:
    log = SqliteEventLog(path)
    await log.append("run", [task(task_id="run"), *notes(2, 2_000)], expected_seq=0)
    await log.aclose()
    data = bytearray(path.read_bytes())
    data[8192:-8192] = b"\xff" * (len(data) - 16384)
    path.write_bytes(data)
    log = SqliteEventLog(path)
    with pytest.raises(EventLogError, match=r"damaged.*\.recover"):
        await log.read("run")
    await log.aclose()


async def test_a_truncated_file_is_refused(path: Path) -> None:
    log = SqliteEventLog(path)
    await log.append("run", [task(task_id="run"), *notes(2, 2_000)], expected_seq=0)
    await log.aclose()
    path.write_bytes(path.read_bytes()[:20_000])
    log = SqliteEventLog(path)
    with pytest.raises(EventLogError, match="damaged"):
        await log.read("run")
    await log.aclose()


async def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    log = SqliteEventLog(tmp_path / "nowhere" / "runs.db")
    with pytest.raises(EventLogError, match="check that its folder exists"):
        await log.append("run", [task()], expected_seq=0)
    await log.aclose()


async def test_a_file_that_another_process_holds_is_an_error_after_a_while(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await written(path)
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.05)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    log = SqliteEventLog(path)
    with pytest.raises(EventLogError, match="another process has held the file"):
        await log.append("run", notes(4, 4), expected_seq=3)
    holder.execute("ROLLBACK")
    holder.close()
    await log.append("run", notes(4, 4), expected_seq=3)
    await log.aclose()


def in_a_process(*arguments: str) -> str:
    command = [sys.executable, str(WRITER), *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


async def acknowledged_is_there(path: Path, printed: str) -> None:
    said = [int(line.split()[1]) for line in printed.splitlines() if line.startswith("written")]
    log = SqliteEventLog(path)
    held = await log.read("run")
    assert [event.seq for event in held] == list(range(1, len(held) + 1))
    assert len(held) >= max(said)
    await log.append("run", notes(len(held) + 1, len(held) + 1), expected_seq=len(held))
    await log.aclose()


async def test_a_full_disk_is_an_error_and_what_was_acknowledged_is_there(path: Path) -> None:
    # The limit on the size of files stands for the full disk: the system refuses the write in the middle.
    printed = await asyncio.to_thread(in_a_process, "limited", str(path))
    assert "failed the event log" in printed
    await acknowledged_is_there(path, printed)


async def test_a_run_whose_disk_is_full_ends_with_a_final_event_that_says_so(path: Path) -> None:
    printed = await asyncio.to_thread(in_a_process, "agent", str(path))
    assert "failed log the event log" in printed


async def test_a_file_that_may_not_be_written_is_an_error_that_says_so() -> None:
    # Not under tmp_path, which nobody but its owner may enter.
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "runs.db"
        await written(path)
        path.chmod(0o444)
        path.parent.chmod(0o555)
        printed = await asyncio.to_thread(in_a_process, "nobody", str(path))
        path.parent.chmod(0o755)
    assert "cannot be" in printed


async def test_what_was_acknowledged_is_there_when_the_process_is_killed(path: Path) -> None:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, str(WRITER), "append", str(path), stdout=pipe)
    assert process.stdout is not None
    printed = b"".join([await process.stdout.readline() for _ in range(60)])
    process.send_signal(signal.SIGKILL)
    printed += await process.stdout.read()
    await process.wait()
    whole, _, _ = printed.rpartition(b"\n")
    await acknowledged_is_there(path, whole.decode())


async def test_only_a_short_write_that_nothing_is_in_the_way_of_is_made_at_once(path: Path) -> None:
    log = SqliteEventLog(path)
    # Not before the file is open.
    assert not log.append_now("run", [task()], expected_seq=0)
    await log.append("run", [task()], expected_seq=0)
    # The thread may still be on its way out of the write before.
    async with asyncio.timeout(5):
        while not log.append_now("run", notes(2, 3), expected_seq=1):
            await log.read("run")
    assert not log.append_now("run", notes(4, 103), expected_seq=3)
    with pytest.raises(ConflictError, match="run run"):
        log.append_now("run", notes(9, 9), expected_seq=8)

    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    assert not log.append_now("run", notes(4, 4), expected_seq=3)
    holder.execute("ROLLBACK")
    holder.close()
    assert log.append_now("run", notes(4, 4), expected_seq=3)

    assert [event.seq for event in await log.read("run")] == [1, 2, 3, 4]
    await log.aclose()


async def test_with_fsync_full_every_write_is_the_threads(path: Path) -> None:
    log = SqliteEventLog(path, fsync="full")
    await log.append("run", [task()], expected_seq=0)
    assert not log.append_now("run", notes(2, 2), expected_seq=1)
    await log.append("run", notes(2, 2), expected_seq=1)
    assert len(await log.read("run")) == 2
    await log.aclose()


async def test_the_write_ahead_log_does_not_grow_for_ever(path: Path) -> None:
    log = SqliteEventLog(path)
    await log.append("run", [task()], expected_seq=0)
    for seq in range(2, 4_002, 10):
        await log.append("run", notes(seq, seq + 9), expected_seq=seq - 1)
    assert path.with_name("runs.db-wal").stat().st_size < 20_000_000
    assert path.stat().st_size > 100_000
    await log.aclose()
    assert len(await log.read("run")) == 4_001
    await log.aclose()


async def test_the_files_of_a_new_log_are_for_their_owner_alone(path: Path) -> None:
    log = SqliteEventLog(path)
    await log.append("run", [task()], expected_seq=0)
    modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    assert modes == {"runs.db": 0o600, "runs.db-wal": 0o600, "runs.db-shm": 0o600}
    await log.aclose()


async def test_a_file_that_is_there_keeps_its_mode(path: Path) -> None:
    path.touch()
    path.chmod(0o640)
    log = SqliteEventLog(path)
    await log.append("run", [task()], expected_seq=0)
    assert {file.stat().st_mode & 0o777 for file in path.parent.iterdir()} == {0o640}
    await log.aclose()


async def test_a_new_file_that_another_process_is_making_is_waited_for(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrate = database._migrate
    tries: list[sqlite3.Connection] = []

    def in_the_middle_of_another_ones(connection: sqlite3.Connection, path: Path) -> None:
        tries.append(connection)
        with closing(sqlite3.connect(path, isolation_level=None)) as holder:
            if len(tries) <= 2:
                holder.execute("BEGIN IMMEDIATE")
                # This one statement does not wait for the holder, whatever the timeout.
                connection.execute("PRAGMA journal_mode = WAL")
        migrate(connection, path)

    monkeypatch.setattr(database, "_migrate", in_the_middle_of_another_ones)
    log = SqliteEventLog(path)
    await log.append("run", [task()], expected_seq=0)
    assert len(tries) == 3
    await log.aclose()


async def test_a_log_stays_with_its_file_wherever_the_process_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    log = SqliteEventLog("runs.db")
    await log.append("run", [task()], expected_seq=0)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert [event.seq for event in await log.read("run")] == [1]
    await log.aclose()


async def test_of_two_processes_that_append_the_same_bytes_at_the_same_moment_one_wins(path: Path) -> None:
    await written(path)
    pipe, count = asyncio.subprocess.PIPE, 100
    racers = [
        await asyncio.create_subprocess_exec(sys.executable, RACER, path, str(count), stdin=pipe, stdout=pipe)
        for _ in range(2)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert await racer.stdout.readline() == b"ready\n"
    begin = f"{time.time() + 0.2}\n".encode()
    said = await asyncio.gather(*(racer.communicate(begin) for racer in racers))
    winners = [name for out, _ in said for name in out.decode().split()]
    assert sorted(winners) == sorted(f"run-{number}" for number in range(count))


async def test_all_who_follow_a_run_share_what_is_read_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, elsewhere = SqliteEventLog(tmp_path / "runs.db"), SqliteEventLog(tmp_path / "runs.db")
    await elsewhere.append("run", tools.begun(), expected_seq=0)
    followers = [tools.Follower(log) for _ in range(200)]
    for follower in followers:
        await follower.sees(1, 2)
    read = list[Any]()
    page = log._page

    async def counted(*given: Any) -> Any:
        read.append(given)
        return await page(*given)

    monkeypatch.setattr(log, "_page", counted)
    for seq in range(3, 8):
        await elsewhere.append("run", [tools.note(seq)], expected_seq=seq - 1)
        for follower in followers:
            await follower.sees(*range(1, seq + 1))
    assert len(read) <= 5 * 3
    await elsewhere.append("run", [tools.end(8)], expected_seq=7)
    await tools.wait_for(*followers)
    await log.aclose()
    await elsewhere.aclose()
