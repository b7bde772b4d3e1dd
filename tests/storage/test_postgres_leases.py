"""Leases in Postgres, which end with their session and survive short server outages."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest

from rxloop import PostgresEventLog
from rxloop.errors import EventLogError, Fenced
from rxloop.storage.postgres.address import Connection
from rxloop.testing.event_log_contract.toolkit import ids, note, start_events, task
from support.postgres.logs import query_rows
from support.postgres.server import PostgresServer

pytestmark = pytest.mark.service("postgres")

HOLDER = Path(__file__).with_name("holder.py")
LEASE = 1.0
IN_SECONDS = 20
DISK_FULL_TRIGGERS = """
CREATE FUNCTION rxloop.no_room() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'No space left on device' USING ERRCODE = 'disk_full'; END $$;
CREATE TRIGGER no_room BEFORE DELETE ON rxloop.leases FOR EACH ROW EXECUTE FUNCTION rxloop.no_room();
CREATE TRIGGER no_room BEFORE INSERT ON rxloop.events FOR EACH ROW EXECUTE FUNCTION rxloop.no_room()
"""


@pytest.fixture
async def new_log(postgres_database: str) -> AsyncIterator[Callable[..., PostgresEventLog]]:
    logs: list[PostgresEventLog] = []

    def make(address: str = postgres_database, *, lease: float = 30) -> PostgresEventLog:
        logs.append(PostgresEventLog(address, lease=lease))
        return logs[-1]

    yield make
    for log in logs:
        await log.aclose()


def ignore() -> None:
    pass


class LostLease(asyncio.Event):
    """Callback that sets an event when the lease is lost."""

    def __call__(self) -> None:
        self.set()


async def count_sessions(address: str, pattern: str = "%pg_%advisory%", *, end: bool = False) -> int:
    """Count sessions by their last statement. With `end=True`, also terminate them."""
    connection = await psycopg.AsyncConnection.connect(address, autocommit=True)
    async with connection:
        selection = "FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'rxloop'"
        selected = "pg_terminate_backend(pid)" if end else "pid"
        cursor = await connection.execute(f"SELECT {selected} {selection} AND query LIKE %s".encode(), (pattern,))
        return len(await cursor.fetchall())


async def wait_until(condition: Callable[[], object], *, seconds: float = IN_SECONDS) -> float:
    """Wait until a synchronous or asynchronous condition is true, and return the seconds."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    async with asyncio.timeout(seconds):
        while True:
            outcome = condition()
            if asyncio.iscoroutine(outcome):
                outcome = await outcome
            if outcome:
                return loop.time() - start
            await asyncio.sleep(0.01)


async def test_owner_keeps_its_leases_when_its_session_breaks(
    postgres_database: str, new_log: Callable[..., PostgresEventLog]
) -> None:
    first, second = new_log(), new_log()
    for name in ("a", "b"):
        assert await first.acquire_lease(name, name, pytest.fail)
        await first.append(name, start_events(name, context_id=name), expected_seq=0, writer="first")
    assert await count_sessions(postgres_database, "%", end=True) > 1

    assert await first.has_lease("a", "a")
    for name in ("a", "b"):
        assert not await second.acquire_lease(name, name, ignore)
        await first.append(name, [note(3)], expected_seq=2, writer="first")


async def test_submitted_run_is_orphaned_after_half_a_minute(
    postgres_database: str, new_log: Callable[..., PostgresEventLog]
) -> None:
    log = new_log()
    await log.append("run", [task()], expected_seq=0)
    counts: list[int] = []
    for seconds in (29, 1):
        query = f"UPDATE rxloop.runs SET inserted_at = inserted_at - interval '{seconds} seconds'"
        await query_rows(postgres_database, query)
        counts.append(len(await log.list_orphaned()))
    assert counts == [0, 1]


async def test_owner_notices_the_end_of_its_session(
    postgres_database: str, new_log: Callable[..., PostgresEventLog]
) -> None:
    log = new_log(lease=1_000)
    assert await log.acquire_lease("c", "run", pytest.fail)
    assert await count_sessions(postgres_database, "%pg_try_advisory_lock%", end=True) == 0
    assert await count_sessions(postgres_database, "%holder%", end=True) >= 1

    async def is_locked() -> bool:
        connection = await psycopg.AsyncConnection.connect(postgres_database)
        async with connection:
            # `pg_locks` covers all databases.
            here = "database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            cursor = await connection.execute(
                f"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND {here}".encode()
            )
            return await cursor.fetchone() == (1,)

    assert await wait_until(is_locked) < 5


async def test_append_is_fenced_after_the_lease_was_lost(
    postgres_database: str, new_log: Callable[..., PostgresEventLog]
) -> None:
    frozen, second = new_log(), new_log()
    lost = LostLease()
    assert await frozen.acquire_lease("c", "run", lost)
    await frozen.append("run", start_events(context_id="c"), expected_seq=0, writer="frozen")
    await frozen.append("other", start_events("other", context_id="d"), expected_seq=0, writer="frozen")
    # Simulate a frozen process that does not notice the end of its session.
    frozen._engine().leases.connection._on_broken = None
    frozen._engine().leases.connection._watch(False)
    await count_sessions(postgres_database, "%holder%", end=True)
    await wait_until(lambda: second.acquire_lease("c", "run", ignore))

    late, other_outcome = await asyncio.gather(
        frozen.append("run", [note(3, context_id="c")], expected_seq=2, writer="frozen"),
        frozen.append("other", [note(3, context_id="d")], expected_seq=2, writer="frozen"),
        return_exceptions=True,
    )
    assert isinstance(late, Fenced)
    assert "run run: another process holds the lease of conversation c" in str(late)
    assert other_outcome is None
    assert len(await second.read("run")) == 2

    assert not await frozen.has_lease("c", "run")
    assert lost.is_set()
    await second.append("run", [note(3)], expected_seq=2, writer="second")


async def test_owner_is_fenced_when_another_run_or_no_run_has_the_lease(
    postgres_database: str, new_log: Callable[..., PostgresEventLog]
) -> None:
    frozen, second = new_log(), new_log()
    await frozen.acquire_lease("c", "run", ignore)
    await frozen.append("run", start_events(context_id="c"), expected_seq=0)
    frozen._engine().leases.connection._on_broken = None
    frozen._engine().leases.connection._watch(False)
    await count_sessions(postgres_database, "%holder%", end=True)
    await wait_until(lambda: second.acquire_lease("c", "later", ignore))
    with pytest.raises(Fenced):
        await frozen.append("run", [note(3, context_id="c")], expected_seq=2)
    await second.release_lease("c", "later")
    with pytest.raises(Fenced):
        await frozen.append("run", [note(3, context_id="c")], expected_seq=2)
    await frozen.release_lease("c", "run")
    await frozen.append("run", [note(3, context_id="c")], expected_seq=2)  # the lease is free


async def test_cancelled_acquisition_leaves_no_lease(new_log: Callable[..., PostgresEventLog]) -> None:
    log, other = new_log(), new_log()
    await log.list_runs()
    for steps in range(12):
        acquisition = asyncio.ensure_future(log.acquire_lease("c", "run", ignore))
        for _ in range(steps):
            await asyncio.sleep(0.0005)
        acquisition.cancel()
        await asyncio.wait([acquisition])
        if not acquisition.cancelled():
            await log.release_lease("c", "run")
        await wait_until(lambda: other.acquire_lease("c", "run", ignore))
        await other.release_lease("c", "run")


# -- other processes


class Holder:
    """Client of the program `holder.py`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process, self._in, self._out = process, process.stdin, process.stdout

    async def read_word(self) -> str:
        return (await asyncio.wait_for(self._out.readline(), IN_SECONDS)).decode().strip()

    def append(self) -> None:
        self._in.write(b"append\n")


@asynccontextmanager
async def start_holder(address: str, lease: float = LEASE, *run: str) -> AsyncGenerator[Holder]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(HOLDER), address, str(lease), *run, stdin=pipe, stdout=pipe
    )
    started = Holder(process)
    try:
        assert await started.read_word() == "has"
        if not run:
            started.append()
            assert await started.read_word() == "written"
        yield started
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        assert process.stdin is not None
        process.stdin.close()


async def test_lease_of_a_killed_process_is_free_at_once(
    postgres_database: str, new_log: Callable[..., PostgresEventLog]
) -> None:
    log = new_log()
    async with start_holder(postgres_database, lease=1_000) as other:
        assert not await log.acquire_lease("c", "run", ignore)
        assert ids(await log.list_orphaned()) == []
        other.process.kill()
        await other.process.wait()
        assert await wait_until(log.list_orphaned) < 2
        assert await log.acquire_lease("c", "run", ignore)


async def test_submitted_run_is_orphaned_at_once_when_its_owner_is_killed(
    postgres_database: str, new_log: Callable[..., PostgresEventLog]
) -> None:
    log = new_log()
    await log.append("submitted", [task(context_id="c")], expected_seq=0)
    async with start_holder(postgres_database, 1_000, "submitted") as other:
        assert ids(await log.list_orphaned(submitted_before=0)) == []
        other.process.kill()
        await other.process.wait()
        assert await wait_until(log.list_orphaned) < 2


async def test_process_frozen_beyond_the_lease_loses_it_and_is_fenced(
    postgres_database: str, new_log: Callable[..., PostgresEventLog]
) -> None:
    log = new_log()
    async with start_holder(postgres_database) as other:
        other.process.send_signal(signal.SIGSTOP)
        took = await wait_until(lambda: log.acquire_lease("c", "run", ignore))
        assert LEASE * 0.7 < took < LEASE + 3
        await log.append("run", [note(4)], expected_seq=3, writer="second")
        other.append()
        other.process.send_signal(signal.SIGCONT)
        assert {await other.read_word(), await other.read_word()} == {"lost", "Fenced"}
        assert len(await log.read("run")) == 4


async def test_process_frozen_within_the_lease_keeps_it(
    postgres_database: str, new_log: Callable[..., PostgresEventLog]
) -> None:
    log = new_log()
    async with start_holder(postgres_database, lease=4) as other:
        other.process.send_signal(signal.SIGSTOP)
        for _ in range(50):
            assert not await log.acquire_lease("c", "run", ignore)
            assert ids(await log.list_orphaned()) == []
            await asyncio.sleep(0.01)
        other.process.send_signal(signal.SIGCONT)
        other.append()
        assert await other.read_word() == "written"


# -- server restarts


@pytest.mark.parametrize("crash", [False, True])
async def test_restart_of_the_server_ends_no_lease(crash: bool, new_log: Callable[..., PostgresEventLog]) -> None:
    with PostgresServer() as server:
        first, second = new_log(server.dsn), new_log(server.dsn)
        for name in "abc":
            assert await first.acquire_lease(name, name, pytest.fail)
            await first.append(name, start_events(name, context_id=name), expected_seq=0, writer="first")
        assert await second.acquire_lease("other", "other", pytest.fail)

        server.kill() if crash else server.stop()
        await asyncio.to_thread(server.start)

        assert await first.has_lease("a", "a")
        # No process is considered dead yet, since live processes may need a moment to reconnect.
        assert ids(await second.list_orphaned()) == []
        for name in "abc":
            assert not await second.acquire_lease(name, name, ignore)
            await first.append(name, [note(3, context_id=name)], expected_seq=2, writer="first")
        await first.aclose()
        await second.aclose()


async def test_lease_that_its_owner_considers_lost_is_free(
    postgres_database: str, new_log: Callable[..., PostgresEventLog]
) -> None:
    first, second, lost = new_log(lease=LEASE), new_log(), LostLease()
    assert await first.acquire_lease("a", "a", lost)
    connection = await psycopg.AsyncConnection.connect(postgres_database)
    async with connection:
        await connection.execute("LOCK TABLE rxloop.leases IN ACCESS EXCLUSIVE MODE")
        acquisition = asyncio.create_task(first.acquire_lease("b", "b", pytest.fail))
        await lost.wait()
    assert await acquisition

    await wait_until(lambda: second.acquire_lease("a", "a", ignore))
    assert await first.has_lease("b", "b")


async def test_lease_that_is_lost_during_its_reacquisition_is_free(new_log: Callable[..., PostgresEventLog]) -> None:
    first, second = new_log(), new_log()
    assert await first.acquire_lease("a", "a", ignore)
    leases = first._engine().leases

    class LosingConnection:
        def __init__(self, connection: Connection) -> None:
            self._connection = connection

        async def execute(self, *statement: Any) -> Any:
            answer = await self._connection.execute(*statement)
            leases._leases.clear()
            return answer

    async def reconnect(connection: Connection) -> None:
        await connection.execute("SELECT pg_advisory_unlock_all()")
        leases._leases["a"].unconfirmed = True
        await leases._reacquire(cast("Connection", LosingConnection(connection)))

    await leases.connection.do(reconnect, retry_seconds=0)
    assert await second.acquire_lease("a", "a", ignore)


async def test_lease_that_cannot_be_released_on_a_full_disk_is_free(
    new_log: Callable[..., PostgresEventLog], postgres_database: str
) -> None:
    owner, second = new_log(), new_log()
    owner._engine().leases._retry_seconds = 0
    for context_id in ("c", "kept"):
        assert await owner.acquire_lease(context_id, f"run-{context_id}", pytest.fail)
    await query_rows(postgres_database, DISK_FULL_TRIGGERS)
    with pytest.raises(EventLogError, match="the disk of the server is full"):
        await owner.release_lease("c", "run-c")
    await query_rows(postgres_database, "DROP TRIGGER no_room ON rxloop.leases")
    assert await second.acquire_lease("c", "run-c", pytest.fail)
    assert not await second.acquire_lease("kept", "run-kept", pytest.fail)
    assert await owner.has_lease("kept", "run-kept")


async def test_full_disk_is_logged_while_a_short_wait_of_a_writer_continues(
    new_log: Callable[..., PostgresEventLog], postgres_database: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = new_log()
    await log.list_runs(limit=1)
    await query_rows(postgres_database, DISK_FULL_TRIGGERS)
    run_write = asyncio.create_task(log.append("run", start_events(), expected_seq=0, writer="owner"))
    async with asyncio.timeout(IN_SECONDS):
        warning = "the disk of the server is full: free some space; trying again"
        while not any(warning in line for line in caplog.messages):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert not run_write.done()
    await query_rows(postgres_database, "DROP TRIGGER no_room ON rxloop.events")
    await run_write
    assert len(await log.read("run")) == 2
