from collections.abc import Callable
from typing import Any

from reactivex.testing import ReactiveTest, Recorded, TestScheduler

from rxloop.operators.views.text import text
from rxloop.protocol.events import ContentCompleteEvent, ContentDeltaEvent, ThoughtDeltaEvent
from rxloop.providers.codecs.text import make_text_delta

on_next: Callable[[int, Any], Recorded[Any]] = ReactiveTest.on_next
on_completed, on_error = ReactiveTest.on_completed, ReactiveTest.on_error


def delta(text: str, **envelope: Any) -> ContentDeltaEvent:
    return ContentDeltaEvent(delta=text, **envelope)


def test_content_deltas_of_the_main_branch_are_emitted_unchanged() -> None:
    scheduler = TestScheduler()
    source = scheduler.create_hot_observable(
        on_next(210, delta(" He")),
        on_next(220, ThoughtDeltaEvent(delta="hm")),
        on_next(230, make_text_delta(ContentDeltaEvent, "y\n", 1, "1")),
        on_next(240, ContentCompleteEvent(content=" Hey\n")),
        on_completed(250),
    )

    seen = scheduler.start(lambda: source.pipe(text()))

    assert seen.messages == [on_next(210, " He"), on_next(230, "y\n"), on_completed(250)]
    assert source.subscriptions == [ReactiveTest.subscribe(200, 250)]


def test_text_of_branches_and_nested_agents_is_left_out() -> None:  # L10
    scheduler = TestScheduler()
    source = scheduler.create_hot_observable(
        on_next(210, delta("guess", step="tot/1/1", branch="tot/1")),
        on_next(220, delta("child", parent_task_id="root", agent_path=("child",))),
        on_next(230, delta("answer", step="2")),
    )

    seen = scheduler.start(lambda: source.pipe(text()))

    assert seen.messages == [on_next(230, "answer")]


def test_text_of_nested_agents_is_included_on_request() -> None:  # L10
    child: dict[str, Any] = {"task_id": "child", "parent_task_id": "root", "agent_path": ("child",), "step": "1"}
    scheduler = TestScheduler()
    source = scheduler.create_hot_observable(
        on_next(210, delta("a", step="1", task_id="root")),
        on_next(220, delta("b", **child)),
        on_next(230, delta("guess", branch="tot/1", **child)),
        on_next(240, ContentCompleteEvent(content="a", step="1", task_id="root")),
        on_next(250, ContentCompleteEvent(content="b", **child)),
        on_next(260, ContentCompleteEvent(content="late", **child)),
    )

    seen = scheduler.start(lambda: source.pipe(text(nested=True)))

    assert seen.messages == [on_next(210, "a"), on_next(220, "b"), on_next(260, "late")]


def test_late_subscriber_gets_the_text_of_complete_messages_at_once() -> None:
    scheduler = TestScheduler()
    source = scheduler.create_hot_observable(
        on_next(210, ContentCompleteEvent(content="I look.", step="1")),
        on_next(220, ContentCompleteEvent(content="", step="2")),
        on_next(230, ContentCompleteEvent(content="guess", step="tot/1/1", branch="tot/1")),
        on_next(240, ContentCompleteEvent(content="child", step="1", parent_task_id="root")),
        on_next(250, delta("It ra", step="3")),
        on_next(260, delta("ins.", step="3")),
        on_next(270, ContentCompleteEvent(content="It rains.", step="3")),
        on_next(280, ContentCompleteEvent(content="Bye.", step="4")),
    )

    seen = scheduler.start(lambda: source.pipe(text()))

    assert seen.messages == [
        on_next(210, "I look."),
        on_next(250, "It ra"),
        on_next(260, "ins."),
        on_next(280, "Bye."),
    ]


def test_error_passes_and_disposes_the_source() -> None:
    scheduler = TestScheduler()
    failure = RuntimeError("broken")
    source = scheduler.create_hot_observable(on_next(210, delta("a")), on_error(220, failure))

    seen = scheduler.start(lambda: source.pipe(text()))

    assert seen.messages == [on_next(210, "a"), on_error(220, failure)]
    assert source.subscriptions == [ReactiveTest.subscribe(200, 220)]
