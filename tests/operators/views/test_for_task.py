from collections.abc import Callable
from typing import Any

from reactivex.testing import ReactiveTest, Recorded, TestScheduler

from rxloop.operators.views.filters import for_task
from rxloop.protocol.events import ContentDeltaEvent, Event

on_next: Callable[[int, Any], Recorded[Any]] = ReactiveTest.on_next
on_completed = ReactiveTest.on_completed


def delta(task: str, text: str) -> Event:
    return ContentDeltaEvent(context_id="conversation", task_id=task, delta=text)


def test_for_task_passes_only_events_of_the_task_in_order() -> None:  # L9
    scheduler = TestScheduler()
    source = scheduler.create_hot_observable(
        on_next(210, delta("a", "1")),
        on_next(220, delta("b", "1")),
        on_next(230, delta("a", "2")),
        on_next(240, delta("b", "2")),
        on_completed(250),
    )

    seen = scheduler.start(lambda: source.pipe(for_task("a")))

    assert seen.messages == [on_next(210, delta("a", "1")), on_next(230, delta("a", "2")), on_completed(250)]
    assert source.subscriptions == [ReactiveTest.subscribe(200, 250)]
