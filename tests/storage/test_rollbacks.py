"""Following runs while a restore or failover rolls the log back."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from rxloop import Agent, Event, GapEvent, PostgresEventLog, SqliteEventLog, follow, history
from rxloop.errors import LogRolledBack, UnknownRun
from rxloop.protocol.events import ContentDeltaEvent
from rxloop.storage.postgres import listener as listener_module
from rxloop.testing import ScriptedModel
from rxloop.testing.event_log_contract.toolkit import SECONDS, Follower, end, note, start_events
from support.postgres.server import new_schema
from support.postgres.snapshots import PostgresSnapshot, Snapshot, SqliteSnapshot

Log = PostgresEventLog | SqliteEventLog
ENGINES = ["sqlite", pytest.param("postgres", marks=pytest.mark.service("postgres"))]


@dataclass
class TwoLogs:
    """Log opened in two processes."""

    log: Log
    other: Log
    copy: Snapshot


@pytest.fixture(params=ENGINES)
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[TwoLogs]:
    if request.param == "sqlite":
        path = tmp_path / "runs.db"
        world = TwoLogs(SqliteEventLog(path), SqliteEventLog(path), SqliteSnapshot(path))
    else:
        address, schema = request.getfixturevalue("postgres"), new_schema()
        log, other = (PostgresEventLog(address, schema=schema) for _ in range(2))
        world = TwoLogs(log, other, PostgresSnapshot(address, schema))
    yield world
    await world.log.aclose()
    await world.other.aclose()


def other_note(seq: int, **fields: Any) -> Event:
    return note(seq, data="other", **fields)


async def collect_until_rollback(follower: Follower) -> list[int]:
    """Wait for the rollback error and return the received event numbers."""
    with pytest.raises(LogRolledBack, match="run run"):
        await asyncio.wait_for(follower.task, SECONDS)
    return follower.received


@pytest.mark.parametrize("by", ["another process", "this process"])
async def test_follower_gets_no_new_events_when_the_log_has_grown_beyond_its_position(world: TwoLogs, by: str) -> None:
    writer = world.other if by == "another process" else world.log
    await writer.append("run", start_events(), expected_seq=0)
    world.copy.take()
    await writer.append("run", [note(3), note(4)], expected_seq=2)
    follower = Follower(world.log)
    await follower.wait_for_events(1, 2, 3, 4)
    world.copy.restore()
    # A single batch hides the shorter log from readers.
    await writer.append("run", [other_note(3), other_note(4), other_note(5)], expected_seq=2)
    assert await collect_until_rollback(follower) == [1, 2, 3, 4]
    assert [event.seq for event in await world.log.read("run")] == [1, 2, 3, 4, 5]


async def test_follower_with_the_last_event_detects_the_rollback_at_the_next_event(world: TwoLogs) -> None:
    await world.log.append("run", start_events(), expected_seq=0, writer="a")
    world.copy.take()
    await world.log.append("run", [note(3)], expected_seq=2, writer="a")
    follower = Follower(world.log)
    await follower.wait_for_events(1, 2, 3)
    world.copy.restore()
    await world.other.append("run", [other_note(3)], expected_seq=2, writer="b")
    # The log accepts this event, because its number follows the last stored event.
    await world.log.append("run", [note(4)], expected_seq=3, writer="a")
    assert await collect_until_rollback(follower) == [1, 2, 3]


async def test_reader_that_is_behind_detects_the_rollback(world: TwoLogs) -> None:
    await world.log.append("run", start_events(), expected_seq=0)
    world.copy.take()
    await world.log.append("run", [note(seq) for seq in range(3, 800)], expected_seq=2)
    async with aclosing(cast("Any", world.log.follow("run"))) as events:
        for _ in range(500):
            await anext(events)
        world.copy.restore()
        await world.other.append("run", [other_note(seq) for seq in range(3, 900)], expected_seq=2)
        with pytest.raises(LogRolledBack, match="event 500 of run run"):
            await anext(events)


async def test_reader_does_not_join_followers_of_a_newer_history(world: TwoLogs) -> None:
    await world.log.append("run", start_events(), expected_seq=0)
    world.copy.take()
    await world.log.append("run", [note(3)], expected_seq=2)
    async with aclosing(cast("Any", world.log.follow("run"))) as events:
        for _ in range(3):
            await anext(events)
        world.copy.restore()
        await world.other.append("run", [other_note(3)], expected_seq=2)
        follower = Follower(world.log)
        await follower.wait_for_events(1, 2, 3)
        await world.other.append("run", [other_note(4)], expected_seq=3)
        await follower.wait_for_events(1, 2, 3, 4)
        with pytest.raises(LogRolledBack):
            await asyncio.wait_for(anext(events), SECONDS)
    follower.task.cancel()


async def test_reader_does_not_end_with_followers_of_a_shorter_run(world: TwoLogs) -> None:
    await world.log.append("run", start_events(), expected_seq=0)
    world.copy.take()
    await world.log.append("run", [note(3), note(4), note(5)], expected_seq=2)
    async with aclosing(cast("Any", world.log.follow("run"))) as events:
        for _ in range(5):
            await anext(events)
        world.copy.restore()
        await world.other.append("run", [other_note(3)], expected_seq=2)
        follower = Follower(world.log, until="end")
        await follower.wait_for_events(1, 2, 3)
        await world.other.append("run", [end(4, "canceled")], expected_seq=3)
        await follower.wait_for_events(1, 2, 3, 4)
        with pytest.raises(LogRolledBack):
            await asyncio.wait_for(anext(events), SECONDS)
    follower.task.cancel()


async def test_reader_ahead_of_the_log_waits_for_its_events(world: TwoLogs) -> None:
    await world.log.append("run", start_events(), expected_seq=0)
    follower = Follower(world.log, after_seq=4)
    later = Follower(world.log, after_seq=1)
    await later.wait_for_events(2)
    await world.other.append("run", [note(3), note(4), note(5), end(6)], expected_seq=2)
    await asyncio.wait_for(asyncio.gather(follower.task, later.task), SECONDS)
    assert follower.received == [5, 6]
    assert later.received == [2, 3, 4, 5, 6]


# -- cursors


def list_event_numbers(events: list[Event]) -> list[Any]:
    return [event.reason if isinstance(event, GapEvent) else event.seq for event in events]


async def test_stream_raises_after_a_rollback_or_starts_the_run_again(world: TwoLogs) -> None:
    await world.log.append("run", start_events(), expected_seq=0)
    world.copy.take()
    await world.log.append("run", [note(3)], expected_seq=2)
    events, strict_events = list[Event](), list[Event]()
    more = asyncio.Event()

    async def read(events: list[Event], *, strict: bool) -> None:
        async for event in follow(world.log, "run", strict=strict):
            events.append(event)
            more.set()

    reader = asyncio.create_task(read(events, strict=False))
    strict = asyncio.create_task(read(strict_events, strict=True))
    async with asyncio.timeout(SECONDS):
        while min(len(events), len(strict_events)) < 3:
            more.clear()
            await more.wait()
    world.copy.restore()
    await world.other.append("run", [other_note(3), end(4)], expected_seq=2)
    await asyncio.wait_for(reader, SECONDS)
    assert list_event_numbers(events) == [1, 2, 3, "log-went-back", 1, 2, 3, 4]
    assert cast("Any", events[-2]).data == "other"
    with pytest.raises(LogRolledBack, match="read the run from the beginning"):
        await asyncio.wait_for(strict, SECONDS)
    assert list_event_numbers(strict_events) == [1, 2, 3]


async def collect(log: Log, **options: Any) -> list[Event]:
    return [event async for event in follow(log, "run", **options)]


async def test_cursor_beyond_the_end_of_an_attempt_yields_a_gap(world: TwoLogs) -> None:
    await world.log.append("run", [start_events()[0], note(2, attempt=1)], expected_seq=0)
    reader = asyncio.create_task(collect(world.log, after="run/1.5.0"))
    await world.other.append("run", [note(3, attempt=1), end(4, attempt=1)], expected_seq=2)
    assert list_event_numbers(await asyncio.wait_for(reader, SECONDS)) == ["unknown-cursor", 1, 2, 3, 4]


# -- conversations


async def test_conversation_is_read_again_when_event_numbers_are_reused(world: TwoLogs) -> None:
    def make_agent(log: Log, *answers: str) -> Agent[Any, Any]:
        return Agent(ScriptedModel(*answers), log=log)

    await make_agent(world.log, "Hello.").run("Hi", context_id="c")
    world.copy.take()
    agent = make_agent(world.log, "Your name is Ann.", "Indeed.")
    first = agent.run("I am Ann. Who am I?", context_id="c")
    await first
    # This fills the cache of the conversation in this process.
    assert len(await history(world.log, "c")) == 4
    world.copy.restore()
    await make_agent(world.other, "You are Bob.").run("I am Bob. Who am I?", context_id="c", task_id=first.task_id)
    result = await agent.run("Sure?", context_id="c")
    assert [message.content for message in result.messages] == [
        *("Hi", "Hello.", "I am Bob. Who am I?", "You are Bob.", "Sure?", "Indeed.")
    ]


# -- numbers of runs in Postgres


@pytest.mark.service("postgres")
async def test_follower_of_a_lost_run_gets_no_events_of_the_run_that_reuses_its_number(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener_module, "POLL_SECONDS", 0.2)
    schema = new_schema()
    log, writer = (PostgresEventLog(postgres, schema=schema) for _ in range(2))
    copy = PostgresSnapshot(postgres, schema)
    await writer.append("first", [*start_events("first"), end(3)], expected_seq=0)
    copy.take()
    await writer.append("lost", start_events("lost"), expected_seq=0)
    events = list[Event]()

    async def read() -> None:
        async for event in log.follow("lost", deltas=True):
            events.append(event)

    reader = asyncio.create_task(read())
    async with asyncio.timeout(SECONDS):
        while len(events) < 2 or log._engine().listener._connection is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    copy.restore()
    secret = ContentDeltaEvent(task_id="secret", seq=2, sub=1, delta="secret", step="1")
    await writer.append("secret", [*start_events("secret"), secret], expected_seq=0)
    await writer.append("secret", [note(3, task_id="secret")], expected_seq=2)
    with pytest.raises((LogRolledBack, UnknownRun)):
        await asyncio.wait_for(reader, SECONDS)
    assert [event.task_id for event in events] == ["lost", "lost"]
    await log.aclose()
    await writer.aclose()


# -- random histories


class RandomWriter:
    """Writer that appends and restores the snapshot at random."""

    def __init__(self, world: TwoLogs, seed: int) -> None:
        self.random, self._world = Random(seed), world
        self._seq, self._snapshot_seq, self._count = 2, 2, 0

    async def start(self) -> None:
        await self._world.log.append("run", start_events(), expected_seq=0)
        self._world.copy.take()

    async def advance(self) -> None:
        """Append events, or restore the copy and append events, from either process."""
        if self.random.random() < 0.3:
            self._world.copy.restore()
            self._seq = self._snapshot_seq
        writer = self.random.choice([self._world.log, self._world.other])
        count = self.random.choice([1, 1, 2, 5, 40, 300])
        self._count += 1
        events = [note(self._seq + 1 + at, data=self._count) for at in range(count)]
        await writer.append("run", events, expected_seq=self._seq)
        self._seq += count

    async def end(self) -> None:
        await self._world.other.append("run", [end(self._seq + 1)], expected_seq=self._seq)


@pytest.mark.parametrize("seed", range(int(os.environ.get("RXLOOP_CHAOS_KILLS", "2"))))
async def test_every_reader_has_the_final_log_after_random_rollbacks(world: TwoLogs, seed: int) -> None:
    writer = RandomWriter(world, seed)
    await writer.start()
    readers = list[asyncio.Task[list[Event]]]()
    for _ in range(25):
        if writer.random.random() < 0.5:
            log = writer.random.choice([world.log, world.other])
            readers.append(asyncio.create_task(read_slowly(follow(log, "run", strict=False), writer.random.random())))
        await writer.advance()
        await asyncio.sleep(writer.random.choice([0, 0, 0.001, 0.03]))
    await writer.end()
    expected = [event.to_json() for event in await world.log.read("run")]
    for events in await asyncio.wait_for(asyncio.gather(*readers), 6 * SECONDS):
        at = max((at for at, event in enumerate(events) if isinstance(event, GapEvent)), default=-1)
        assert [event.to_json() for event in events[at + 1 :]] == expected
        assert {event.reason for event in events if isinstance(event, GapEvent)} <= {"log-went-back"}


async def read_slowly(events: AsyncIterable[Event], slowness: float) -> list[Event]:
    """Collect all events, with pauses if `slowness` exceeds 0.5."""
    collected = list[Event]()
    async for event in events:
        collected.append(event)
        if len(collected) % 50 == 0 and slowness > 0.5:
            await asyncio.sleep(0.01)
    return collected
