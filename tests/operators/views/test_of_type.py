from collections.abc import Callable
from typing import Any, assert_type

from reactivex.testing import ReactiveTest, Recorded, TestScheduler

from rxloop.operators.views import View
from rxloop.operators.views.filters import of_type
from rxloop.protocol.events import (
    ContentCompleteEvent,
    ContentDeltaEvent,
    CustomEvent,
    Event,
    StageEvent,
    ThoughtDeltaEvent,
    UsageEvent,
)

on_next: Callable[[int, Any], Recorded[Any]] = ReactiveTest.on_next
on_completed, on_error = ReactiveTest.on_completed, ReactiveTest.on_error


class Ping(CustomEvent):
    name: str = "ping"


def test_only_events_of_the_given_classes_pass_in_order() -> None:
    scheduler = TestScheduler()
    delta, usage, done = ContentDeltaEvent(delta="a"), UsageEvent(), ContentCompleteEvent()
    source = scheduler.create_hot_observable(
        on_next(210, delta), on_next(220, usage), on_next(230, done), on_completed(240)
    )

    seen = scheduler.start(lambda: source.pipe(of_type(ContentDeltaEvent, ContentCompleteEvent)))

    assert seen.messages == [on_next(210, delta), on_next(230, done), on_completed(240)]
    assert source.subscriptions == [ReactiveTest.subscribe(200, 240)]


def test_events_of_a_subclass_pass() -> None:
    scheduler = TestScheduler()
    ping = Ping()
    source = scheduler.create_hot_observable(on_next(210, ping))

    seen = scheduler.start(lambda: source.pipe(of_type(CustomEvent)))

    assert seen.messages == [on_next(210, ping)]


def test_error_passes() -> None:
    scheduler = TestScheduler()
    failure = RuntimeError("broken")
    source = scheduler.create_hot_observable(on_next(210, UsageEvent()), on_error(220, failure))

    seen = scheduler.start(lambda: source.pipe(of_type(ContentDeltaEvent)))

    assert seen.messages == [on_error(220, failure)]


def test_disposal_disposes_the_source() -> None:
    scheduler = TestScheduler()
    source = scheduler.create_hot_observable(on_next(210, UsageEvent()))

    scheduler.start(lambda: source.pipe(of_type(UsageEvent)), disposed=300)

    assert source.subscriptions == [ReactiveTest.subscribe(200, 300)]


def test_static_type_is_the_union_of_the_classes() -> None:
    assert_type(of_type(UsageEvent), View[Event, UsageEvent])
    assert_type(of_type(UsageEvent, StageEvent), View[Event, UsageEvent | StageEvent])
    assert_type(
        of_type(UsageEvent, StageEvent, CustomEvent, ContentDeltaEvent, ThoughtDeltaEvent),
        View[Event, UsageEvent | StageEvent | CustomEvent | ContentDeltaEvent | ThoughtDeltaEvent],
    )
    assert_type(
        of_type(UsageEvent, StageEvent, CustomEvent, ContentDeltaEvent, ThoughtDeltaEvent, ContentCompleteEvent),
        View[Event, Event],
    )
