"""Runs that are started by the clock: at its times, whatever becomes of the clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import pytest

from rxloop import Agent, MemoryEventLog, Runtime
from rxloop.errors import ConfigurationError, QueueFull
from rxloop.runtime import Periodic
from rxloop.runtime import worker as module
from rxloop.testing import ScriptedModel, virtual_time
from support.queues import Bare

HOUR = 3600.0


class Wall:
    """The clock on the wall: it goes with that of the loop, until it is put forward or back."""

    def __init__(self, at: datetime) -> None:
        self._at = at.timestamp()
        self._from: float | None = None

    def time(self) -> float:
        now = asyncio.get_running_loop().time()
        self._from = now if self._from is None else self._from
        return self._at + now - self._from

    def put(self, seconds: float) -> None:
        self._at += seconds


class Started(Bare):
    """Says when a run was started."""

    def __init__(self, wall: Wall) -> None:
        super().__init__()
        self._wall = wall
        self.at: list[str] = []

    async def enqueue(self, task_id: str, **options: Any) -> None:
        self.at.append(f"{datetime.fromtimestamp(self._wall.time(), UTC):%H:%M:%S}")


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Wall:
    # Its times come every hour, and half an hour ago is no time to make good.
    found = Wall(datetime(2030, 1, 1, 6, 30, tzinfo=UTC))
    monkeypatch.setattr(module, "time", found)
    return found


@asynccontextmanager
async def starting(
    wall: Wall, log: MemoryEventLog | None = None, options: dict[str, Any] | None = None
) -> AsyncGenerator[list[str]]:
    queue = Started(wall)
    periodic = Periodic("tick", "0 * * * *", "a", "What time is it?", options or {})
    agents = {"a": Agent(ScriptedModel(), thoughts=False)}
    async with Runtime(agents, log=log or MemoryEventLog(), queue=queue, max_waiting=None) as runtime:
        task = asyncio.create_task(module.start_on(runtime, periodic))
        yield queue.at
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def test_a_run_is_started_at_its_times(wall: Wall) -> None:
    async def program() -> None:
        async with starting(wall) as started:
            await asyncio.sleep(2 * HOUR)
            assert started == ["07:00:00", "08:00:00"]

    with virtual_time() as time:
        time.run(program())


def test_a_clock_that_was_put_forward_is_seen_soon(wall: Wall) -> None:
    async def program() -> None:
        async with starting(wall) as started:
            await asyncio.sleep(10)
            # As when the machine slept for a while.
            wall.put(1_795)
            await asyncio.sleep(40)
            assert started == ["07:00:25"]

    with virtual_time() as time:
        time.run(program())


def test_a_clock_that_was_put_back_starts_nothing_twice(wall: Wall) -> None:
    log = MemoryEventLog()

    async def program() -> None:
        async with starting(wall, log):
            await asyncio.sleep(HOUR)
            wall.put(-HOUR)
            await asyncio.sleep(1.75 * HOUR)
            # Of 07:00, and of 08:00.
            assert len(await log.list_runs()) == 2

    with virtual_time() as time:
        time.run(program())


def test_a_clock_that_was_a_year_ahead_for_a_moment_keeps_nothing_from_its_times(wall: Wall) -> None:
    async def program() -> None:
        async with starting(wall) as started:
            await asyncio.sleep(10)
            wall.put(365 * 24 * HOUR)
            await asyncio.sleep(60)
            wall.put(-365 * 24 * HOUR)
            await asyncio.sleep(2 * HOUR)
            assert started == ["07:00:00", "08:00:00"]

    with virtual_time() as time:
        time.run(program())


def test_starts_that_were_missed_are_told_of(wall: Wall, caplog: pytest.LogCaptureFixture) -> None:
    async def program() -> None:
        async with starting(wall) as started:
            await asyncio.sleep(1)
            caplog.clear()
            wall.put(5 * HOUR)
            await asyncio.sleep(60)
            assert started == []
        assert (
            "'tick' was not started at its times from 2030-01-01 07:00:00 UTC to 2030-01-01 11:00:00 UTC" in caplog.text
        )

    with virtual_time() as time:
        time.run(program())


def test_a_start_that_fails_is_tried_for_ten_minutes_and_not_told_of_each_second(
    wall: Wall, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*said: Any, **options: Any) -> None:
        raise QueueFull("10000 runs wait")

    monkeypatch.setattr(Runtime, "start", full)

    async def program() -> None:
        async with starting(wall):
            await asyncio.sleep(1.5 * HOUR)

    with virtual_time() as time:
        time.run(program())
    told = [message for message in caplog.messages if "10000 runs wait" in message]
    assert "'tick' was not started at 2030-01-01 07:00:00 UTC: 10000 runs wait" in told
    assert 20 < len(told) < 30


def test_a_start_that_another_worker_has_made_was_not_missed(wall: Wall, caplog: pytest.LogCaptureFixture) -> None:
    log = MemoryEventLog()

    async def program() -> None:
        async with starting(wall, log, {"owner": "ann"}) as started:
            await asyncio.sleep(0.75 * HOUR)
            assert started == ["07:00:00"]
        caplog.clear()
        async with starting(wall, log, {"owner": "ann"}):
            await asyncio.sleep(1)
        assert not caplog.text

    with virtual_time() as time:
        time.run(program())


@pytest.mark.parametrize(
    ("cron", "what"),
    [
        ("whenever", "cannot be read"),
        ("R R * * *", "is random"),
        ("0 R(0-5) * mar fri", "is random"),
        ("0 0 30 2 *", "a day that never comes"),
        ("0 0 1 1 * 0 2030", "has a year in it"),
    ],
)
def test_times_that_cannot_be_kept_are_refused(cron: str, what: str) -> None:
    with pytest.raises(ConfigurationError, match=what):
        Periodic("tick", cron, "a", "Hi")


@pytest.mark.parametrize("cron", ["0 7 * mar,apr fri", "@hourly", "0 0 29 2 *", "*/5 * * * * 30"])
def test_times_that_come_are_taken(cron: str) -> None:
    assert Periodic("tick", cron, "a", "Hi").after(0) > 0


@pytest.mark.parametrize(
    ("options", "what"), [({"priority": 2**40}, "whole number"), ({"key": "k"}, "has no option 'key'")]
)
def test_options_that_a_start_does_not_take_are_refused(options: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigurationError, match=what):
        Periodic("tick", "0 7 * * *", "a", "Hi", options)
