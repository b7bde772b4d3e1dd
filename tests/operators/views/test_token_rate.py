from collections.abc import Callable
from typing import Any

import pytest
import reactivex as rx
from reactivex import operators as ops
from reactivex.testing import ReactiveTest, Recorded, TestScheduler

from rxloop.errors import ConfigurationError
from rxloop.operators.views.token_rate import token_rate
from rxloop.protocol.events import (
    ContentDeltaEvent,
    LLMCallEvent,
    StatusUpdateEvent,
    ThoughtDeltaEvent,
    ToolCallDeltaEvent,
)

on_next: Callable[[int, Any], Recorded[Any]] = ReactiveTest.on_next
on_completed, on_error = ReactiveTest.on_completed, ReactiveTest.on_error

TEXT = ContentDeltaEvent(delta="a")
THOUGHT = ThoughtDeltaEvent(delta="b")
ARGUMENT = ToolCallDeltaEvent(index=0, tool_call_id="1", name="f", fragment="{")
CALL = LLMCallEvent(iteration=1, model="m", message_count=1, tool_count=0, estimated_input_tokens=3)
FINAL = StatusUpdateEvent(state="completed", final=True)


def test_each_delta_gives_the_rate_over_the_window_behind_it_or_since_the_first() -> None:
    scheduler = TestScheduler()
    source = scheduler.create_hot_observable(
        on_next(210, TEXT), on_next(250, THOUGHT), on_next(290, ARGUMENT), on_next(310, TEXT), on_completed(320)
    )

    seen = scheduler.start(lambda: source.pipe(token_rate(100)))

    assert seen.messages == [
        on_next(250, 1 / 40),  # nothing at 210: one delta alone has no rate
        on_next(290, 2 / 80),
        on_next(310, 3 / 100),  # the delta at 210 has left the window
        on_completed(320),
    ]
    assert source.subscriptions == [ReactiveTest.subscribe(200, 320)]


def test_a_stall_shows_once_a_window() -> None:
    scheduler = TestScheduler()
    source = scheduler.create_hot_observable(
        on_next(220, TEXT), on_next(230, TEXT), on_next(460, TEXT), on_next(470, TEXT)
    )

    seen = scheduler.start(lambda: source.pipe(token_rate(100)), disposed=500)

    assert seen.messages == [
        on_next(230, 1 / 10),
        on_next(330, 0.0),
        on_next(430, 0.0),
        on_next(470, 1 / 10),
    ]
    assert source.subscriptions == [ReactiveTest.subscribe(200, 500)]


def test_a_slow_model_is_noticed_before_its_first_token() -> None:
    scheduler = TestScheduler()
    source = scheduler.create_hot_observable(on_next(210, CALL))

    seen = scheduler.start(lambda: source.pipe(token_rate(100), ops.filter(lambda rate: rate < 5)), disposed=450)

    assert seen.messages == [on_next(300, 0.0), on_next(400, 0.0)]


def test_it_completes_with_the_final_event_and_nothing_comes_after() -> None:
    scheduler = TestScheduler()
    source = scheduler.create_hot_observable(
        on_next(210, TEXT), on_next(215, TEXT), on_next(220, FINAL), on_next(230, TEXT)
    )

    seen = scheduler.start(lambda: source.pipe(token_rate(100)))

    assert seen.messages == [on_next(215, 1 / 5), on_completed(220)]
    assert source.subscriptions == [ReactiveTest.subscribe(200, 220)]


def test_an_error_passes_and_stops_the_clock() -> None:
    scheduler = TestScheduler()
    failure = RuntimeError("broken")
    source = scheduler.create_hot_observable(on_next(210, TEXT), on_error(220, failure))

    seen = scheduler.start(lambda: source.pipe(token_rate(100)))

    assert seen.messages == [on_error(220, failure)]


@pytest.mark.parametrize("end", [on_completed(220), on_error(220, RuntimeError("broken")), on_next(220, TEXT)])
def test_no_timer_outlives_the_subscription(end: Recorded[Any]) -> None:
    scheduler = TestScheduler()
    source = scheduler.create_hot_observable(on_next(210, TEXT), end)
    timers: list[bool] = []
    scheduler.schedule_absolute(240, lambda *_: timers.extend(not item.is_cancelled() for item, _ in queue.items))
    queue = scheduler._queue

    scheduler.start(lambda: source.pipe(token_rate(50)), disposed=230)

    assert timers
    assert not any(timers)


def test_a_stored_view_counts_for_each_subscriber_apart() -> None:
    scheduler = TestScheduler()
    view = token_rate(100)
    source = scheduler.create_hot_observable(on_next(210, TEXT), on_next(215, TEXT))

    seen = scheduler.start(lambda: rx.merge(source.pipe(view), source.pipe(view)), disposed=220)

    assert seen.messages == [on_next(215, 1 / 5), on_next(215, 1 / 5)]


async def test_without_a_scheduler_time_comes_from_the_running_event_loop() -> None:
    assert await rx.never().pipe(token_rate(0.001), ops.take(2), ops.to_list()) == [0.0, 0.0]


@pytest.mark.parametrize("window", [0, -1])
def test_a_window_that_is_not_positive_is_refused_at_once(window: float) -> None:
    with pytest.raises(ConfigurationError, match="above 0"):
        token_rate(window)
