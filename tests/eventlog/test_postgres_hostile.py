"""A log in Postgres that is given strange values, closed in the middle, or whose statements fail half-way."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from postgres import PostgresServer, new_schema
from rxloop import ConfigurationError, EventLogError, LogUnreachable, PostgresEventLog
from rxloop.errors import UnknownRun
from rxloop.protocol.events import ContentDeltaEvent, Event
from rxloop.protocol.mail import CancelMail
from rxloop.testing.event_log_contract._tools import begun, end, ids

pytestmark = pytest.mark.service("postgres")

MakeLog = Callable[..., PostgresEventLog]
SECONDS = 10
NOWHERE = "postgresql://somebody:secret@127.0.0.1:1/db"


@pytest.fixture
async def new_log(postgres: str) -> AsyncIterator[MakeLog]:
    """Makes logs over one schema."""
    logs: list[PostgresEventLog] = []
    every: dict[str, Any] = {"schema": new_schema()}

    def make(address: str = postgres, **options: Any) -> PostgresEventLog:
        logs.append(PostgresEventLog(address, **{**every, **options}))
        return logs[-1]

    yield make
    for log in logs:
        await log.aclose()


async def advisory_locks(address: str) -> int:
    """How many advisory locks there are in a database."""
    async with await psycopg.AsyncConnection.connect(address) as connection:
        cursor = await connection.execute(
            "SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database"
            " WHERE locktype = 'advisory' AND datname = current_database()"
        )
        [[count]] = await cursor.fetchall()
        return count


# -- what is given


async def test_an_id_that_postgres_cannot_have_is_that_of_no_run(new_log: MakeLog) -> None:
    log = new_log()
    await log.append("run", begun(), expected_seq=0)
    await log.read("run")
    await log.read("run")
    lanes = log._engine().read.lanes
    connections = {lane._connection for lane in lanes}
    for strange in ("a\0b", "\ud800"):
        for ask in (log.read, log.record, log.mail, log.delete, lambda name: log.send(name, CancelMail())):
            with pytest.raises(UnknownRun):
                await ask(strange)
        with pytest.raises(UnknownRun):
            async for _ in log.follow(strange):
                pass
        with pytest.raises(UnknownRun):
            await log.runs(after=strange)
        assert not await log.runs(owner=strange)
        assert not await log.runs(context_id=strange)
        assert not await log.runs(agent_name=strange)
        assert not await log.runs(metadata={strange: strange})
        with pytest.raises(EventLogError):
            await log.take_turn(strange, "run", pytest.fail)
    # None of that has cost a connection.
    assert {lane._connection for lane in lanes} == connections
    assert ids(await log.runs()) == ["run"]


async def test_what_nobody_could_read_is_told_without_the_password() -> None:
    for dsn in ("postgresql//somebody:secret@h/db", f"{NOWHERE}?nonsense=secret"):
        with pytest.raises(ConfigurationError) as caught:
            PostgresEventLog(dsn)
        assert "secret" not in "".join(traceback.format_exception(caught.value))
    log = PostgresEventLog(NOWHERE, patience=0)
    with pytest.raises(LogUnreachable) as unreachable:
        await log.record("run")
    said = "".join(traceback.format_exception(unreachable.value))
    assert "secret" not in f"{said} {log!r} {log.identity!r} {vars(log)!r}"


async def test_two_long_pieces_that_are_alike_are_both_told(new_log: MakeLog) -> None:
    reader, writer = new_log(), new_log()
    await writer.append("run", begun(), expected_seq=0)
    seen: list[Event] = []
    heard = asyncio.Event()

    async def follow() -> None:
        async for event in reader.follow("run", deltas=True):
            seen.append(event)
            if not event.durable:
                heard.set()

    def delta(sub: int, branch: str, text: str) -> ContentDeltaEvent:
        return ContentDeltaEvent(task_id="run", seq=2, sub=sub, step=branch, branch=branch, delta=text)

    follower = asyncio.create_task(follow())
    for sub in range(1, 200):
        # What is told reaches those who listen by then.
        await writer.append("run", [delta(sub, "a", "x")], expected_seq=2)
        with suppress(TimeoutError):
            await asyncio.wait_for(heard.wait(), 0.05)
            break
    await writer.append("run", [delta(500, "a", "x" * 6000), delta(501, "b", "x" * 6000), end(3)], expected_seq=2)
    await asyncio.wait_for(follower, SECONDS)
    assert [(event.seq, event.sub) for event in seen][-3:] == [(2, 500), (2, 501), (3, 0)]


# -- what fails


async def test_a_log_without_patience_asks_again_the_next_time() -> None:
    with PostgresServer() as server:
        log = PostgresEventLog(server.dsn, patience=0)
        await log.append("run", begun(), expected_seq=0)
        server.stop()
        for _ in range(2):
            with pytest.raises(LogUnreachable):
                await log.append("run", [end(3)], expected_seq=2)
        server.start()
        await log.append("run", [end(3)], expected_seq=2)
        await log.aclose()


async def test_a_turn_that_is_taken_at_the_second_try_is_free_when_it_is_given_back(
    postgres_database: str,
) -> None:
    hurried = f"{postgres_database}?options=-c%20lock_timeout%3D100"
    log = PostgresEventLog(hurried)
    await log.append("run", begun(context_id="c"), expected_seq=0)
    async with await psycopg.AsyncConnection.connect(postgres_database) as other:
        await other.execute("SELECT FROM rxloop.runs FOR UPDATE")
        taking = asyncio.create_task(log.take_turn("c", "run", pytest.fail))
        await asyncio.sleep(0.4)
        await other.rollback()
        assert await asyncio.wait_for(taking, SECONDS)
    await log.give_turn_back("c", "run")
    assert not await advisory_locks(postgres_database)
    await log.aclose()


async def test_a_turn_that_cannot_be_taken_is_left_to_others(postgres_database: str) -> None:
    hurried = f"{postgres_database}?options=-c%20lock_timeout%3D50"
    log = PostgresEventLog(hurried, patience=0)
    await log.append("run", begun(context_id="c"), expected_seq=0)
    async with await psycopg.AsyncConnection.connect(postgres_database) as other:
        await other.execute("SELECT FROM rxloop.runs FOR UPDATE")
        with pytest.raises(EventLogError):
            await log.take_turn("c", "run", pytest.fail)
        assert not await advisory_locks(postgres_database)
    await log.aclose()


# -- what is closed in the middle


def log_tasks() -> set[str]:
    """The tasks of logs that are under way here."""
    return {name for task in asyncio.all_tasks() if (name := task.get_name()).startswith("rxloop-log")}


async def test_a_follower_that_goes_on_after_the_log_was_closed_is_told_so(new_log: MakeLog) -> None:
    log = new_log()
    await log.append("run", begun(), expected_seq=0)
    events = log.follow("run")
    await anext(events)
    await log.aclose()
    assert (await anext(events)).seq == 2
    with pytest.raises(EventLogError, match="was closed"):
        await asyncio.wait_for(anext(events), SECONDS)
    assert not log_tasks()
    assert not log._engines._engines


async def test_a_turn_that_is_being_taken_when_the_log_is_closed_is_free(postgres_database: str) -> None:
    log = PostgresEventLog(postgres_database)
    await log.append("run", begun(context_id="c"), expected_seq=0)
    async with await psycopg.AsyncConnection.connect(postgres_database) as other:
        await other.execute("SELECT FROM rxloop.runs FOR UPDATE")
        taking = asyncio.create_task(log.take_turn("c", "run", lambda: None))
        await asyncio.sleep(0.1)
        closing = asyncio.create_task(log.aclose())
        await asyncio.sleep(0.1)
    assert await asyncio.wait_for(asyncio.gather(taking, closing), SECONDS) == [False, None]
    assert not log_tasks()
    assert not await advisory_locks(postgres_database)


async def test_a_log_with_many_turns_is_closed_soon_though_the_server_is_gone() -> None:
    with PostgresServer() as server:
        log = PostgresEventLog(server.dsn, patience=1)
        for number in range(10):
            assert await log.take_turn(f"c{number}", "run", lambda: None)
        server.stop()
        async with asyncio.timeout(4):
            await log.aclose()
