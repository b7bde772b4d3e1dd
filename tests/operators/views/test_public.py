from collections.abc import Callable
from typing import Any

from reactivex.testing import ReactiveTest, Recorded, TestScheduler

from rxloop.operators.views.filters import public
from rxloop.protocol.events import (
    ContentDeltaEvent,
    LLMFailedEvent,
    ThoughtStreamEvent,
    ToolCallDeltaEvent,
    ToolCompleteEvent,
    ToolStartEvent,
)
from rxloop.protocol.messages import ErrorInfo, ToolCall

on_next: Callable[[int, Any], Recorded[Any]] = ReactiveTest.on_next
on_completed = ReactiveTest.on_completed

THINK = ToolCall(id="1", name="think_aloud")


def test_internal_events_are_left_out_and_order_is_preserved() -> None:  # L8
    scheduler = TestScheduler()
    first, last = ContentDeltaEvent(delta="a"), ContentDeltaEvent(delta="b")
    internal = LLMFailedEvent(error=ErrorInfo(code="server", message="502"), retryable=True)
    source = scheduler.create_hot_observable(
        on_next(210, first), on_next(220, internal), on_next(230, last), on_completed(240)
    )

    seen = scheduler.start(lambda: source.pipe(public()))

    assert seen.messages == [on_next(210, first), on_next(230, last), on_completed(240)]
    assert source.subscriptions == [ReactiveTest.subscribe(200, 240)]


def test_only_the_thought_of_a_hidden_think_aloud_call_is_public() -> None:  # L29
    scheduler = TestScheduler()
    thought = ThoughtStreamEvent(thought_id="plan", content="First, look.")
    source = scheduler.create_hot_observable(
        on_next(210, ToolCallDeltaEvent(index=0, tool_call_id="1", name="think_aloud", fragment="{", hidden=True)),
        on_next(220, ToolStartEvent(call=THINK, idempotency_key="k", hidden=True)),
        on_next(230, thought),
        on_next(240, ToolCompleteEvent(call=THINK, success=True, content="noted", hidden=True)),
    )

    seen = scheduler.start(lambda: source.pipe(public()))

    assert seen.messages == [on_next(230, thought)]
