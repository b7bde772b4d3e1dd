from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import anyio
import pytest
import reactivex as rx
from reactivex import operators as ops
from reactivex.disposable import Disposable

from rxloop.errors import Paused, RxloopError
from rxloop.stream.sources import Push, emit, from_async_iter, from_awaitable, from_task
from support.run_checks import Recorder, assert_no_tasks, run_ready_tasks, wait_until


async def test_what_is_pushed_is_delivered_at_once() -> None:
    order: list[str] = []

    async def work(push: Push[str]) -> None:
        for letter in "ab":
            order.append(f"push {letter}")
            push(letter)
        order.append("return")

    ended = asyncio.Event()
    from_task(work).subscribe(lambda value: order.append(f"got {value}"), on_completed=ended.set)
    await ended.wait()
    assert order == ["push a", "got a", "push b", "got b", "return"]


async def test_it_is_cold_and_each_subscription_is_a_task_of_its_own() -> None:
    started: list[int] = []

    async def work(push: Push[int]) -> None:
        started.append(1)
        push(len(started))

    source = from_task(work)
    await run_ready_tasks()
    assert started == []
    first, second = Recorder(source), Recorder(source)
    await wait_until(lambda: first.completed and second.completed)
    assert (first.events, second.events) == ([1], [2])


async def test_an_exception_is_the_error_of_the_observable() -> None:
    async def work(push: Push[int]) -> None:
        push(1)
        raise ZeroDivisionError("oh")

    recorder = Recorder(from_task(work))
    await wait_until(lambda: recorder.error)
    assert recorder.events == [1]
    assert isinstance(recorder.error, ZeroDivisionError)


@pytest.mark.parametrize("shielded", [False, True])
async def test_disposing_stops_the_work_and_nothing_follows(shielded: bool) -> None:
    stopped = asyncio.Event()

    async def work(push: Push[int]) -> None:
        push(1)
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
            push(2)

    recorder = Recorder(from_task(work, shielded=shielded))
    await wait_until(lambda: recorder.events)
    recorder.subscription.dispose()
    await stopped.wait()
    await assert_no_tasks()
    assert recorder.events == [1]
    assert (recorder.completed, recorder.error) == (False, None)


@pytest.mark.parametrize("shielded", [False, True])
async def test_work_that_was_disposed_before_it_began_never_begins(shielded: bool) -> None:
    async def work(push: Push[int]) -> None:
        raise AssertionError("it began")

    recorder = Recorder(from_task(work, shielded=shielded))
    recorder.subscription.dispose()
    await assert_no_tasks()
    assert (recorder.completed, recorder.error) == (False, None)


async def test_shielded_work_is_stopped_by_anyios_cancellation_and_may_clean_up_behind_a_shield() -> None:
    cleaned = asyncio.Event()

    async def work(push: Push[int]) -> None:
        push(1)
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
                cleaned.set()

    recorder = Recorder(from_task(work, shielded=True))
    await wait_until(lambda: recorder.events)
    recorder.subscription.dispose()
    await cleaned.wait()
    await assert_no_tasks()


async def test_work_that_swallows_the_cancellation_delivers_nothing_more() -> None:
    stubborn = asyncio.Event()

    async def work(push: Push[int]) -> None:
        push(1)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            push(2)
            stubborn.set()

    recorder = Recorder(from_task(work))
    await wait_until(lambda: recorder.events)
    recorder.subscription.dispose()
    await stubborn.wait()
    await assert_no_tasks()
    assert recorder.events == [1]
    assert not recorder.completed


async def test_work_that_fails_after_it_was_disposed_disturbs_nobody() -> None:
    async def work(push: Push[int]) -> None:
        push(1)
        try:
            await asyncio.Event().wait()
        finally:
            raise ZeroDivisionError

    recorder = Recorder(from_task(work))
    await wait_until(lambda: recorder.events)
    recorder.subscription.dispose()
    await assert_no_tasks()
    assert recorder.error is None


async def test_waiting_for_a_task_that_was_cancelled_is_an_error_and_no_silence() -> None:
    async def work(push: Push[int]) -> None:
        other = asyncio.ensure_future(asyncio.sleep(60))
        other.cancel()
        await other

    recorder = Recorder(from_task(work))
    await wait_until(lambda: recorder.error)
    assert isinstance(recorder.error, RxloopError)


async def test_a_pause_is_an_end() -> None:
    async def work(push: Push[int]) -> None:
        raise Paused

    recorder = Recorder(from_task(work))
    await wait_until(lambda: recorder.completed)


async def test_ending_does_not_cancel_the_task_that_delivers_the_end() -> None:
    left: list[str] = []

    async def work(push: Push[int]) -> None:
        push(1)

    source = from_task(work).pipe(ops.do_action(on_completed=lambda: left.append("end delivered")))
    recorder = Recorder(source)
    await wait_until(lambda: recorder.completed)
    recorder.subscription.dispose()
    await assert_no_tasks()
    assert left == ["end delivered"]


async def test_taking_one_stops_the_work_from_inside_its_own_push() -> None:
    states: list[str] = []

    async def work(push: Push[int]) -> None:
        try:
            push(1)
            states.append("push returned")
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            states.append("cancelled")
            raise

    recorder = Recorder(from_task(work).pipe(ops.take(1)))
    await wait_until(lambda: recorder.completed)
    await assert_no_tasks()
    assert states == ["push returned", "cancelled"]


async def test_an_operator_that_raises_is_the_error_of_the_leaf() -> None:
    def broken(source: rx.Observable[int]) -> rx.Observable[int]:
        def subscribe(observer: rx.abc.ObserverBase[int], scheduler: object = None) -> rx.abc.DisposableBase:
            def on_next(value: int) -> None:
                raise ZeroDivisionError

            return source.subscribe(on_next, observer.on_error, observer.on_completed)

        return rx.Observable(subscribe)

    async def work(push: Push[int]) -> None:
        push(1)

    recorder = Recorder(from_task(work).pipe(broken))
    await wait_until(lambda: recorder.error)
    assert isinstance(recorder.error, ZeroDivisionError)


async def test_an_async_iterator_is_made_for_each_subscription_and_closed() -> None:
    closed: list[str] = []

    async def letters() -> AsyncIterator[str]:
        try:
            for letter in "abc":
                yield letter
                await asyncio.sleep(0)
        finally:
            await asyncio.sleep(0)
            closed.append("closed")

    source = from_async_iter(letters)
    for expected in (["a", "b", "c"], ["a", "b", "c"]):
        recorder = Recorder(source)
        await wait_until(lambda recorder=recorder: recorder.completed)
        assert recorder.events == expected
    cut = Recorder(source.pipe(ops.take(1)))
    await wait_until(lambda: cut.completed)
    await assert_no_tasks()
    assert closed == ["closed"] * 3


async def test_an_awaitable_gives_its_one_value() -> None:
    async def value() -> int:
        return 7

    recorder = Recorder(from_awaitable(value))
    await wait_until(lambda: recorder.completed)
    assert recorder.events == [7]


async def test_emit_delivers_inside_subscribe_even_inside_another_subscribe() -> None:
    order: list[object] = []

    def outer(observer: rx.abc.ObserverBase[int], scheduler: object = None) -> rx.abc.DisposableBase:
        order.append("before")
        emit(1, 2).subscribe(order.append)
        order.append("after")
        return Disposable()

    rx.Observable(outer).subscribe()
    assert order == ["before", 1, 2, "after"]
