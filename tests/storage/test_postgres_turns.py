"""Turns in Postgres: they die with their session, and outlive a server that is away for a moment."""

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
from rxloop.testing.event_log_contract.toolkit import begun, ids, note, task
from support.postgres.logs import query_rows
from support.postgres.server import PostgresServer

pytestmark = pytest.mark.service("postgres")

HOLDER = Path(__file__).with_name("holder.py")
LEASE = 1.0
IN_SECONDS = 20
_NO_ROOM = """
CREATE FUNCTION rxloop.no_room() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'No space left on device' USING ERRCODE = 'disk_full'; END $$;
CREATE TRIGGER no_room BEFORE DELETE ON rxloop.turns FOR EACH ROW EXECUTE FUNCTION rxloop.no_room();
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


def nothing() -> None:
    pass


class Lost(asyncio.Event):
    """Set when a turn is lost."""

    def __call__(self) -> None:
        self.set()


async def sessions(address: str, what: str = "%pg_%advisory%", *, end: bool = False) -> int:
    """How many sessions of the logs there are whose last statement was like that; they are ended with `end`."""
    connection = await psycopg.AsyncConnection.connect(address, autocommit=True)
    async with connection:
        found = "FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'rxloop'"
        chosen = "pg_terminate_backend(pid)" if end else "pid"
        cursor = await connection.execute(f"SELECT {chosen} {found} AND query LIKE %s".encode(), (what,))
        return len(await cursor.fetchall())


async def until(condition: Callable[[], object], *, seconds: float = IN_SECONDS) -> float:
    """Wait until a condition holds, which may be asked in an async way; give the seconds."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.timeout(seconds):
        while True:
            held = condition()
            if asyncio.iscoroutine(held):
                held = await held
            if held:
                return loop.time() - began
            await asyncio.sleep(0.01)


async def test_a_holder_keeps_its_turns_over_a_broken_session(
    postgres_database: str, new_log: Callable[..., PostgresEventLog]
) -> None:
    first, second = new_log(), new_log()
    for name in ("a", "b"):
        assert await first.acquire_lease(name, name, pytest.fail)
        await first.append(name, begun(name, context_id=name), expected_seq=0, writer="first")
    assert await sessions(postgres_database, "%", end=True) > 1

    assert await first.has_lease("a", "a")
    for name in ("a", "b"):
        assert not await second.acquire_lease(name, name, nothing)
        await first.append(name, [note(3)], expected_seq=2, writer="first")


async def test_a_submitted_run_is_an_orphan_after_a_while(
    postgres_database: str, new_log: Callable[..., PostgresEventLog]
) -> None:
    log = new_log()
    await log.append("run", [task()], expected_seq=0)
    found: list[int] = []
    for seconds in (29, 1):
        await query_rows(postgres_database, f"UPDATE rxloop.runs SET arrived = arrived - interval '{seconds} seconds'")
        found.append(len(await log.list_orphaned()))
    assert found == [0, 1]


async def test_a_holder_notices_by_itself_that_its_session_is_over(
    postgres_database: str, new_log: Callable[..., PostgresEventLog]
) -> None:
    log = new_log(lease=1_000)
    assert await log.acquire_lease("c", "run", pytest.fail)
    assert await sessions(postgres_database, "%pg_try_advisory_lock%", end=True) == 0
    assert await sessions(postgres_database, "%holder%", end=True) >= 1

    async def locked() -> bool:
        connection = await psycopg.AsyncConnection.connect(postgres_database)
        async with connection:
            # Those of all databases of the server are listed.
            here = "database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            cursor = await connection.execute(
                f"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND {here}".encode()
            )
            return await cursor.fetchone() == (1,)

    assert await until(locked) < 5


async def test_what_a_holder_appends_after_its_turn_was_taken_is_refused(
    postgres_database: str, new_log: Callable[..., PostgresEventLog]
) -> None:
    frozen, second = new_log(), new_log()
    lost = Lost()
    assert await frozen.acquire_lease("c", "run", lost)
    await frozen.append("run", begun(context_id="c"), expected_seq=0, writer="frozen")
    await frozen.append("other", begun("other", context_id="d"), expected_seq=0, writer="frozen")
    # As it is while the process is frozen: the server ends the session, and nobody here knows.
    frozen._engine().turns.lane._broke = None
    frozen._engine().turns.lane._watch(False)
    await sessions(postgres_database, "%holder%", end=True)
    await until(lambda: second.acquire_lease("c", "run", nothing))

    late, beside = await asyncio.gather(
        frozen.append("run", [note(3, context_id="c")], expected_seq=2, writer="frozen"),
        frozen.append("other", [note(3, context_id="d")], expected_seq=2, writer="frozen"),
        return_exceptions=True,
    )
    assert isinstance(late, Fenced)
    assert "run run: somebody else has the turn of the conversation c" in str(late)
    assert beside is None
    assert len(await second.read("run")) == 2

    assert not await frozen.has_lease("c", "run")
    assert lost.is_set()
    await second.append("run", [note(3)], expected_seq=2, writer="second")


async def test_a_holder_is_fenced_also_if_another_run_has_the_turn_now_or_none(
    postgres_database: str, new_log: Callable[..., PostgresEventLog]
) -> None:
    frozen, second = new_log(), new_log()
    await frozen.acquire_lease("c", "run", nothing)
    await frozen.append("run", begun(context_id="c"), expected_seq=0)
    frozen._engine().turns.lane._broke = None
    frozen._engine().turns.lane._watch(False)
    await sessions(postgres_database, "%holder%", end=True)
    await until(lambda: second.acquire_lease("c", "later", nothing))
    with pytest.raises(Fenced):
        await frozen.append("run", [note(3, context_id="c")], expected_seq=2)
    await second.release_lease("c", "later")
    with pytest.raises(Fenced):
        await frozen.append("run", [note(3, context_id="c")], expected_seq=2)
    await frozen.release_lease("c", "run")
    await frozen.append("run", [note(3, context_id="c")], expected_seq=2)  # as everybody may


async def test_a_wait_for_a_turn_that_is_cancelled_takes_none(new_log: Callable[..., PostgresEventLog]) -> None:
    log, other = new_log(), new_log()
    await log.list_runs()
    for steps in range(12):
        taking = asyncio.ensure_future(log.acquire_lease("c", "run", nothing))
        for _ in range(steps):
            await asyncio.sleep(0.0005)
        taking.cancel()
        await asyncio.wait([taking])
        if not taking.cancelled():
            await log.release_lease("c", "run")
        await until(lambda: other.acquire_lease("c", "run", nothing))
        await other.release_lease("c", "run")


# -- other processes


class Holder:
    """A process that holds the turn of the run."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process, self._in, self._out = process, process.stdin, process.stdout

    async def says(self) -> str:
        return (await asyncio.wait_for(self._out.readline(), IN_SECONDS)).decode().strip()

    def append(self) -> None:
        self._in.write(b"append\n")


@asynccontextmanager
async def holder(address: str, lease: float = LEASE, *run: str) -> AsyncGenerator[Holder]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(HOLDER), address, str(lease), *run, stdin=pipe, stdout=pipe
    )
    made = Holder(process)
    try:
        assert await made.says() == "has"
        if not run:
            made.append()
            assert await made.says() == "written"
        yield made
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        assert process.stdin is not None
        process.stdin.close()


async def test_the_turn_of_a_process_that_is_killed_is_free_at_once(
    postgres_database: str, new_log: Callable[..., PostgresEventLog]
) -> None:
    log = new_log()
    async with holder(postgres_database, lease=1_000) as held:
        assert not await log.acquire_lease("c", "run", nothing)
        assert ids(await log.list_orphaned()) == []
        held.process.kill()
        await held.process.wait()
        assert await until(log.list_orphaned) < 2
        assert await log.acquire_lease("c", "run", nothing)


async def test_a_submitted_run_whose_holder_is_killed_is_an_orphan_at_once(
    postgres_database: str, new_log: Callable[..., PostgresEventLog]
) -> None:
    log = new_log()
    await log.append("submitted", [task(context_id="c")], expected_seq=0)
    async with holder(postgres_database, 1_000, "submitted") as held:
        assert ids(await log.list_orphaned(submitted_before=0)) == []
        held.process.kill()
        await held.process.wait()
        assert await until(log.list_orphaned) < 2


async def test_a_process_that_is_frozen_for_longer_than_the_lease_loses_its_turn_and_finds_out(
    postgres_database: str, new_log: Callable[..., PostgresEventLog]
) -> None:
    log = new_log()
    async with holder(postgres_database) as held:
        held.process.send_signal(signal.SIGSTOP)
        took = await until(lambda: log.acquire_lease("c", "run", nothing))
        assert LEASE * 0.7 < took < LEASE + 3
        await log.append("run", [note(4)], expected_seq=3, writer="second")
        held.append()
        held.process.send_signal(signal.SIGCONT)
        assert {await held.says(), await held.says()} == {"lost", "Fenced"}
        assert len(await log.read("run")) == 4


async def test_a_process_that_is_frozen_for_less_than_the_lease_keeps_its_turn(
    postgres_database: str, new_log: Callable[..., PostgresEventLog]
) -> None:
    log = new_log()
    async with holder(postgres_database, lease=4) as held:
        held.process.send_signal(signal.SIGSTOP)
        for _ in range(50):
            assert not await log.acquire_lease("c", "run", nothing)
            assert ids(await log.list_orphaned()) == []
            await asyncio.sleep(0.01)
        held.process.send_signal(signal.SIGCONT)
        held.append()
        assert await held.says() == "written"


# -- a server that goes away


@pytest.mark.parametrize("crash", [False, True])
async def test_a_restart_of_the_server_takes_no_turn_from_anybody(
    crash: bool, new_log: Callable[..., PostgresEventLog]
) -> None:
    with PostgresServer() as server:
        first, second = new_log(server.dsn), new_log(server.dsn)
        for name in "abc":
            assert await first.acquire_lease(name, name, pytest.fail)
            await first.append(name, begun(name, context_id=name), expected_seq=0, writer="first")
        assert await second.acquire_lease("other", "other", pytest.fail)

        server.kill() if crash else server.stop()
        await asyncio.to_thread(server.start)

        assert await first.has_lease("a", "a")
        # Nobody is taken for dead now, since the living may need a moment.
        assert ids(await second.list_orphaned()) == []
        for name in "abc":
            assert not await second.acquire_lease(name, name, nothing)
            await first.append(name, [note(3, context_id=name)], expected_seq=2, writer="first")
        await first.aclose()
        await second.aclose()


async def test_a_turn_that_a_holder_takes_for_lost_is_free_though_its_server_answers_again(
    postgres_database: str, new_log: Callable[..., PostgresEventLog]
) -> None:
    first, second, lost = new_log(lease=LEASE), new_log(), Lost()
    assert await first.acquire_lease("a", "a", lost)
    connection = await psycopg.AsyncConnection.connect(postgres_database)
    async with connection:
        await connection.execute("LOCK TABLE rxloop.turns IN ACCESS EXCLUSIVE MODE")
        taking = asyncio.create_task(first.acquire_lease("b", "b", pytest.fail))
        await lost.wait()
    assert await taking

    await until(lambda: second.acquire_lease("a", "a", nothing))
    assert await first.has_lease("b", "b")


async def test_a_turn_that_is_lost_while_it_is_taken_again_is_free(new_log: Callable[..., PostgresEventLog]) -> None:
    first, second = new_log(), new_log()
    assert await first.acquire_lease("a", "a", nothing)
    turns = first._engine().turns

    class Losing:
        """A session in which somebody loses all turns after each answer."""

        def __init__(self, connection: Connection) -> None:
            self._connection = connection

        async def execute(self, *said: Any) -> Any:
            answer = await self._connection.execute(*said)
            turns._held.clear()
            return answer

    async def anew(connection: Connection) -> None:
        await connection.execute("SELECT pg_advisory_unlock_all()")
        turns._held["a"].doubt = True
        await turns._take_again(cast("Connection", Losing(connection)))

    await turns.lane.do(anew, patience=0)
    assert await second.acquire_lease("a", "a", nothing)


async def test_a_turn_that_the_full_disk_of_the_server_lets_nobody_give_back_is_free_all_the_same(
    new_log: Callable[..., PostgresEventLog], postgres_database: str
) -> None:
    owner, second = new_log(), new_log()
    owner._engine().turns._patience = 0
    for context_id in ("c", "kept"):
        assert await owner.acquire_lease(context_id, f"run-{context_id}", pytest.fail)
    await query_rows(postgres_database, _NO_ROOM)
    with pytest.raises(EventLogError, match="the disk of the server is full"):
        await owner.release_lease("c", "run-c")
    await query_rows(postgres_database, "DROP TRIGGER no_room ON rxloop.turns")
    assert await second.acquire_lease("c", "run-c", pytest.fail)
    assert not await second.acquire_lease("kept", "run-kept", pytest.fail)
    assert await owner.has_lease("kept", "run-kept")


async def test_a_full_disk_of_the_server_is_told_of_though_whoever_writes_waits_for_less_than_the_log_does(
    new_log: Callable[..., PostgresEventLog], postgres_database: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = new_log()
    await log.list_runs(limit=1)
    await query_rows(postgres_database, _NO_ROOM)
    writing = asyncio.create_task(log.append("run", begun(), expected_seq=0, writer="owner"))
    async with asyncio.timeout(IN_SECONDS):
        while not any("the disk of the server is full: make room; trying again" in said for said in caplog.messages):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert not writing.done()
    await query_rows(postgres_database, "DROP TRIGGER no_room ON rxloop.events")
    await writing
    assert len(await log.read("run")) == 2
