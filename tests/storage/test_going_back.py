"""A log that goes back in time, by a restore or a failover, and goes on from there, while it is followed."""

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
from rxloop.storage.postgres import listener as hearing
from rxloop.testing import ScriptedModel
from rxloop.testing.event_log_contract.toolkit import SECONDS, Follower, begun, end, note
from support.postgres.server import new_schema
from support.postgres.snapshots import PostgresSnapshot, Snapshot, SqliteSnapshot

Log = PostgresEventLog | SqliteEventLog
ENGINES = ["sqlite", pytest.param("postgres", marks=pytest.mark.service("postgres"))]


@dataclass
class World:
    """A log in two processes, and a copy of it."""

    log: Log
    other: Log
    copy: Snapshot


@pytest.fixture(params=ENGINES)
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    if request.param == "sqlite":
        path = tmp_path / "runs.db"
        made = World(SqliteEventLog(path), SqliteEventLog(path), SqliteSnapshot(path))
    else:
        address, schema = request.getfixturevalue("postgres"), new_schema()
        log, other = (PostgresEventLog(address, schema=schema) for _ in range(2))
        made = World(log, other, PostgresSnapshot(address, schema))
    yield made
    await made.log.aclose()
    await made.other.aclose()


def other(seq: int, **fields: Any) -> Event:
    """What stands in the place of a note."""
    return note(seq, data="other", **fields)


async def seen(follower: Follower) -> list[int]:
    """What a follower has seen when the log turns out to have gone back."""
    with pytest.raises(LogRolledBack, match="run run"):
        await asyncio.wait_for(follower.task, SECONDS)
    return follower.seen


@pytest.mark.parametrize("by", ["another process", "this process"])
async def test_who_finds_out_only_once_others_have_written_past_it_sees_nothing_of_theirs(
    world: World, by: str
) -> None:
    writer = world.other if by == "another process" else world.log
    await writer.append("run", begun(), expected_seq=0)
    world.copy.take()
    await writer.append("run", [note(3), note(4)], expected_seq=2)
    follower = Follower(world.log)
    await follower.sees(1, 2, 3, 4)
    world.copy.restore()
    # In one go, so that nobody sees the log behind.
    await writer.append("run", [other(3), other(4), other(5)], expected_seq=2)
    assert await seen(follower) == [1, 2, 3, 4]
    assert [event.seq for event in await world.log.read("run")] == [1, 2, 3, 4, 5]


async def test_who_has_the_last_event_finds_out_with_the_next_one(world: World) -> None:
    await world.log.append("run", begun(), expected_seq=0, writer="a")
    world.copy.take()
    await world.log.append("run", [note(3)], expected_seq=2, writer="a")
    follower = Follower(world.log)
    await follower.sees(1, 2, 3)
    world.copy.restore()
    await world.other.append("run", [other(3)], expected_seq=2, writer="b")
    # The writer knows of nothing, and the log has no reason to refuse it.
    await world.log.append("run", [note(4)], expected_seq=3, writer="a")
    assert await seen(follower) == [1, 2, 3]


async def test_a_reader_that_reads_for_itself_finds_out_too(world: World) -> None:
    await world.log.append("run", begun(), expected_seq=0)
    world.copy.take()
    await world.log.append("run", [note(seq) for seq in range(3, 800)], expected_seq=2)
    async with aclosing(cast("Any", world.log.follow("run"))) as events:
        for _ in range(500):
            await anext(events)
        world.copy.restore()
        await world.other.append("run", [other(seq) for seq in range(3, 900)], expected_seq=2)
        with pytest.raises(LogRolledBack, match="event 500 of the run run"):
            await anext(events)


async def test_a_reader_does_not_join_those_who_follow_what_came_after_it(world: World) -> None:
    await world.log.append("run", begun(), expected_seq=0)
    world.copy.take()
    await world.log.append("run", [note(3)], expected_seq=2)
    async with aclosing(cast("Any", world.log.follow("run"))) as events:
        for _ in range(3):
            await anext(events)
        world.copy.restore()
        await world.other.append("run", [other(3)], expected_seq=2)
        follower = Follower(world.log)
        await follower.sees(1, 2, 3)
        await world.other.append("run", [other(4)], expected_seq=3)
        await follower.sees(1, 2, 3, 4)
        with pytest.raises(LogRolledBack):
            await asyncio.wait_for(anext(events), SECONDS)
    follower.task.cancel()


async def test_a_reader_does_not_end_with_those_whose_run_is_shorter(world: World) -> None:
    await world.log.append("run", begun(), expected_seq=0)
    world.copy.take()
    await world.log.append("run", [note(3), note(4), note(5)], expected_seq=2)
    async with aclosing(cast("Any", world.log.follow("run"))) as events:
        for _ in range(5):
            await anext(events)
        world.copy.restore()
        await world.other.append("run", [other(3)], expected_seq=2)
        follower = Follower(world.log, until="end")
        await follower.sees(1, 2, 3)
        await world.other.append("run", [end(4, "canceled")], expected_seq=3)
        await follower.sees(1, 2, 3, 4)
        with pytest.raises(LogRolledBack):
            await asyncio.wait_for(anext(events), SECONDS)
    follower.task.cancel()


async def test_a_reader_that_is_ahead_of_the_log_waits_for_it_as_before(world: World) -> None:
    await world.log.append("run", begun(), expected_seq=0)
    follower = Follower(world.log, after_seq=4)
    later = Follower(world.log, after_seq=1)
    await later.sees(2)
    await world.other.append("run", [note(3), note(4), note(5), end(6)], expected_seq=2)
    await asyncio.wait_for(asyncio.gather(follower.task, later.task), SECONDS)
    assert (follower.seen, later.seen) == ([5, 6], [2, 3, 4, 5, 6])


# -- readers with a cursor


def numbers(events: list[Event]) -> list[Any]:
    return [event.reason if isinstance(event, GapEvent) else event.seq for event in events]


async def test_a_stream_says_what_happened_or_tells_the_run_anew(world: World) -> None:
    await world.log.append("run", begun(), expected_seq=0)
    world.copy.take()
    await world.log.append("run", [note(3)], expected_seq=2)
    told, told_strictly = list[Event](), list[Event]()
    more = asyncio.Event()

    async def read(told: list[Event], *, strict: bool) -> None:
        async for event in follow(world.log, "run", strict=strict):
            told.append(event)
            more.set()

    reading = asyncio.create_task(read(told, strict=False))
    strict = asyncio.create_task(read(told_strictly, strict=True))
    async with asyncio.timeout(SECONDS):
        while min(len(told), len(told_strictly)) < 3:
            more.clear()
            await more.wait()
    world.copy.restore()
    await world.other.append("run", [other(3), end(4)], expected_seq=2)
    await asyncio.wait_for(reading, SECONDS)
    assert numbers(told) == [1, 2, 3, "log-went-back", 1, 2, 3, 4]
    assert cast("Any", told[-2]).data == "other"
    with pytest.raises(LogRolledBack, match="read it from its beginning"):
        await asyncio.wait_for(strict, SECONDS)
    assert numbers(told_strictly) == [1, 2, 3]


async def collected(log: Log, **options: Any) -> list[Event]:
    return [event async for event in follow(log, "run", **options)]


async def test_a_cursor_beyond_the_end_of_an_attempt_is_that_of_another_one(world: World) -> None:
    await world.log.append("run", [begun()[0], note(2, attempt=1)], expected_seq=0)
    reading = asyncio.create_task(collected(world.log, after="run/1.5.0"))
    await world.other.append("run", [note(3, attempt=1), end(4, attempt=1)], expected_seq=2)
    assert numbers(await asyncio.wait_for(reading, SECONDS)) == ["unknown-cursor", 1, 2, 3, 4]


# -- conversations


async def test_a_conversation_is_read_anew_where_other_events_have_the_same_numbers(world: World) -> None:
    def agent(log: Log, *answers: str) -> Agent[Any, Any]:
        return Agent(ScriptedModel(*answers), log=log)

    await agent(world.log, "Hello.").run("Hi", context_id="c")
    world.copy.take()
    here = agent(world.log, "Your name is Ann.", "Indeed.")
    first = here.run("I am Ann. Who am I?", context_id="c")
    await first
    # What this process remembers of the conversation.
    assert len(await history(world.log, "c")) == 4
    world.copy.restore()
    await agent(world.other, "You are Bob.").run("I am Bob. Who am I?", context_id="c", task_id=first.task_id)
    result = await here.run("Sure?", context_id="c")
    assert [message.content for message in result.messages] == [
        *("Hi", "Hello.", "I am Bob. Who am I?", "You are Bob.", "Sure?", "Indeed.")
    ]


# -- the numbers of Postgres


@pytest.mark.service("postgres")
async def test_a_run_that_is_lost_shows_nobody_the_run_that_has_its_number(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hearing, "POLL_SECONDS", 0.2)
    schema = new_schema()
    log, writer = (PostgresEventLog(postgres, schema=schema) for _ in range(2))
    copy = PostgresSnapshot(postgres, schema)
    await writer.append("first", [*begun("first"), end(3)], expected_seq=0)
    copy.take()
    await writer.append("lost", begun("lost"), expected_seq=0)
    told = list[Event]()

    async def read() -> None:
        async for event in log.follow("lost", deltas=True):
            told.append(event)

    reading = asyncio.create_task(read())
    async with asyncio.timeout(SECONDS):
        while len(told) < 2 or log._engine().hearing._connection is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    copy.restore()
    secret = ContentDeltaEvent(task_id="secret", seq=2, sub=1, delta="secret", step="1")
    await writer.append("secret", [*begun("secret"), secret], expected_seq=0)
    await writer.append("secret", [note(3, task_id="secret")], expected_seq=2)
    with pytest.raises((LogRolledBack, UnknownRun)):
        await asyncio.wait_for(reading, SECONDS)
    assert [event.task_id for event in told] == ["lost", "lost"]
    await log.aclose()
    await writer.aclose()


# -- whatever comes


class Course:
    """A log that is written, copied and put back at random."""

    def __init__(self, world: World, seed: int) -> None:
        self.random, self._world = Random(seed), world
        self._seq, self._kept, self._count = 2, 2, 0

    async def begin(self) -> None:
        await self._world.log.append("run", begun(), expected_seq=0)
        self._world.copy.take()

    async def go_on(self) -> None:
        """Write some more, or go back and write some more at once, by either process."""
        if self.random.random() < 0.3:
            self._world.copy.restore()
            self._seq = self._kept
        writer = self.random.choice([self._world.log, self._world.other])
        count = self.random.choice([1, 1, 2, 5, 40, 300])
        self._count += 1
        events = [note(self._seq + 1 + at, data=self._count) for at in range(count)]
        await writer.append("run", events, expected_seq=self._seq)
        self._seq += count

    async def end(self) -> None:
        await self._world.other.append("run", [end(self._seq + 1)], expected_seq=self._seq)


@pytest.mark.parametrize("seed", range(int(os.environ.get("RXLOOP_CHAOS_KILLS", "2"))))
async def test_whatever_comes_each_reader_has_the_log_in_the_end(world: World, seed: int) -> None:
    course = Course(world, seed)
    await course.begin()
    readers = list[asyncio.Task[list[Event]]]()
    for _ in range(25):
        if course.random.random() < 0.5:
            log = course.random.choice([world.log, world.other])
            readers.append(asyncio.create_task(slowly(follow(log, "run", strict=False), course.random.random())))
        await course.go_on()
        await asyncio.sleep(course.random.choice([0, 0, 0.001, 0.03]))
    await course.end()
    whole = [event.to_json() for event in await world.log.read("run")]
    for told in await asyncio.wait_for(asyncio.gather(*readers), 6 * SECONDS):
        at = max((at for at, event in enumerate(told) if isinstance(event, GapEvent)), default=-1)
        assert [event.to_json() for event in told[at + 1 :]] == whole
        assert {event.reason for event in told if isinstance(event, GapEvent)} <= {"log-went-back"}


async def slowly(events: AsyncIterable[Event], how: float) -> list[Event]:
    """Read, now and then with a pause."""
    told = list[Event]()
    async for event in events:
        told.append(event)
        if len(told) % 50 == 0 and how > 0.5:
            await asyncio.sleep(0.01)
    return told
