from collections.abc import Callable
from typing import Any

import reactivex as rx
from reactivex.testing import ReactiveTest, Recorded, TestScheduler

from rxloop.operators.views.filters import until_final
from rxloop.protocol.events import ContentDeltaEvent, Event, StatusUpdateEvent

on_next: Callable[[int, Any], Recorded[Any]] = ReactiveTest.on_next
on_completed, on_error = ReactiveTest.on_completed, ReactiveTest.on_error

WORKING = StatusUpdateEvent(state="working")
FINAL = StatusUpdateEvent(state="completed", final=True)


def test_view_completes_after_the_final_event_and_disposes_the_source() -> None:
    scheduler = TestScheduler()
    source = scheduler.create_hot_observable(
        on_next(210, WORKING), on_next(220, FINAL), on_next(230, WORKING), on_completed(240)
    )

    seen = scheduler.start(lambda: source.pipe(until_final()))

    assert seen.messages == [on_next(210, WORKING), on_next(220, FINAL), on_completed(220)]
    assert source.subscriptions == [ReactiveTest.subscribe(200, 220)]


def test_final_event_of_a_nested_run_does_not_complete_the_view() -> None:
    scheduler = TestScheduler()
    nested = StatusUpdateEvent(state="completed", final=True, parent_task_id="root", agent_path=("child",))
    later = ContentDeltaEvent(delta="a")
    source = scheduler.create_hot_observable(on_next(210, nested), on_next(220, later), on_next(230, FINAL))

    seen = scheduler.start(lambda: source.pipe(until_final()))

    assert seen.messages == [on_next(210, nested), on_next(220, later), on_next(230, FINAL), on_completed(230)]


def test_pause_for_input_completes_the_view() -> None:
    scheduler = TestScheduler()
    pause = StatusUpdateEvent(state="input-required", final=True)
    source = scheduler.create_hot_observable(on_next(210, pause))

    seen = scheduler.start(lambda: source.pipe(until_final()))

    assert seen.messages == [on_next(210, pause), on_completed(210)]


def test_synchronous_source_is_cut_off_after_the_final_event() -> None:
    seen: list[Event] = []

    rx.from_iterable([WORKING, FINAL, WORKING]).pipe(until_final()).subscribe(seen.append)

    assert seen == [WORKING, FINAL]


def test_error_before_the_final_event_passes() -> None:
    scheduler = TestScheduler()
    failure = RuntimeError("broken")
    source = scheduler.create_hot_observable(on_next(210, WORKING), on_error(220, failure))

    seen = scheduler.start(lambda: source.pipe(until_final()))

    assert seen.messages == [on_next(210, WORKING), on_error(220, failure)]
