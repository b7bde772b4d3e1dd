"""Runs that are started periodically, whatever happens to the clock."""

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
from support.queues import MemoryQueue

HOUR = 3600.0


class WallClock:
    """Adjustable clock."""

    def __init__(self, at: datetime) -> None:
        self._at = at.timestamp()
        self._from: float | None = None

    def time(self) -> float:
        now = asyncio.get_running_loop().time()
        self._from = now if self._from is None else self._from
        return self._at + now - self._from

    def adjust(self, seconds: float) -> None:
        self._at += seconds


class StartTimeQueue(MemoryQueue):
    """Queue that records when each run was enqueued."""

    def __init__(self, wall: WallClock) -> None:
        super().__init__()
        self._wall = wall
        self.start_times: list[str] = []

    async def enqueue(self, task_id: str, **options: Any) -> None:
        self.start_times.append(f"{datetime.fromtimestamp(self._wall.time(), UTC):%H:%M:%S}")


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> WallClock:
    # Starting at half past avoids a missed start.
    clock = WallClock(datetime(2030, 1, 1, 6, 30, tzinfo=UTC))
    monkeypatch.setattr(module, "time", clock)
    return clock


@asynccontextmanager
async def start_periodic(
    wall: WallClock, log: MemoryEventLog | None = None, options: dict[str, Any] | None = None
) -> AsyncGenerator[list[str]]:
    queue = StartTimeQueue(wall)
    periodic = Periodic("tick", "0 * * * *", "a", "What time is it?", options or {})
    agents = {"a": Agent(ScriptedModel(), thoughts=False)}
    async with Runtime(agents, log=log or MemoryEventLog(), queue=queue, max_waiting=None) as runtime:
        task = asyncio.create_task(module.keep_starting(runtime, periodic))
        yield queue.start_times
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def test_periodic_run_is_started_at_its_times(wall: WallClock) -> None:
    async def program() -> None:
        async with start_periodic(wall) as start_times:
            await asyncio.sleep(2 * HOUR)
            assert start_times == ["07:00:00", "08:00:00"]

    with virtual_time() as time:
        time.run(program())


def test_clock_adjusted_forward_is_noticed_soon(wall: WallClock) -> None:
    async def program() -> None:
        async with start_periodic(wall) as start_times:
            await asyncio.sleep(10)
            # This also happens when the machine sleeps.
            wall.adjust(1_795)
            await asyncio.sleep(40)
            assert start_times == ["07:00:25"]

    with virtual_time() as time:
        time.run(program())


def test_clock_adjusted_backward_starts_no_run_twice(wall: WallClock) -> None:
    log = MemoryEventLog()

    async def program() -> None:
        async with start_periodic(wall, log):
            await asyncio.sleep(HOUR)
            wall.adjust(-HOUR)
            await asyncio.sleep(1.75 * HOUR)
            # Runs for 07:00 and 08:00.
            assert len(await log.list_runs()) == 2

    with virtual_time() as time:
        time.run(program())


def test_corrected_clock_error_of_a_year_does_not_delay_starts(wall: WallClock) -> None:
    async def program() -> None:
        async with start_periodic(wall) as start_times:
            await asyncio.sleep(10)
            wall.adjust(365 * 24 * HOUR)
            await asyncio.sleep(60)
            wall.adjust(-365 * 24 * HOUR)
            await asyncio.sleep(2 * HOUR)
            assert start_times == ["07:00:00", "08:00:00"]

    with virtual_time() as time:
        time.run(program())


def test_missed_starts_are_logged(wall: WallClock, caplog: pytest.LogCaptureFixture) -> None:
    async def program() -> None:
        async with start_periodic(wall) as start_times:
            await asyncio.sleep(1)
            caplog.clear()
            wall.adjust(5 * HOUR)
            await asyncio.sleep(60)
            assert start_times == []
        assert (
            "Missed starting 'tick' at its times from 2030-01-01 07:00:00 UTC to 2030-01-01 11:00:00 UTC" in caplog.text
        )

    with virtual_time() as time:
        time.run(program())


def test_failing_start_is_retried_for_ten_minutes_and_logged_sparsely(
    wall: WallClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def raise_queue_full(*arguments: Any, **options: Any) -> None:
        raise QueueFull("10000 runs already wait")

    monkeypatch.setattr(Runtime, "start", raise_queue_full)

    async def program() -> None:
        async with start_periodic(wall):
            await asyncio.sleep(1.5 * HOUR)

    with virtual_time() as time:
        time.run(program())
    messages = [message for message in caplog.messages if "10000 runs already wait" in message]
    assert "Failed to start 'tick' at 2030-01-01 07:00:00 UTC: 10000 runs already wait" in messages
    assert 20 < len(messages) < 30


def test_start_by_another_worker_is_not_logged_as_missed(wall: WallClock, caplog: pytest.LogCaptureFixture) -> None:
    log = MemoryEventLog()

    async def program() -> None:
        async with start_periodic(wall, log, {"owner": "ann"}) as start_times:
            await asyncio.sleep(0.75 * HOUR)
            assert start_times == ["07:00:00"]
        caplog.clear()
        async with start_periodic(wall, log, {"owner": "ann"}):
            await asyncio.sleep(1)
        assert not caplog.text

    with virtual_time() as time:
        time.run(program())


@pytest.mark.parametrize(
    ("cron", "message"),
    [
        ("whenever", "must be a cron expression"),
        ("R R * * *", "must not be random"),
        ("0 R(0-5) * mar fri", "must not be random"),
        ("0 0 30 2 *", "never matches"),
        ("0 0 1 1 * 0 2030", "at most six fields"),
    ],
)
def test_periodic_rejects_times_that_cannot_be_kept(cron: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Periodic("tick", cron, "a", "Hi")


@pytest.mark.parametrize("cron", ["0 7 * mar,apr fri", "@hourly", "0 0 29 2 *", "*/5 * * * * 30"])
def test_periodic_accepts_times_that_occur(cron: str) -> None:
    assert Periodic("tick", cron, "a", "Hi").after(0) > 0


@pytest.mark.parametrize(
    ("options", "message"), [({"priority": 2**40}, "an integer"), ({"key": "k"}, "unknown option 'key'")]
)
def test_periodic_rejects_options_that_start_does_not_accept(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Periodic("tick", "0 7 * * *", "a", "Hi", options)
