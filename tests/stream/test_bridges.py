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


async def test_pushed_values_are_delivered_immediately() -> None:
    order: list[str] = []

    async def work(push: Push[str]) -> None:
        for value in "ab":
            order.append(f"push {value}")
            push(value)
        order.append("return")

    ended = asyncio.Event()
    from_task(work).subscribe(lambda value: order.append(f"got {value}"), on_completed=ended.set)
    await ended.wait()
    assert order == ["push a", "got a", "push b", "got b", "return"]


async def test_from_task_is_cold_and_starts_a_task_per_subscription() -> None:
    started: list[int] = []

    async def work(push: Push[int]) -> None:
        started.append(1)
        push(len(started))

    source = from_task(work)
    await run_ready_tasks()
    assert started == []
    first, second = Recorder(source), Recorder(source)
    await wait_until(lambda: first.completed and second.completed)
    assert first.events == [1]
    assert second.events == [2]


async def test_exception_becomes_the_error_of_the_observable() -> None:
    async def work(push: Push[int]) -> None:
        push(1)
        raise ZeroDivisionError("oh")

    recorder = Recorder(from_task(work))
    await wait_until(lambda: recorder.error)
    assert recorder.events == [1]
    assert isinstance(recorder.error, ZeroDivisionError)


@pytest.mark.parametrize("shielded", [False, True])
async def test_disposal_stops_the_task_and_nothing_follows(shielded: bool) -> None:
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
    assert recorder.completed is False
    assert recorder.error is None


@pytest.mark.parametrize("shielded", [False, True])
async def test_task_disposed_before_its_start_never_starts(shielded: bool) -> None:
    async def work(push: Push[int]) -> None:
        raise AssertionError("it began")

    recorder = Recorder(from_task(work, shielded=shielded))
    recorder.subscription.dispose()
    await assert_no_tasks()
    assert recorder.completed is False
    assert recorder.error is None


async def test_shielded_task_is_cancelled_by_anyio_and_may_clean_up() -> None:
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


async def test_task_that_swallows_its_cancellation_delivers_nothing_more() -> None:
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


async def test_failure_after_disposal_is_ignored() -> None:
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


async def test_cancelled_inner_task_is_an_error() -> None:
    async def work(push: Push[int]) -> None:
        other = asyncio.ensure_future(asyncio.sleep(60))
        other.cancel()
        await other

    recorder = Recorder(from_task(work))
    await wait_until(lambda: recorder.error)
    assert isinstance(recorder.error, RxloopError)


async def test_pause_completes_the_observable() -> None:
    async def work(push: Push[int]) -> None:
        raise Paused

    recorder = Recorder(from_task(work))
    await wait_until(lambda: recorder.completed)


async def test_completion_does_not_cancel_the_task_that_delivers_it() -> None:
    deliveries: list[str] = []

    async def work(push: Push[int]) -> None:
        push(1)

    source = from_task(work).pipe(ops.do_action(on_completed=lambda: deliveries.append("end delivered")))
    recorder = Recorder(source)
    await wait_until(lambda: recorder.completed)
    recorder.subscription.dispose()
    await assert_no_tasks()
    assert deliveries == ["end delivered"]


async def test_take_one_stops_the_task_within_its_push() -> None:
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


async def test_exception_of_an_operator_is_delivered_to_the_subscriber() -> None:
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


async def test_async_iterator_is_created_and_closed_per_subscription() -> None:
    closed: list[str] = []

    async def characters() -> AsyncIterator[str]:
        try:
            for character in "abc":
                yield character
                await asyncio.sleep(0)
        finally:
            await asyncio.sleep(0)
            closed.append("closed")

    source = from_async_iter(characters)
    for expected in (["a", "b", "c"], ["a", "b", "c"]):
        recorder = Recorder(source)
        await wait_until(lambda recorder=recorder: recorder.completed)
        assert recorder.events == expected
    cut = Recorder(source.pipe(ops.take(1)))
    await wait_until(lambda: cut.completed)
    await assert_no_tasks()
    assert closed == ["closed"] * 3


async def test_from_awaitable_emits_its_value() -> None:
    async def value() -> int:
        return 7

    recorder = Recorder(from_awaitable(value))
    await wait_until(lambda: recorder.completed)
    assert recorder.events == [7]


async def test_emit_delivers_within_subscribe_even_when_nested() -> None:
    order: list[object] = []

    def outer(observer: rx.abc.ObserverBase[int], scheduler: object = None) -> rx.abc.DisposableBase:
        order.append("before")
        emit(1, 2).subscribe(order.append)
        order.append("after")
        return Disposable()

    rx.Observable(outer).subscribe()
    assert order == ["before", 1, 2, "after"]
