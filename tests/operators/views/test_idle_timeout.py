from collections.abc import Callable
from typing import Any, cast

import pytest
import reactivex as rx
from reactivex import operators as ops
from reactivex.testing import ReactiveTest, Recorded, TestScheduler

from rxloop.errors import ConfigurationError
from rxloop.operators.views.idle_timeout import idle_timeout
from rxloop.protocol.events import ContentDeltaEvent

on_next: Callable[[int, Any], Recorded[Any]] = ReactiveTest.on_next
on_completed, on_error = ReactiveTest.on_completed, ReactiveTest.on_error

A, B = ContentDeltaEvent(delta="a"), ContentDeltaEvent(delta="b")


def timed_out(message: Any, at: int) -> bool:
    error = message.value.exception
    return message.time == at and type(error) is TimeoutError and "no event came for 50 s" in str(error)


def test_silence_after_an_event_is_an_error_and_the_source_is_left() -> None:
    scheduler = TestScheduler()
    source = scheduler.create_hot_observable(on_next(210, A), on_next(240, B), on_next(295, A))

    seen = scheduler.start(lambda: source.pipe(idle_timeout(50)))

    assert seen.messages[:2] == [on_next(210, A), on_next(240, B)]
    assert len(seen.messages) == 3
    assert timed_out(seen.messages[2], at=290)
    assert source.subscriptions == [ReactiveTest.subscribe(200, 290)]


def test_silence_from_the_start_is_an_error() -> None:
    scheduler = TestScheduler()

    seen = scheduler.start(lambda: rx.never().pipe(idle_timeout(50)))

    assert timed_out(seen.messages[0], at=250)


def test_each_event_starts_the_time_again() -> None:
    scheduler = TestScheduler()
    source = scheduler.create_hot_observable(
        on_next(249, A), on_next(298, B), on_next(347, A), on_next(396, B), on_completed(445)
    )

    seen = scheduler.start(lambda: source.pipe(idle_timeout(50)))

    assert [message.time for message in seen.messages] == [249, 298, 347, 396, 445]
    assert seen.messages[-1] == on_completed(445)
    assert source.subscriptions == [ReactiveTest.subscribe(200, 445)]


def test_an_error_of_the_source_passes_and_ends_the_watch() -> None:
    scheduler = TestScheduler()
    failure = RuntimeError("broken")
    source = scheduler.create_hot_observable(on_error(220, failure))

    seen = scheduler.start(lambda: source.pipe(idle_timeout(50)))

    assert seen.messages == [on_error(220, failure)]


def test_nothing_comes_after_the_subscriber_has_left() -> None:
    scheduler = TestScheduler()
    source = scheduler.create_hot_observable(on_next(210, A))

    seen = scheduler.start(lambda: source.pipe(idle_timeout(50)), disposed=230)

    assert seen.messages == [on_next(210, A)]
    assert source.subscriptions == [ReactiveTest.subscribe(200, 230)]


@pytest.mark.parametrize("end", [on_completed(220), on_error(220, RuntimeError("broken")), on_next(220, A)])
def test_no_timer_outlives_the_subscription(end: Recorded[Any]) -> None:
    scheduler = TestScheduler()
    source = scheduler.create_hot_observable(on_next(210, A), end)
    timers: list[bool] = []
    scheduler.schedule_absolute(240, lambda *_: timers.extend(not item.is_cancelled() for item, _ in queue.items))
    queue = scheduler._queue

    scheduler.start(lambda: source.pipe(idle_timeout(50)), disposed=230)

    assert timers
    assert not any(timers)


def test_a_stored_view_counts_for_each_subscriber_apart() -> None:
    scheduler = TestScheduler()
    view = idle_timeout(50)
    source = scheduler.create_hot_observable(on_next(210, A), on_next(250, B))

    def both() -> rx.Observable[Any]:
        busy = source.pipe(view, ops.materialize())
        quiet = source.pipe(ops.filter(lambda event: event is A), view, ops.materialize())
        return rx.merge(busy, quiet)

    seen = scheduler.start(both)

    messages = cast("list[Any]", seen.messages)
    kinds = [(message.time, message.value.value.kind) for message in messages if message.value.has_value]
    assert kinds == [(210, "N"), (210, "N"), (250, "N"), (260, "E"), (300, "E")]


async def test_without_a_scheduler_time_comes_from_the_running_event_loop() -> None:
    with pytest.raises(TimeoutError):
        await rx.never().pipe(idle_timeout(0.001))


@pytest.mark.parametrize("seconds", [0, -1])
def test_a_time_that_is_not_positive_is_refused_at_once(seconds: float) -> None:
    with pytest.raises(ConfigurationError, match="above 0"):
        idle_timeout(seconds)
