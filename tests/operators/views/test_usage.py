from collections.abc import Callable
from typing import Any

from reactivex.testing import ReactiveTest, Recorded, TestScheduler

from rxloop.operators.views.filters import usage
from rxloop.protocol.events import CheckpointEvent, ContentCompleteEvent, UsageEvent
from rxloop.protocol.messages import Usage

on_next: Callable[[int, Any], Recorded[Any]] = ReactiveTest.on_next
on_completed = ReactiveTest.on_completed


def test_usage_of_each_model_call_passes_unchanged() -> None:
    scheduler = TestScheduler()
    first, second = UsageEvent(input_tokens=10, output_tokens=2), UsageEvent(input_tokens=15, output_tokens=1)
    source = scheduler.create_hot_observable(
        on_next(210, first),
        on_next(220, ContentCompleteEvent()),
        on_next(230, CheckpointEvent(iteration=1, message_count=2, usage=Usage(input_tokens=10), durable_seq=None)),
        on_next(240, second),
        on_completed(250),
    )

    seen = scheduler.start(lambda: source.pipe(usage()))

    assert seen.messages == [on_next(210, first), on_next(240, second), on_completed(250)]
    assert source.subscriptions == [ReactiveTest.subscribe(200, 250)]
