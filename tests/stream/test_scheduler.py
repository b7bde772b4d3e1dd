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


def make_scheduler() -> RunScheduler:
    return RunScheduler(asyncio.get_running_loop())


async def test_immediate_actions_run_within_subscribe() -> None:
    recorder = Recorder(rx.just(1).pipe(ops.start_with(0)), scheduler=make_scheduler())
    assert recorder.events == [0, 1]
    assert recorder.completed


def test_delayed_actions_run_on_the_event_loop() -> None:
    with virtual_time() as time:

        async def main() -> None:
            ended = asyncio.Event()
            threads: list[int] = []
            rx.timer(0.5).subscribe(
                lambda _: threads.append(threading.get_ident()), on_completed=ended.set, scheduler=make_scheduler()
            )
            await ended.wait()
            assert threads == [threading.get_ident()]

        time.run(main())
        assert time.now == 0.5


def test_stock_time_operators_use_the_scheduler_of_the_subscription() -> None:
    with virtual_time() as time:
        source: Subject[int] = Subject()
        seen: list[tuple[float, Any]] = []

        async def main() -> None:
            ended = asyncio.Event()
            source.pipe(ops.debounce(0.1)).subscribe(
                lambda value: seen.append((time.now, value)), on_completed=ended.set, scheduler=make_scheduler()
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
        # Threads of earlier tests may have ended.
        assert set(threading.enumerate()) <= threads


async def test_action_disposed_before_it_is_due_does_not_run() -> None:
    actions: list[int] = []
    scheduler = make_scheduler()
    scheduler.schedule_relative(0.001, lambda *_: actions.append(1)).dispose()
    ended = asyncio.Event()
    scheduler.schedule_relative(0.002, lambda *_: ended.set())
    await ended.wait()
    assert actions == []


async def test_action_scheduled_by_an_action_runs_after_it() -> None:
    order: list[str] = []
    scheduler = make_scheduler()

    def outer(*_: Any) -> None:
        scheduler.schedule(lambda *_: order.append("inner"))
        order.append("outer")

    scheduler.schedule(outer)
    assert order == ["outer", "inner"]


def test_no_time_passes_without_an_event_loop() -> None:
    scheduler = resolve_scheduler(None)
    actions: list[str] = []
    scheduler.schedule_relative(0.001, lambda *_: actions.append("late"))
    assert scheduler.now == scheduler.now
    assert actions == []


async def test_asyncio_scheduler_of_reactivex_is_replaced() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(resolve_scheduler(AsyncIOScheduler(loop)), RunScheduler)
    assert isinstance(resolve_scheduler(None), RunScheduler)
    mine = RunScheduler(loop)
    assert resolve_scheduler(mine) is mine


def test_endless_immediate_actions_let_the_event_loop_take_turns() -> None:
    with virtual_time() as time:

        async def main() -> None:
            endless = rx.repeat_value(1).pipe(ops.ignore_elements())
            subscription = endless.subscribe(scheduler=make_scheduler())
            await asyncio.sleep(0.01)
            subscription.dispose()

        time.run(main())
        assert time.now == 0.01


async def test_many_immediate_actions_keep_their_order() -> None:
    ended = asyncio.Event()
    numbers: list[int] = []
    source = rx.range(25_000).pipe(ops.concat_map(rx.just))
    source.subscribe(numbers.append, on_completed=ended.set, scheduler=make_scheduler())
    await ended.wait()
    assert numbers == [*range(25_000)]


async def test_actions_of_another_thread_do_not_delay_later_actions() -> None:
    scheduler = make_scheduler()
    source = rx.range(12_000).pipe(ops.concat_map(rx.just), ops.count())
    await asyncio.to_thread(lambda: source.subscribe(scheduler=scheduler))
    rx.just(1).subscribe(scheduler=scheduler)
    await asyncio.sleep(0)
    assert Recorder(rx.just(1), scheduler=scheduler).events == [1]


async def test_actions_after_several_pauses_are_executed() -> None:
    ended = asyncio.Event()
    numbers: list[int] = []
    # The operators schedule two actions per value, and replace the disposable of the previous one afterwards.
    source = rx.repeat_value(1, 25_000)
    source.subscribe(numbers.append, on_completed=ended.set, scheduler=make_scheduler())
    async with asyncio.timeout(30):
        await ended.wait()
    assert len(numbers) == 25_000
