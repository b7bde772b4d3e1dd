"""Turns of conversations between log objects, and between processes that are killed, frozen and forked."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, Literal

import pytest

from rxloop import ConfigurationError, SqliteEventLog
from rxloop.errors import Fenced
from rxloop.protocol.events import CustomEvent, Event, StatusUpdateEvent, TaskEvent
from rxloop.protocol.messages import Message
from rxloop.storage.sqlite import leases as turns
from rxloop.testing.event_log_contract.toolkit import ids, task

HOLDER = Path(__file__).with_name("holder.py")
LEASE = 1.0
FOREVER = 1_000.0
"""A lease in which no beat comes by itself."""


class Clock:
    """A clock of the machine that is set by hand."""

    now = 50_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(turns, "clock", clock)
    return clock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
async def new_log(path: Path) -> AsyncIterator[Callable[..., SqliteEventLog]]:
    logs: list[SqliteEventLog] = []

    def make(*, lease: float = FOREVER, fsync: Literal["normal", "full"] = "normal") -> SqliteEventLog:
        logs.append(SqliteEventLog(path, lease=lease, fsync=fsync))
        return logs[-1]

    yield make
    for log in logs:
        await log.aclose()


def begun(task_id: str = "run") -> list[Event]:
    first = TaskEvent(
        seq=1, attempt=1, task_id=task_id, context_id="c", messages=[Message.user("Hi")], model="m", agent_name="a"
    )
    return [first, StatusUpdateEvent(seq=2, state="working", context_id="c")]


def note(seq: int) -> list[Event]:
    return [CustomEvent(seq=seq, name="note", context_id="c")]


def nothing() -> None:
    pass


@pytest.mark.parametrize("lease", [0, -1, float("inf"), float("nan")])
def test_a_lease_that_is_no_time_is_refused(path: Path, lease: float) -> None:
    with pytest.raises(ConfigurationError, match="lease is a number of seconds"):
        SqliteEventLog(path, lease=lease)


# -- times, on a clock that is set by hand


async def test_a_submitted_run_is_an_orphan_after_a_while_or_once_the_machine_has_started_again(
    clock: Clock, path: Path, new_log: Callable[..., SqliteEventLog]
) -> None:
    log = new_log()
    await log.append("run", begun()[:1], expected_seq=0)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE runs SET arrived = ?", (clock.now,))
    found: list[int] = []
    for now in (clock.now, clock.now + 29, clock.now + 30, 10.0):
        clock.now = now
        found.append(len(await log.list_orphaned()))
    assert found == [0, 0, 1, 1]


async def test_a_turn_is_free_when_its_holder_has_been_silent_for_the_lease(
    clock: Clock, new_log: Callable[..., SqliteEventLog]
) -> None:
    first, second = new_log(), new_log(lease=1)
    assert await first.acquire_lease("c", "run", nothing)
    await first.append("run", begun(), expected_seq=0)
    clock.now += FOREVER - 1
    assert await second.list_orphaned() == []
    assert not await second.acquire_lease("c", "run", nothing)
    clock.now += 1
    assert [record.task_id for record in await second.list_orphaned()] == ["run"]
    assert await second.acquire_lease("c", "run", nothing)
    assert await second.list_orphaned() == []


async def test_a_holder_that_was_silent_and_lost_nothing_keeps_its_turn(
    clock: Clock, new_log: Callable[..., SqliteEventLog]
) -> None:
    first, second = new_log(), new_log()
    assert await first.acquire_lease("c", "run", nothing)
    clock.now += 2 * FOREVER
    assert await first.acquire_lease("another", "run", nothing)  # it says that it is alive, for all of its turns
    assert not await second.acquire_lease("c", "run", nothing)
    await first.append("run", begun(), expected_seq=0)


async def test_what_a_holder_appends_after_its_turn_was_taken_is_refused(
    clock: Clock, new_log: Callable[..., SqliteEventLog]
) -> None:
    frozen, second = new_log(), new_log()
    await frozen.acquire_lease("c", "run", nothing)
    await frozen.append("run", begun(), expected_seq=0, writer="frozen")
    clock.now += FOREVER
    assert await second.acquire_lease("c", "run", nothing)

    for last in (3, 90):  # a few are written at once, and many by the thread
        events = [CustomEvent(seq=seq, name="note") for seq in range(3, last + 1)]
        with pytest.raises(Fenced, match="run run: somebody else has the turn of the conversation c"):
            await frozen.append("run", events, expected_seq=2, writer="frozen")
    assert len(await second.read("run")) == 2

    await second.append("run", note(3), expected_seq=2, writer="second")
    assert len(await second.read("run")) == 3


async def test_a_holder_is_fenced_also_if_another_run_has_the_turn_now_or_none(
    clock: Clock, new_log: Callable[..., SqliteEventLog]
) -> None:
    frozen, second = new_log(), new_log()
    await frozen.acquire_lease("c", "run", nothing)
    await frozen.append("run", begun(), expected_seq=0)
    clock.now += FOREVER
    assert await second.acquire_lease("c", "later", nothing)
    with pytest.raises(Fenced):
        await frozen.append("run", note(3), expected_seq=2)

    await second.release_lease("c", "later")
    with pytest.raises(Fenced):
        await frozen.append("run", note(3), expected_seq=2)

    await frozen.release_lease("c", "run")
    await frozen.append("run", note(3), expected_seq=2)  # as everybody may, while nobody has the turn


async def test_the_other_runs_of_one_write_stand_when_one_of_them_is_fenced(
    clock: Clock, new_log: Callable[..., SqliteEventLog]
) -> None:
    log, second = new_log(fsync="full"), new_log()
    await log.acquire_lease("c", "run", nothing)
    clock.now += FOREVER
    assert await second.acquire_lease("c", "run", nothing)
    outcomes = await asyncio.gather(
        *(log.append(name, begun(name)[:1], expected_seq=0) for name in ("a", "run", "b")), return_exceptions=True
    )
    # All three are in the same conversation: the fence is for the run whose turn was lost.
    assert [type(outcome) for outcome in outcomes] == [type(None), Fenced, type(None)]


async def test_who_asks_for_its_turn_after_a_silence_has_it_for_another_lease_or_has_lost_it(
    clock: Clock, new_log: Callable[..., SqliteEventLog]
) -> None:
    silent, second = new_log(), new_log()
    await silent.acquire_lease("c", "run", nothing)
    clock.now += 2 * FOREVER
    assert await silent.has_lease("c", "run")
    assert not await second.acquire_lease("c", "run", nothing)

    clock.now += FOREVER
    assert await second.acquire_lease("c", "run", nothing)
    assert not await silent.has_lease("c", "run")
    await second.release_lease("c", "run")
    assert not await silent.has_lease("c", "run")


async def test_a_beat_that_lies_in_the_future_is_of_before_the_machine_started_again(
    clock: Clock, new_log: Callable[..., SqliteEventLog]
) -> None:
    first, second = new_log(), new_log()
    assert await first.acquire_lease("c", "run", nothing)
    await first.append("run", begun(), expected_seq=0)
    clock.now = 12
    assert [record.task_id for record in await second.list_orphaned()] == ["run"]
    assert await second.acquire_lease("c", "run", nothing)


async def test_nobody_is_taken_for_dead_by_one_who_was_kept_waiting_by_a_third(
    clock: Clock, path: Path, new_log: Callable[..., SqliteEventLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = new_log(), new_log()
    assert await first.acquire_lease("c", "run", nothing)
    await first.append("run", begun(), expected_seq=0)
    transaction = turns.transaction

    def held_up(*args: Any, **options: Any) -> Any:
        clock.now += FOREVER
        return transaction(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(turns, "transaction", held_up)
        assert not await second.acquire_lease("c", "run", nothing)
    assert await second.acquire_lease("c", "run", nothing)


async def test_dead_holders_leave_nothing_in_the_file(
    clock: Clock, path: Path, new_log: Callable[..., SqliteEventLog]
) -> None:
    for number in range(3):
        await new_log().acquire_lease(f"c{number}", "run", nothing)
    clock.now += FOREVER
    for number in range(3):
        taker = new_log()
        assert await taker.acquire_lease(f"c{number}", "run", nothing)
        clock.now += FOREVER
    last = new_log()
    for number in range(3):
        assert await last.acquire_lease(f"c{number}", "run", nothing)
    clock.now += FOREVER
    assert await new_log().acquire_lease("c", "run", nothing)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM holders").fetchone() == (2,)
        assert connection.execute("SELECT count(*) FROM turns").fetchone() == (4,)


# -- this process


async def test_a_turn_of_an_event_loop_that_is_closed_is_free(new_log: Callable[..., SqliteEventLog]) -> None:
    log = new_log()

    async def leave() -> None:
        assert await log.acquire_lease("c", "run", nothing)

    await asyncio.to_thread(asyncio.run, leave())
    assert await log.acquire_lease("c", "again", nothing)


async def test_a_wait_for_a_turn_that_is_cancelled_takes_none(path: Path) -> None:
    log, other = SqliteEventLog(path), SqliteEventLog(path)
    for steps in range(5):
        taking = asyncio.ensure_future(log.acquire_lease("c", "run", nothing))
        for _ in range(steps):
            await asyncio.sleep(0)
        taking.cancel()
        await asyncio.wait([taking])
        if not taking.cancelled():
            await log.release_lease("c", "run")
        await log.append(f"run{steps}", begun(f"run{steps}")[:1], expected_seq=0)  # the thread is done with it
        assert await other.acquire_lease("c", "run", nothing)
        await other.release_lease("c", "run")
    await log.aclose()
    await other.aclose()


async def test_a_log_with_many_turns_writes_one_beat_for_all_and_one_without_any_none(path: Path) -> None:
    log, written = SqliteEventLog(path, lease=0.04), list[str]()
    loop, enough = asyncio.get_running_loop(), asyncio.Event()

    def note_down(statement: str) -> None:
        if "holders" in statement:
            written.append(statement)
        if len(written) > 5:
            loop.call_soon_threadsafe(enough.set)

    for number in range(100):
        assert await log.acquire_lease(f"c{number}", "run", nothing)
    await log._writer.do(lambda connection: connection.set_trace_callback(note_down))  # pyright: ignore[reportPrivateUsage]
    await asyncio.wait_for(enough.wait(), 10)
    assert {statement.split()[0] for statement in written} == {"UPDATE"}

    for number in range(100):
        await log.release_lease(f"c{number}", "run")
    await log.append("run", begun(), expected_seq=0)
    written.clear()
    for seq in range(3, 100):
        await log.append("run", note(seq), expected_seq=seq - 1)
        await asyncio.sleep(0.001)
    assert written == []
    await log.aclose()


# -- other processes


class Holder:
    """A process that holds the turn of the run."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process, self._in, self._out = process, process.stdin, process.stdout

    async def says(self) -> str:
        return (await asyncio.wait_for(self._out.readline(), 20)).decode().strip()

    async def append(self) -> None:
        self._in.write(b"append\n")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


@asynccontextmanager
async def holder(path: Path, lease: float = LEASE, *run: str) -> AsyncGenerator[Holder]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(HOLDER), str(path), str(lease), *run, stdin=pipe, stdout=pipe
    )
    made = Holder(process)
    try:
        assert await made.says() == "has"
        if not run:
            await made.append()
            assert await made.says() == "written"
        yield made
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        assert process.stdin is not None
        process.stdin.close()


async def taken_over(log: SqliteEventLog, turn: tuple[str, str] = ("c", "run")) -> float:
    """The seconds until the turn is free."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not await log.acquire_lease(*turn, nothing):
        assert loop.time() - began < 20
    return loop.time() - began


@pytest.mark.parametrize(
    "lease",
    [
        pytest.param(FOREVER, marks=pytest.mark.skipif(sys.platform == "win32", reason="a lease is all there is")),
        LEASE,
    ],
)
async def test_the_turn_of_a_process_that_was_killed_is_free_at_once_or_after_its_lease(
    path: Path, lease: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    if lease == LEASE:
        monkeypatch.setattr(turns, "has_died", lambda process: False)
    log = SqliteEventLog(path, lease=FOREVER)
    async with holder(path, lease) as other:
        assert not await log.acquire_lease("c", "run", nothing)
        assert await log.list_orphaned() == []
        other.signal(signal.SIGKILL)
        await other.process.wait()
        after = await taken_over(log)
        assert after <= 0.5 if lease == FOREVER else after <= LEASE + 0.5
    assert len(await log.read("run")) == 3
    await log.aclose()


async def test_the_runs_of_a_process_that_was_killed_are_orphans_at_once(path: Path) -> None:
    log = SqliteEventLog(path)
    async with holder(path, FOREVER) as other:
        other.signal(signal.SIGKILL)
        await other.process.wait()
        assert [record.task_id for record in await log.list_orphaned()] == ["run"]
    await log.aclose()


async def test_a_submitted_run_whose_holder_was_killed_is_an_orphan_at_once(path: Path) -> None:
    log = SqliteEventLog(path)
    await log.append("submitted", [task(context_id="c")], expected_seq=0)
    async with holder(path, FOREVER, "submitted") as other:
        assert await log.list_orphaned(submitted_before=0) == []
        other.signal(signal.SIGKILL)
        await other.process.wait()
        assert ids(await log.list_orphaned()) == ["submitted"]
    await log.aclose()


async def test_a_process_that_lives_keeps_its_turn_over_many_leases(path: Path) -> None:
    log = SqliteEventLog(path, lease=FOREVER)
    loop = asyncio.get_running_loop()
    async with holder(path, lease=0.2) as other:
        end = loop.time() + 1
        while loop.time() < end:
            assert not await log.acquire_lease("c", "run", nothing)
        await other.append()
        assert await other.says() == "written"
    await log.aclose()


async def test_a_process_that_was_frozen_comes_back_to_find_its_turn_lost_and_its_run_fenced(path: Path) -> None:
    log = SqliteEventLog(path, lease=FOREVER)
    async with holder(path) as other:
        other.signal(signal.SIGSTOP)
        await other.append()
        assert await taken_over(log) <= LEASE + 0.5
        other.signal(signal.SIGCONT)
        assert {await other.says(), await other.says()} == {"lost", "Fenced"}
        await log.append("run", note(4), expected_seq=3, writer="mine")
        await other.append()
        assert await other.says() == "Fenced"
    assert [event.seq for event in await log.read("run")] == [1, 2, 3, 4]
    await log.aclose()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_process_is_another_holder(path: Path) -> None:
    log = SqliteEventLog(path, lease=FOREVER)

    async def take() -> bool:
        try:
            return await log.acquire_lease("c", "run", nothing)
        finally:
            await log.aclose()

    assert asyncio.run(take())
    pid = os.fork()
    if pid == 0:
        os._exit(10 + asyncio.run(take()))
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 10
