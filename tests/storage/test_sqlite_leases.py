"""Leases of SQLite logs, with owners in one process and in killed, frozen and forked processes."""

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
from rxloop.storage.sqlite import leases as lease_module
from rxloop.testing.event_log_contract.toolkit import ids, task

HOLDER = Path(__file__).with_name("holder.py")
LEASE = 1.0
FOREVER = 1_000.0
"""Lease during which no heartbeat occurs."""


class Clock:
    """Fake clock."""

    now = 50_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(lease_module, "clock", clock)
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


def make_run(task_id: str = "run") -> list[Event]:
    first = TaskEvent(
        seq=1, attempt=1, task_id=task_id, context_id="c", messages=[Message.user("Hi")], model="m", agent_name="a"
    )
    return [first, StatusUpdateEvent(seq=2, state="working", context_id="c")]


def note(seq: int) -> list[Event]:
    return [CustomEvent(seq=seq, name="note", context_id="c")]


def ignore() -> None:
    pass


@pytest.mark.parametrize("lease", [0, -1, float("inf"), float("nan")])
def test_invalid_lease_is_refused(path: Path, lease: float) -> None:
    with pytest.raises(ConfigurationError, match="lease must be a positive number of seconds"):
        SqliteEventLog(path, lease=lease)


# -- expiry


async def test_submitted_run_is_orphaned_after_half_a_minute_or_a_reboot(
    clock: Clock, path: Path, new_log: Callable[..., SqliteEventLog]
) -> None:
    log = new_log()
    await log.append("run", make_run()[:1], expected_seq=0)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE runs SET inserted_at = ?", (clock.now,))
    counts: list[int] = []
    for now in (clock.now, clock.now + 29, clock.now + 30, 10.0):
        clock.now = now
        counts.append(len(await log.list_orphaned()))
    assert counts == [0, 0, 1, 1]


async def test_lease_is_free_when_its_owner_has_been_silent_for_the_lease(
    clock: Clock, new_log: Callable[..., SqliteEventLog]
) -> None:
    first, second = new_log(), new_log(lease=1)
    assert await first.acquire_lease("c", "run", ignore)
    await first.append("run", make_run(), expected_seq=0)
    clock.now += FOREVER - 1
    assert await second.list_orphaned() == []
    assert not await second.acquire_lease("c", "run", ignore)
    clock.now += 1
    assert [record.task_id for record in await second.list_orphaned()] == ["run"]
    assert await second.acquire_lease("c", "run", ignore)
    assert await second.list_orphaned() == []


async def test_silent_owner_keeps_its_lease_until_another_owner_acquires_it(
    clock: Clock, new_log: Callable[..., SqliteEventLog]
) -> None:
    first, second = new_log(), new_log()
    assert await first.acquire_lease("c", "run", ignore)
    clock.now += 2 * FOREVER
    assert await first.acquire_lease("another", "run", ignore)  # this heartbeat covers all leases of the owner
    assert not await second.acquire_lease("c", "run", ignore)
    await first.append("run", make_run(), expected_seq=0)


async def test_append_is_fenced_after_the_lease_was_lost(clock: Clock, new_log: Callable[..., SqliteEventLog]) -> None:
    frozen, second = new_log(), new_log()
    await frozen.acquire_lease("c", "run", ignore)
    await frozen.append("run", make_run(), expected_seq=0, writer="frozen")
    clock.now += FOREVER
    assert await second.acquire_lease("c", "run", ignore)

    for last in (3, 90):  # short batches are written synchronously, long ones in the thread
        events = [CustomEvent(seq=seq, name="note") for seq in range(3, last + 1)]
        with pytest.raises(Fenced, match="run run: another process holds the lease of conversation c"):
            await frozen.append("run", events, expected_seq=2, writer="frozen")
    assert len(await second.read("run")) == 2

    await second.append("run", note(3), expected_seq=2, writer="second")
    assert len(await second.read("run")) == 3


async def test_owner_is_fenced_when_another_run_or_no_run_has_the_lease(
    clock: Clock, new_log: Callable[..., SqliteEventLog]
) -> None:
    frozen, second = new_log(), new_log()
    await frozen.acquire_lease("c", "run", ignore)
    await frozen.append("run", make_run(), expected_seq=0)
    clock.now += FOREVER
    assert await second.acquire_lease("c", "later", ignore)
    with pytest.raises(Fenced):
        await frozen.append("run", note(3), expected_seq=2)

    await second.release_lease("c", "later")
    with pytest.raises(Fenced):
        await frozen.append("run", note(3), expected_seq=2)

    await frozen.release_lease("c", "run")
    await frozen.append("run", note(3), expected_seq=2)  # the lease is free


async def test_fenced_run_does_not_affect_other_runs_of_the_same_write(
    clock: Clock, new_log: Callable[..., SqliteEventLog]
) -> None:
    log, second = new_log(fsync="full"), new_log()
    await log.acquire_lease("c", "run", ignore)
    clock.now += FOREVER
    assert await second.acquire_lease("c", "run", ignore)
    outcomes = await asyncio.gather(
        *(log.append(name, make_run(name)[:1], expected_seq=0) for name in ("a", "run", "b")), return_exceptions=True
    )
    # Only the run that lost its lease is fenced, not the other runs of the conversation.
    assert [type(outcome) for outcome in outcomes] == [type(None), Fenced, type(None)]


async def test_has_lease_renews_or_reports_the_loss_after_a_silence(
    clock: Clock, new_log: Callable[..., SqliteEventLog]
) -> None:
    silent, second = new_log(), new_log()
    await silent.acquire_lease("c", "run", ignore)
    clock.now += 2 * FOREVER
    assert await silent.has_lease("c", "run")
    assert not await second.acquire_lease("c", "run", ignore)

    clock.now += FOREVER
    assert await second.acquire_lease("c", "run", ignore)
    assert not await silent.has_lease("c", "run")
    await second.release_lease("c", "run")
    assert not await silent.has_lease("c", "run")


async def test_heartbeat_in_the_future_is_from_before_a_reboot(
    clock: Clock, new_log: Callable[..., SqliteEventLog]
) -> None:
    first, second = new_log(), new_log()
    assert await first.acquire_lease("c", "run", ignore)
    await first.append("run", make_run(), expected_seq=0)
    clock.now = 12
    assert [record.task_id for record in await second.list_orphaned()] == ["run"]
    assert await second.acquire_lease("c", "run", ignore)


async def test_delayed_acquisition_does_not_consider_the_owner_dead(
    clock: Clock, path: Path, new_log: Callable[..., SqliteEventLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = new_log(), new_log()
    assert await first.acquire_lease("c", "run", ignore)
    await first.append("run", make_run(), expected_seq=0)
    transaction = lease_module.transaction

    def delay_transaction(*args: Any, **options: Any) -> Any:
        clock.now += FOREVER
        return transaction(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(lease_module, "transaction", delay_transaction)
        assert not await second.acquire_lease("c", "run", ignore)
    assert await second.acquire_lease("c", "run", ignore)


async def test_dead_owners_leave_no_rows_in_the_file(
    clock: Clock, path: Path, new_log: Callable[..., SqliteEventLog]
) -> None:
    for number in range(3):
        await new_log().acquire_lease(f"c{number}", "run", ignore)
    clock.now += FOREVER
    for number in range(3):
        new_owner = new_log()
        assert await new_owner.acquire_lease(f"c{number}", "run", ignore)
        clock.now += FOREVER
    last = new_log()
    for number in range(3):
        assert await last.acquire_lease(f"c{number}", "run", ignore)
    clock.now += FOREVER
    assert await new_log().acquire_lease("c", "run", ignore)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM lease_holders").fetchone() == (2,)
        assert connection.execute("SELECT count(*) FROM leases").fetchone() == (4,)


# -- this process


async def test_lease_of_a_closed_event_loop_is_free(new_log: Callable[..., SqliteEventLog]) -> None:
    log = new_log()

    async def acquire_and_leave() -> None:
        assert await log.acquire_lease("c", "run", ignore)

    await asyncio.to_thread(asyncio.run, acquire_and_leave())
    assert await log.acquire_lease("c", "again", ignore)


async def test_cancelled_acquisition_leaves_no_lease(path: Path) -> None:
    log, other = SqliteEventLog(path), SqliteEventLog(path)
    for steps in range(5):
        acquisition = asyncio.ensure_future(log.acquire_lease("c", "run", ignore))
        for _ in range(steps):
            await asyncio.sleep(0)
        acquisition.cancel()
        await asyncio.wait([acquisition])
        if not acquisition.cancelled():
            await log.release_lease("c", "run")
        await log.append(f"run{steps}", make_run(f"run{steps}")[:1], expected_seq=0)
        assert await other.acquire_lease("c", "run", ignore)
        await other.release_lease("c", "run")
    await log.aclose()
    await other.aclose()


async def test_log_writes_one_heartbeat_for_all_leases_and_none_without_leases(path: Path) -> None:
    log, written = SqliteEventLog(path, lease=0.04), list[str]()
    loop, enough = asyncio.get_running_loop(), asyncio.Event()

    def record_statement(statement: str) -> None:
        if "holders" in statement:
            written.append(statement)
        if len(written) > 5:
            loop.call_soon_threadsafe(enough.set)

    for number in range(100):
        assert await log.acquire_lease(f"c{number}", "run", ignore)
    await log._writer.run(lambda connection: connection.set_trace_callback(record_statement))  # pyright: ignore[reportPrivateUsage]
    await asyncio.wait_for(enough.wait(), 10)
    assert {statement.split()[0] for statement in written} == {"UPDATE"}

    for number in range(100):
        await log.release_lease(f"c{number}", "run")
    await log.append("run", make_run(), expected_seq=0)
    written.clear()
    for seq in range(3, 100):
        await log.append("run", note(seq), expected_seq=seq - 1)
        await asyncio.sleep(0.001)
    assert written == []
    await log.aclose()


# -- other processes


class Holder:
    """Client of the program `holder.py`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process, self._in, self._out = process, process.stdin, process.stdout

    async def read_word(self) -> str:
        return (await asyncio.wait_for(self._out.readline(), 20)).decode().strip()

    async def append(self) -> None:
        self._in.write(b"append\n")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


@asynccontextmanager
async def start_holder(path: Path, lease: float = LEASE, *run: str) -> AsyncGenerator[Holder]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(HOLDER), str(path), str(lease), *run, stdin=pipe, stdout=pipe
    )
    started = Holder(process)
    try:
        assert await started.read_word() == "has"
        if not run:
            await started.append()
            assert await started.read_word() == "written"
        yield started
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        assert process.stdin is not None
        process.stdin.close()


async def measure_acquisition(log: SqliteEventLog, lease: tuple[str, str] = ("c", "run")) -> float:
    """Try until the lease is acquired, and return the elapsed seconds."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    while not await log.acquire_lease(*lease, ignore):
        assert loop.time() - start < 20
    return loop.time() - start


@pytest.mark.parametrize(
    "lease",
    [
        pytest.param(
            FOREVER,
            marks=pytest.mark.skipif(sys.platform == "win32", reason="no detection"),
        ),
        LEASE,
    ],
)
async def test_lease_of_a_killed_process_is_free_at_once_or_after_its_expiry(
    path: Path, lease: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    if lease == LEASE:
        monkeypatch.setattr(lease_module, "has_died", lambda process: False)
    log = SqliteEventLog(path, lease=FOREVER)
    async with start_holder(path, lease) as other:
        assert not await log.acquire_lease("c", "run", ignore)
        assert await log.list_orphaned() == []
        other.signal(signal.SIGKILL)
        await other.process.wait()
        after = await measure_acquisition(log)
        assert after <= 0.5 if lease == FOREVER else after <= LEASE + 0.5
    assert len(await log.read("run")) == 3
    await log.aclose()


async def test_runs_of_a_killed_process_are_orphaned_at_once(path: Path) -> None:
    log = SqliteEventLog(path)
    async with start_holder(path, FOREVER) as other:
        other.signal(signal.SIGKILL)
        await other.process.wait()
        assert [record.task_id for record in await log.list_orphaned()] == ["run"]
    await log.aclose()


async def test_submitted_run_is_orphaned_at_once_when_its_owner_is_killed(path: Path) -> None:
    log = SqliteEventLog(path)
    await log.append("submitted", [task(context_id="c")], expected_seq=0)
    async with start_holder(path, FOREVER, "submitted") as other:
        assert await log.list_orphaned(submitted_before=0) == []
        other.signal(signal.SIGKILL)
        await other.process.wait()
        assert ids(await log.list_orphaned()) == ["submitted"]
    await log.aclose()


async def test_live_process_keeps_its_lease_beyond_its_duration(path: Path) -> None:
    log = SqliteEventLog(path, lease=FOREVER)
    loop = asyncio.get_running_loop()
    async with start_holder(path, lease=0.2) as other:
        end = loop.time() + 1
        while loop.time() < end:
            assert not await log.acquire_lease("c", "run", ignore)
        await other.append()
        assert await other.read_word() == "written"
    await log.aclose()


async def test_process_frozen_beyond_the_lease_loses_it_and_is_fenced(path: Path) -> None:
    log = SqliteEventLog(path, lease=FOREVER)
    async with start_holder(path) as other:
        other.signal(signal.SIGSTOP)
        await other.append()
        assert await measure_acquisition(log) <= LEASE + 0.5
        other.signal(signal.SIGCONT)
        assert {await other.read_word(), await other.read_word()} == {"lost", "Fenced"}
        await log.append("run", note(4), expected_seq=3, writer="mine")
        await other.append()
        assert await other.read_word() == "Fenced"
    assert [event.seq for event in await log.read("run")] == [1, 2, 3, 4]
    await log.aclose()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_forked_process_is_another_owner(path: Path) -> None:
    log = SqliteEventLog(path, lease=FOREVER)

    async def acquire() -> bool:
        try:
            return await log.acquire_lease("c", "run", ignore)
        finally:
            await log.aclose()

    assert asyncio.run(acquire())
    pid = os.fork()
    if pid == 0:
        os._exit(10 + asyncio.run(acquire()))
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 10
