from __future__ import annotations

import asyncio
import math
import time

import pytest

from rxloop.providers.transport.progress_watch import Watch
from rxloop.testing import virtual_time

SHIELDED = pytest.mark.parametrize("shielded", [True, False])


def run_for(shielded: bool, seconds: float | None, *steps: float | str, total: float = math.inf) -> tuple[Watch, float]:
    """Execute sleeps and watch methods in order. Returns the watch and the elapsed seconds."""

    async def work() -> tuple[Watch, float]:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        watch = Watch(seconds, shielded, begun + total)
        with watch:
            for step in steps:
                if step == "seen":
                    watch.last = loop.time()
                elif isinstance(step, str):
                    getattr(watch, step)()
                else:
                    await asyncio.sleep(step)
        return watch, loop.time() - begun

    with virtual_time() as clock:
        return clock.run(work())


@SHIELDED
def test_silence_ends_the_block(shielded: bool) -> None:
    watch, took = run_for(shielded, 5, 100)
    assert watch.expired
    assert took == pytest.approx(5, abs=0.01)


@SHIELDED
def test_each_event_postpones_the_end(shielded: bool) -> None:
    watch, took = run_for(shielded, 5, 4, "seen", 4, "seen", 100)
    assert watch.expired
    assert took == pytest.approx(13, abs=0.01)


@SHIELDED
def test_held_reader_does_not_expire(shielded: bool) -> None:
    watch, took = run_for(shielded, 5, "hold", 100, "go_on", 4)
    assert not watch.expired
    assert took == 104
    assert run_for(shielded, 5, "hold", 100, "go_on", 6)[0].expired


@SHIELDED
def test_stopped_watch_does_not_expire(shielded: bool) -> None:
    assert not run_for(shielded, 5, "stop", 100)[0].expired


@SHIELDED
@pytest.mark.parametrize("seconds", [5, None])
def test_block_ends_at_the_total_time(shielded: bool, seconds: float | None) -> None:
    watch, took = run_for(shielded, seconds, 4, "seen", 4, "seen", "hold", 100, total=10)
    assert watch.late
    assert not watch.expired
    assert took == pytest.approx(10, abs=0.01)


@SHIELDED
def test_block_that_ends_in_time_is_not_late(shielded: bool) -> None:
    assert not run_for(shielded, 5, 4, total=10)[0].late
    assert not run_for(shielded, 5, 4, "stop", 100, total=10)[0].late


@SHIELDED
def test_watch_without_limits_never_ends(shielded: bool) -> None:
    assert not run_for(shielded, None, 10_000)[0].expired


@SHIELDED
async def test_data_received_while_the_loop_was_blocked_counts(shielded: bool) -> None:
    loop = asyncio.get_running_loop()
    watch = Watch(0.05, shielded)
    with watch:
        arrived = asyncio.Event()
        loop.call_later(0.01, arrived.set)
        time.sleep(0.1)  # noqa: ASYNC251
        await arrived.wait()
        await asyncio.sleep(0)
        watch.last = loop.time()
        watch.stop()
    assert not watch.expired


async def test_task_that_never_waits_is_ended() -> None:
    watch = Watch(0.01, shielded=False)
    loop = asyncio.get_running_loop()
    with watch:
        while True:
            ready: asyncio.Future[None] = loop.create_future()
            ready.set_result(None)
            await ready
            await asyncio.sleep(0)
    assert watch.expired
