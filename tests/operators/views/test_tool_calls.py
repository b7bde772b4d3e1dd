from collections.abc import Callable
from typing import Any

from reactivex.testing import ReactiveTest, Recorded, TestScheduler

from rxloop.operators.views.filters import tool_calls
from rxloop.protocol.events import ToolCompleteEvent, ToolProgressEvent, ToolStartEvent
from rxloop.protocol.messages import ToolCall

on_next: Callable[[int, Any], Recorded[Any]] = ReactiveTest.on_next
on_completed = ReactiveTest.on_completed


def test_each_call_is_emitted_once_at_its_end_including_refused_calls() -> None:
    scheduler = TestScheduler()
    slow, refused = ToolCall(id="1", name="slow"), ToolCall(id="2", name="unknown")
    done = ToolCompleteEvent(call=slow, success=True, content="20 C")
    refusal = ToolCompleteEvent(call=refused, index=1, success=False, error="unknown tool", content="unknown tool")
    source = scheduler.create_hot_observable(
        on_next(210, ToolStartEvent(call=slow, idempotency_key="k")),
        on_next(220, refusal),
        on_next(230, ToolProgressEvent(call=slow, message="half", fraction=0.5)),
        on_next(240, done),
        on_completed(250),
    )

    seen = scheduler.start(lambda: source.pipe(tool_calls()))

    assert seen.messages == [on_next(220, refusal), on_next(240, done), on_completed(250)]
    assert source.subscriptions == [ReactiveTest.subscribe(200, 250)]
