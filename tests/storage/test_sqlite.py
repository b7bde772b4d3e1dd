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

import orjson
import pytest

from rxloop import Agent, ConfigurationError, SqliteEventLog
from rxloop.errors import ConflictError, EventLogError, Fenced
from rxloop.protocol.events import (
    ContentCompleteEvent,
    ContentDeltaEvent,
    CustomEvent,
    Event,
    StatusUpdateEvent,
    TaskEvent,
)
from rxloop.protocol.messages import ImagePart, Message, ToolCall
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


async def write_run(path: Path) -> None:
    log = SqliteEventLog(path)
    await log.append("run", [task(task_id="run"), *notes(2, 3)], expected_seq=0)
    await log.aclose()


async def get_refusal(path: Path) -> str:
    """Return the error message for a file that a log can neither read nor write."""
    log = SqliteEventLog(path)
    with pytest.raises(EventLogError) as read_error:
        await log.list_runs()
    with pytest.raises(EventLogError) as write_error:
        await log.append("run", [task()], expected_seq=0)
    await log.aclose()
    assert str(read_error.value) == str(write_error.value)
    return str(read_error.value)


async def test_log_creates_no_file_before_the_first_event(path: Path) -> None:
    # L119
    log = SqliteEventLog(path)
    Agent(ScriptedModel("Hi"), log=log)
    assert await log.list_runs() == []
    with pytest.raises(EventLogError, match="no run nowhere"):
        await log.read("nowhere")
    assert not path.exists()
    await log.aclose()


async def test_log_reads_the_events_of_another_process(path: Path) -> None:
    await write_run(path)
    again = SqliteEventLog(path)
    assert [event.seq for event in await again.read("run")] == [1, 2, 3]
    await again.aclose()


async def test_closed_log_can_be_opened_again(path: Path) -> None:
    log = SqliteEventLog(path)
    await log.append("run", [task()], expected_seq=0)
    await log.aclose()
    await log.append("run", notes(2, 2), expected_seq=1)
    assert len(await log.read("run")) == 2
    await log.aclose()


@pytest.mark.parametrize("name", ["", ":memory:"])
def test_path_that_is_not_a_file_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="MemoryEventLog"):
        SqliteEventLog(name)


def test_unknown_fsync_is_refused(path: Path) -> None:
    with pytest.raises(ConfigurationError, match="'normal' or 'full', got 'always'"):
        SqliteEventLog(path, fsync="always")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(("fsync", "level"), [("normal", 1), ("full", 2)])
async def test_fsync_sets_the_synchronous_level(path: Path, fsync: Any, level: int) -> None:
    connection = database.connect(path, fsync)
    assert connection.execute("PRAGMA synchronous").fetchone() == (level,)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


async def test_batch_is_stored_once_when_its_append_was_cancelled(path: Path) -> None:
    log = SqliteEventLog(path)
    await log.append("run", [task()], expected_seq=0)
    # A batch of this size is written in the thread.
    batch = notes(2, 100)
    lost = asyncio.ensure_future(log.append("run", batch, expected_seq=1, writer="me"))
    await asyncio.sleep(0)
    lost.cancel()
    with pytest.raises(asyncio.CancelledError):
        await lost

    await log.append("run", batch, expected_seq=1, writer="me")
    with pytest.raises(ConflictError, match="run run: the writer expected 1"):
        await log.append("run", [CustomEvent(seq=2, attempt=1, name="another")], expected_seq=1, writer="me")

    assert [event.seq for event in await log.read("run")] == list(range(1, 101))
    await log.aclose()


async def test_concurrent_writers_have_their_own_outcomes(path: Path) -> None:
    log = SqliteEventLog(path)
    names = [f"run-{number}" for number in range(50)]
    await asyncio.gather(*(log.append(name, [task(task_id=name)], expected_seq=0) for name in names))
    outcomes = await asyncio.gather(
        *(log.append(name, notes(2, 2), expected_seq=1 if index % 2 else 7) for index, name in enumerate(names)),
        return_exceptions=True,
    )
    for index, outcome in enumerate(outcomes):
        assert outcome is None if index % 2 else f"run-{index}" in str(outcome) or "seq" in str(outcome)
    assert sorted(record.seq for record in await log.list_runs()) == [1] * 25 + [2] * 25
    await log.aclose()


async def test_follower_gets_the_events_of_another_process(path: Path) -> None:
    # L132
    await write_run(path)
    reader, writer = SqliteEventLog(path), SqliteEventLog(path)
    seen: list[int] = []

    async def follow() -> None:
        seen.extend([event.seq async for event in reader.follow("run")])

    follower = asyncio.create_task(follow())
    for seq in range(4, 20):
        await writer.append("run", notes(seq, seq), expected_seq=seq - 1)
    await writer.append("run", [StatusUpdateEvent(seq=20, state="completed", final=True)], expected_seq=19)
    await asyncio.wait_for(follower, 10)
    assert seen == list(range(1, 21))
    await reader.aclose()
    await writer.aclose()


async def test_follower_with_deltas_gets_the_deltas_of_another_process(path: Path) -> None:
    reader, writer = SqliteEventLog(path), SqliteEventLog(path, keep_deltas=True)
    await writer.append("run", [task(task_id="run")], expected_seq=0)
    following = aiter(reader.follow("run", deltas=True))
    assert (await anext(following)).seq == 1
    for sub in (1, 2):
        waiting = asyncio.ensure_future(anext(following))
        await asyncio.sleep(0.05)
        await writer.append("run", [ContentDeltaEvent(seq=1, sub=sub, delta="a")], expected_seq=1)
        assert (await asyncio.wait_for(waiting, 10)).sub == sub
    await writer.aclose()
    await reader.aclose()


async def test_all_followers_share_one_poll(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    statements: list[str] = []
    connect_original = database._connect

    def connect(*arguments: Any) -> sqlite3.Connection:
        connection = connect_original(*arguments)
        connection.set_trace_callback(statements.append)
        return connection

    await write_run(path)
    monkeypatch.setattr(database, "_connect", connect)
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
    polls = [each for each in statements if each.startswith("SELECT task_id, seq, idle")]
    assert len(polls) == 1, "one question for all, and none of them reads"
    assert not any("json FROM events" in each for each in statements)

    await other.append("run", notes(4, 4), expected_seq=3)
    assert {event.seq for event in await asyncio.wait_for(asyncio.gather(*followers), 10)} == {4}
    await log.aclose()
    await other.aclose()


async def test_follower_continues_after_its_log_is_closed(path: Path) -> None:
    await write_run(path)
    reader, writer = SqliteEventLog(path), SqliteEventLog(path)
    waiting = asyncio.ensure_future(anext(reader.follow("run", after_seq=3)))
    await asyncio.sleep(0.05)
    await reader.aclose()
    await writer.append("run", notes(4, 4), expected_seq=3)
    assert (await asyncio.wait_for(waiting, 10)).seq == 4
    await writer.aclose()
    await reader.aclose()


async def test_events_are_parsed_in_the_thread(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parse, threads = Event.from_json, set[str]()

    def parse_in_thread(data: bytes) -> Event:
        threads.add(threading.current_thread().name)
        return parse(data)

    await write_run(path)
    monkeypatch.setattr(Event, "from_json", parse_in_thread)
    log = SqliteEventLog(path)
    assert len(await log.read("run")) == 3
    assert (await anext(log.follow("run"))).seq == 1
    assert len((await log.read_conversation("", before="none", version=1)).parts) == 1
    assert threads == {"rxloop-log-reader"}
    await log.aclose()


async def test_second_process_cannot_append_to_a_run_with_an_owner(path: Path) -> None:
    # L92
    log = SqliteEventLog(path)
    other = SqliteEventLog(path)

    async def meddle() -> str:
        (record,) = await other.list_runs()
        note = CustomEvent(seq=record.seq + 1, name="meddling")
        with pytest.raises(Fenced, match="another process holds the lease"):
            await other.append(record.task_id, [note], expected_seq=record.seq)
        return "refused"

    agent = Agent(ScriptedModel(call("meddle"), "Refused."), tools=[meddle], log=log)
    assert (await agent.run("Hi")).output == "Refused."
    await log.aclose()
    await other.aclose()


async def test_file_of_another_program_is_refused_and_unchanged(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    before = path.read_bytes()
    assert "belongs to another program" in await get_refusal(path)
    assert path.read_bytes() == before


async def test_file_that_is_no_database_is_refused_with_a_remedy(path: Path) -> None:
    path.write_bytes(b"no database at all, but long enough to look at" * 100)
    says = await get_refusal(path)
    assert "not a SQLite file" in says
    assert str(path) in says


async def test_damaged_file_is_refused_with_a_remedy(path: Path) -> None:
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


async def test_truncated_file_is_refused(path: Path) -> None:
    log = SqliteEventLog(path)
    await log.append("run", [task(task_id="run"), *notes(2, 2_000)], expected_seq=0)
    await log.aclose()
    path.write_bytes(path.read_bytes()[:20_000])
    log = SqliteEventLog(path)
    with pytest.raises(EventLogError, match="damaged"):
        await log.read("run")
    await log.aclose()


async def test_missing_folder_is_named(tmp_path: Path) -> None:
    log = SqliteEventLog(tmp_path / "nowhere" / "runs.db")
    with pytest.raises(EventLogError, match="check that its folder exists"):
        await log.append("run", [task()], expected_seq=0)
    await log.aclose()


async def test_locked_file_is_an_error_after_the_timeout(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await write_run(path)
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.05)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    log = SqliteEventLog(path)
    with pytest.raises(EventLogError, match="another process has locked the file"):
        await log.append("run", notes(4, 4), expected_seq=3)
    holder.execute("ROLLBACK")
    holder.close()
    await log.append("run", notes(4, 4), expected_seq=3)
    await log.aclose()


def run_writer(*arguments: str) -> str:
    command = [sys.executable, str(WRITER), *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


async def assert_acknowledged_events_are_stored(path: Path, printed: str) -> None:
    acknowledged = [int(line.split()[1]) for line in printed.splitlines() if line.startswith("written")]
    log = SqliteEventLog(path)
    events = await log.read("run")
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert len(events) >= max(acknowledged)
    await log.append("run", notes(len(events) + 1, len(events) + 1), expected_seq=len(events))
    await log.aclose()


async def test_full_disk_is_an_error_and_acknowledged_events_are_stored(path: Path) -> None:
    # A limit on the size of files simulates the full disk. The system refuses the write halfway.
    printed = await asyncio.to_thread(run_writer, "limited", str(path))
    assert "failed the event log" in printed
    await assert_acknowledged_events_are_stored(path, printed)


async def test_run_ends_with_a_log_error_when_the_disk_is_full(path: Path) -> None:
    printed = await asyncio.to_thread(run_writer, "agent", str(path))
    assert "failed log the event log" in printed


async def test_read_only_file_is_an_error() -> None:
    # Only the owner may enter tmp_path, so use another folder.
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "runs.db"
        await write_run(path)
        path.chmod(0o444)
        path.parent.chmod(0o555)
        printed = await asyncio.to_thread(run_writer, "nobody", str(path))
        path.parent.chmod(0o755)
    assert "not writable" in printed


async def test_acknowledged_events_are_stored_when_the_process_is_killed(path: Path) -> None:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, str(WRITER), "append", str(path), stdout=pipe)
    assert process.stdout is not None
    printed = b"".join([await process.stdout.readline() for _ in range(60)])
    process.send_signal(signal.SIGKILL)
    printed += await process.stdout.read()
    await process.wait()
    complete_lines, _, _ = printed.rpartition(b"\n")
    await assert_acknowledged_events_are_stored(path, complete_lines.decode())


async def test_append_now_writes_only_short_batches_without_contention(path: Path) -> None:
    log = SqliteEventLog(path)
    # The first event opens the file in the thread.
    assert not log.append_now("run", [task()], expected_seq=0)
    await log.append("run", [task()], expected_seq=0)
    # Retry while the thread completes the previous write.
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


LARGE: dict[str, Event] = {
    "text": CustomEvent(name="note", data="x" * 300_000),
    "nested text": CustomEvent(name="note", data={"pages": [["x" * 1_000] * 300]}),
    "many values": CustomEvent(name="note", data=[{"a": 1}] * 20_000),
    "messages": TaskEvent(messages=[Message.user("x" * 1_000)] * 300, model="m", agent_name="helper"),
    "image": TaskEvent(
        messages=[Message.user([ImagePart(data=b"x" * 300_000, media_type="image/png")])],
        model="m",
        agent_name="helper",
    ),
    "tool call": ContentCompleteEvent(
        content="", tool_calls=[ToolCall.parse("c0", "store", orjson.dumps({"text": "x" * 300_000}).decode())], step="1"
    ),
}


@pytest.mark.parametrize("event", LARGE.values(), ids=LARGE)
async def test_large_events_are_not_written_by_the_event_loop(path: Path, event: Event) -> None:
    log = SqliteEventLog(path)
    await log.append("run", [task()], expected_seq=0)
    event = event.model_copy(update={"seq": 2, "attempt": 1})
    # A small batch can also be refused, while the thread completes the previous write.
    async with asyncio.timeout(5):
        while not log.append_now("run", notes(2, 2), expected_seq=1):
            await log.read("run")
    for _ in range(3):
        assert not log.append_now("run", [event.model_copy(update={"seq": 3})], expected_seq=2)
        assert len(await log.read("run")) == 2
    await log.append("run", [event.model_copy(update={"seq": 3})], expected_seq=2)
    assert len(await log.read("run")) == 3
    await log.aclose()


async def test_fsync_full_writes_only_in_the_thread(path: Path) -> None:
    log = SqliteEventLog(path, fsync="full")
    await log.append("run", [task()], expected_seq=0)
    assert not log.append_now("run", notes(2, 2), expected_seq=1)
    await log.append("run", notes(2, 2), expected_seq=1)
    assert len(await log.read("run")) == 2
    await log.aclose()


async def test_write_ahead_log_size_is_limited(path: Path) -> None:
    log = SqliteEventLog(path)
    await log.append("run", [task()], expected_seq=0)
    for seq in range(2, 4_002, 10):
        await log.append("run", notes(seq, seq + 9), expected_seq=seq - 1)
    assert path.with_name("runs.db-wal").stat().st_size < 20_000_000
    assert path.stat().st_size > 100_000
    await log.aclose()
    assert len(await log.read("run")) == 4_001
    await log.aclose()


async def test_new_files_are_private_to_their_owner(path: Path) -> None:
    log = SqliteEventLog(path)
    await log.append("run", [task()], expected_seq=0)
    modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    assert modes == {"runs.db": 0o600, "runs.db-wal": 0o600, "runs.db-shm": 0o600}
    await log.aclose()


async def test_existing_file_keeps_its_mode(path: Path) -> None:
    path.touch()
    path.chmod(0o640)
    log = SqliteEventLog(path)
    await log.append("run", [task()], expected_seq=0)
    assert {file.stat().st_mode & 0o777 for file in path.parent.iterdir()} == {0o640}
    await log.aclose()


async def test_log_waits_for_a_file_that_another_process_creates(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    migrate = database._migrate
    tries: list[sqlite3.Connection] = []

    def migrate_during_another(connection: sqlite3.Connection, path: Path) -> None:
        tries.append(connection)
        with closing(sqlite3.connect(path, isolation_level=None)) as holder:
            if len(tries) <= 2:
                holder.execute("BEGIN IMMEDIATE")
                # This statement ignores the timeout and does not wait for the holder.
                connection.execute("PRAGMA journal_mode = WAL")
        migrate(connection, path)

    monkeypatch.setattr(database, "_migrate", migrate_during_another)
    log = SqliteEventLog(path)
    await log.append("run", [task()], expected_seq=0)
    assert len(tries) == 3
    await log.aclose()


async def test_relative_path_is_resolved_when_the_log_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    log = SqliteEventLog("runs.db")
    await log.append("run", [task()], expected_seq=0)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert [event.seq for event in await log.read("run")] == [1]
    await log.aclose()


async def test_exactly_one_process_wins_when_two_append_the_same_bytes(path: Path) -> None:
    await write_run(path)
    pipe, count = asyncio.subprocess.PIPE, 100
    racers = [
        await asyncio.create_subprocess_exec(sys.executable, RACER, path, str(count), stdin=pipe, stdout=pipe)
        for _ in range(2)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert await racer.stdout.readline() == b"ready\n"
    begin = f"{time.time() + 0.2}\n".encode()
    line = await asyncio.gather(*(racer.communicate(begin) for racer in racers))
    winners = [name for out, _ in line for name in out.decode().split()]
    assert sorted(winners) == sorted(f"run-{number}" for number in range(count))


async def test_followers_of_a_run_share_its_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, elsewhere = SqliteEventLog(tmp_path / "runs.db"), SqliteEventLog(tmp_path / "runs.db")
    await elsewhere.append("run", tools.start_events(), expected_seq=0)
    followers = [tools.Follower(log) for _ in range(200)]
    for follower in followers:
        await follower.wait_for_events(1, 2)
    read = list[Any]()
    page = log._read_page

    async def count(*arguments: Any) -> Any:
        read.append(arguments)
        return await page(*arguments)

    monkeypatch.setattr(log, "_read_page", count)
    for seq in range(3, 8):
        await elsewhere.append("run", [tools.note(seq)], expected_seq=seq - 1)
        for follower in followers:
            await follower.wait_for_events(*range(1, seq + 1))
    assert len(read) <= 5 * 3
    await elsewhere.append("run", [tools.end(8)], expected_seq=7)
    await tools.wait_for(*followers)
    await log.aclose()
    await elsewhere.aclose()
