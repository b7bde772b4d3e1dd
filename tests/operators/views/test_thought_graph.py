from collections.abc import Callable
from typing import Any, cast

from reactivex.testing import ReactiveTest, Recorded, TestScheduler

from rxloop.operators.views.thought_graph import thought_graph
from rxloop.protocol.events import ContentCompleteEvent, ContentDeltaEvent, ThoughtStreamEvent
from rxloop.protocol.messages import ToolCall
from rxloop.thinking.graph import ThoughtGraph

on_next: Callable[[int, Any], Recorded[Any]] = ReactiveTest.on_next
on_completed = ReactiveTest.on_completed

PLAN = ThoughtStreamEvent(thought_id="plan", content="First Oslo.", index=0)
STEP = ThoughtStreamEvent(thought_id="step", content="Then Bergen.", index=1, related_to="plan")


def test_current_graph_is_emitted_after_each_thought() -> None:
    scheduler = TestScheduler()
    source = scheduler.create_hot_observable(
        on_next(210, PLAN), on_next(220, ContentDeltaEvent(delta="a")), on_next(230, STEP), on_completed(240)
    )

    seen = scheduler.start(lambda: source.pipe(thought_graph()))

    first, second, end = cast("list[Any]", seen.messages)
    assert first.time == 210
    assert second.time == 230
    assert end == on_completed(240)
    assert second.value.value.to_mermaid() == ThoughtGraph().add(PLAN).add(STEP).to_mermaid()
    assert source.subscriptions == [ReactiveTest.subscribe(200, 240)]


def test_each_subscriber_of_a_stored_view_has_its_own_graph() -> None:
    scheduler = TestScheduler()
    view = thought_graph()
    one, other = scheduler.create_observer(), scheduler.create_observer()
    source = scheduler.create_cold_observable(on_next(10, PLAN))

    source.pipe(view).subscribe(one)
    source.pipe(view).subscribe(other)
    scheduler.start()

    for messages in cast("list[list[Any]]", [one.messages, other.messages]):
        assert messages[0].value.value.to_mermaid() == ThoughtGraph().add(PLAN).to_mermaid()


def test_thought_about_a_tool_call_is_linked_to_the_call() -> None:
    scheduler = TestScheduler()
    call = ToolCall(id="call_1", name="weather")
    about = ThoughtStreamEvent(thought_id="cold", content="Cold.", related_to="call_1")
    source = scheduler.create_hot_observable(on_next(210, ContentCompleteEvent(tool_calls=[call])), on_next(220, about))

    seen = scheduler.start(lambda: source.pipe(thought_graph()))

    (message,) = cast("list[Any]", seen.messages)
    assert message.time == 220
    assert [(edge.source, edge.target) for edge in message.value.value.edges] == [("call_1", "cold")]
