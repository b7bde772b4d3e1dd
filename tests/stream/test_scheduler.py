from __future__ import annotations

import asyncio
import threading
from typing import Any

import reactivex as rx
from reactivex import operators as ops
from reactivex.scheduler.eventloop import AsyncIOScheduler
from reactivex.subject import Subject

from rxloop.stream.rx import RunScheduler, resolve_scheduler
from rxloop.testing import virtual_time
from support.run_checks import Recorder


def run_scheduler() -> RunScheduler:
    return RunScheduler(asyncio.get_running_loop())


async def test_what_is_due_now_happens_inside_subscribe() -> None:
    recorder = Recorder(rx.just(1).pipe(ops.start_with(0)), scheduler=run_scheduler())
    assert recorder.events == [0, 1]
    assert recorder.completed


def test_what_is_due_later_happens_on_the_event_loop() -> None:
    with virtual_time() as time:

        async def main() -> None:
            ended = asyncio.Event()
            threads: list[int] = []
            rx.timer(0.5).subscribe(
                lambda _: threads.append(threading.get_ident()), on_completed=ended.set, scheduler=run_scheduler()
            )
            await ended.wait()
            assert threads == [threading.get_ident()]

        time.run(main())
        assert time.now == 0.5


def test_stock_time_operators_use_it_when_it_is_given_to_subscribe() -> None:
    with virtual_time() as time:
        source: Subject[int] = Subject()
        seen: list[tuple[float, Any]] = []

        async def main() -> None:
            ended = asyncio.Event()
            source.pipe(ops.debounce(0.1)).subscribe(
                lambda value: seen.append((time.now, value)), on_completed=ended.set, scheduler=run_scheduler()
            )
            for value in range(3):
                source.on_next(value)
                await asyncio.sleep(0.05)
            await asyncio.sleep(1)
            source.on_completed()
            await ended.wait()

        threads = set(threading.enumerate())
        time.run(main())
        assert seen == [(0.2, 2)]
        # One of an earlier test may end meanwhile.
        assert set(threading.enumerate()) <= threads


async def test_an_action_that_is_disposed_before_it_is_due_does_not_happen() -> None:
    happened: list[int] = []
    scheduler = run_scheduler()
    scheduler.schedule_relative(0.001, lambda *_: happened.append(1)).dispose()
    ended = asyncio.Event()
    scheduler.schedule_relative(0.002, lambda *_: ended.set())
    await ended.wait()
    assert happened == []


async def test_an_action_that_is_scheduled_by_an_action_comes_behind_it() -> None:
    order: list[str] = []
    scheduler = run_scheduler()

    def outer(*_: Any) -> None:
        scheduler.schedule(lambda *_: order.append("inner"))
        order.append("outer")

    scheduler.schedule(outer)
    assert order == ["outer", "inner"]


def test_where_no_event_loop_runs_no_time_goes_by() -> None:
    scheduler = resolve_scheduler(None)
    happened: list[str] = []
    scheduler.schedule_relative(0.001, lambda *_: happened.append("late"))
    assert scheduler.now == scheduler.now
    assert happened == []


async def test_the_stock_scheduler_of_asyncio_gives_way_to_one_whose_clock_is_that_of_its_timers() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(resolve_scheduler(AsyncIOScheduler(loop)), RunScheduler)
    assert isinstance(resolve_scheduler(None), RunScheduler)
    mine = RunScheduler(loop)
    assert resolve_scheduler(mine) is mine
