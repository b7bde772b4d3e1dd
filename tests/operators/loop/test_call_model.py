from collections.abc import Callable
from typing import Any, cast

import pytest
from pydantic import ValidationError
from reactivex import Observable
from reactivex.testing import ReactiveTest, Recorded, TestScheduler

from rxloop.errors import ContextLengthExceeded, RateLimited
from rxloop.operators.loop.call_model import call_model
from rxloop.pipeline.requests import IterationEnd, ModelRequest, ToolDefinition, ToolRequest
from rxloop.protocol.events import (
    ContentCompleteEvent,
    ContentDeltaEvent,
    LLMCallEvent,
    LLMFailedEvent,
    ThoughtStreamEvent,
    UsageEvent,
)
from rxloop.protocol.messages import Message
from rxloop.providers.codecs.text import make_text_delta
from rxloop.stream.sources import emit
from support.fake_host import make_info
from support.runs import FakeRequestHost, context, tool_call

on_next: Callable[[int, Any], Recorded[Any]] = ReactiveTest.on_next
on_completed, on_error, subscribe = ReactiveTest.on_completed, ReactiveTest.on_error, ReactiveTest.subscribe

OPEN = ToolDefinition("f", "", {"type": "object"})


class ColdModel(FakeRequestHost):
    """Run whose model answers with a cold observable."""

    name = "cold"

    def __init__(self, *answers: Observable[Any]) -> None:
        super().__init__()
        self.info = make_info(model=self)
        self.answers = list(answers)
        self.requests: list[ModelRequest] = []

    def call(self, request: ModelRequest) -> Observable[Any]:
        self.requests.append(request)
        return self.answers.pop(0)


def make_request(host: FakeRequestHost, step: str = "1", **fields: Any) -> ModelRequest:
    ctx = context(host, step=step, branch=fields.get("branch"))
    return ModelRequest(messages=[Message.user("Hi")], step=step, ctx=ctx, **fields)


def run(answer: list[Recorded[Any]], disposed: int = 1000, **fields: Any) -> tuple[list[Any], Any, ColdModel]:
    scheduler = TestScheduler()
    cold = scheduler.create_cold_observable(*answer)
    host = ColdModel(cold)
    end = IterationEnd(1, context(host))
    xs = scheduler.create_hot_observable(
        on_next(210, make_request(host, **fields)), on_next(210, end), on_completed(210)
    )
    seen = scheduler.start(lambda: call_model()(xs), disposed=disposed)
    return seen.messages, cold.subscriptions, host


def events_with_times(messages: list[Any]) -> list[tuple[int, str]]:
    return [
        (message.time, getattr(getattr(message.value, "value", None), "kind", None) or type_name(message))
        for message in messages
    ]


def type_name(message: Any) -> str:
    return type(message.value.value).__name__ if message.value.kind == "N" else message.value.kind


def test_call_is_announced_and_its_events_pass_at_once() -> None:  # L82
    messages, subscriptions, _ = run(
        [
            on_next(10, ContentDeltaEvent(delta="He")),
            on_next(20, ThoughtStreamEvent(thought_id="a", content="a")),
            on_next(30, UsageEvent(input_tokens=1)),
            on_next(40, ContentCompleteEvent(content="He")),
            on_completed(50),
        ]
    )

    assert events_with_times(messages) == [
        (210, "llm-call"),
        (210, "IterationEnd"),
        (220, "content-delta"),
        (230, "thought-stream"),
        (240, "usage"),
        (250, "content-complete"),
        (260, "C"),
    ]
    assert subscriptions == [subscribe(210, 260)]
    assert all(
        message.value.value.step == "1"
        for message in messages
        if hasattr(message.value, "value") and hasattr(message.value.value, "step")
    )


def test_announcement_counts_messages_tools_and_estimated_tokens() -> None:  # L82
    messages, _, _ = run(
        [on_completed(10)],
        system=(Message.system("s" * 40),),
        tail=(Message.system("t" * 40),),
        tools=(OPEN,),
        iteration=3,
    )

    call: LLMCallEvent = messages[0].value.value
    assert call.iteration == 3
    assert call.model == "cold"
    assert call.message_count == 3
    assert call.tool_count == 1
    assert call.step == "1"
    assert 20 <= call.estimated_input_tokens <= 40


@pytest.mark.parametrize("count", [12.5, float("nan")])
def test_estimate_that_is_not_an_integer_is_an_error(count: Any) -> None:
    messages, _, _ = run([on_completed(10)], estimate=count)

    [message] = messages
    assert isinstance(message.value.exception, ValidationError)


def test_tool_calls_become_requests_after_their_message() -> None:
    complete = ContentCompleteEvent(tool_calls=[tool_call("f", "a"), tool_call("g", "b"), tool_call("f", "a")])
    messages, _, _ = run([on_next(10, complete), on_completed(20)], tools=(OPEN,))

    requests: list[ToolRequest] = [m.value.value for m in messages if type_name(m) == "ToolRequest"]
    assert [(each.call.name, each.slot) for each in requests] == [("f", ("1", 0)), ("g", ("1", 1)), ("f", ("1", 2))]
    assert all(each.ctx.call is each.call for each in requests)
    assert all(each.offered == (OPEN,) for each in requests)


def test_canceled_message_requests_no_tools() -> None:
    complete = ContentCompleteEvent(tool_calls=[tool_call()], finish_reason="canceled")
    messages, _, _ = run([on_next(10, complete), on_completed(20)])

    assert "ToolRequest" not in [type_name(message) for message in messages]


def test_events_of_a_branch_carry_its_name() -> None:
    messages, _, _ = run(
        [on_next(10, ContentCompleteEvent(tool_calls=[tool_call()])), on_completed(20)], step="tot/1/1", branch="tot/1"
    )

    call, _, complete, tool_request, _ = [cast("Any", getattr(message.value, "value", None)) for message in messages]
    assert (call.step, call.branch) == (complete.step, complete.branch) == ("tot/1/1", "tot/1")
    assert tool_request.ctx.branch == "tot/1"


def test_context_overflow_becomes_an_event() -> None:
    messages, _, host = run([on_error(10, ContextLengthExceeded("too long", status=400))])

    failed: LLMFailedEvent = messages[2].value.value
    assert failed.kind == "llm-failed"
    assert failed.describe() == f"{failed.error.code}: {failed.error.message}"
    assert failed.step == "1"
    assert failed.error.code == "context_length"
    assert failed.retryable is True
    assert messages[3] == on_completed(220)
    assert host.abandoned == []


def test_other_provider_failures_become_errors_of_the_stream() -> None:  # L81
    failure = RateLimited("slow down")
    messages, _, host = run([on_next(5, ContentDeltaEvent(delta="a")), on_error(10, failure)])

    assert messages[-1] == on_error(220, failure)
    assert host.abandoned == []


def test_disposal_closes_the_model_stream_and_reports_an_abandoned_call() -> None:  # L54
    messages, subscriptions, host = run([on_next(10, ContentDeltaEvent(delta="a")), on_completed(500)], disposed=300)

    assert [name for _, name in events_with_times(messages)] == ["llm-call", "IterationEnd", "content-delta"]
    assert subscriptions == [subscribe(210, 300)]
    assert [ctx.step for ctx in host.abandoned] == ["1"]


def test_step_with_a_logged_answer_calls_no_model() -> None:
    host = ColdModel()
    host.earlier.messages["1"] = ContentCompleteEvent(
        step="1", attempt=1, seq=4, tool_calls=[tool_call("f"), tool_call("g")]
    )
    seen: list[Any] = []

    call_model()(emit(make_request(host))).subscribe(seen.append)

    assert host.requests == []
    assert seen[0] is host.earlier.messages["1"]
    assert [each.slot for each in seen[1:]] == [("1", 0), ("1", 1)]


def test_model_is_not_called_before_subscription() -> None:  # L52
    host = ColdModel(emit(), emit())
    out = call_model()(emit(make_request(host)))
    assert host.requests == []

    out.subscribe()

    assert len(host.requests) == 1


@pytest.mark.parametrize("branch", [None, "b"])
def test_event_object_that_a_provider_emits_twice_becomes_two_events(branch: str | None) -> None:
    shared = [make_text_delta(ContentDeltaEvent, "Hi", 0, None), ContentCompleteEvent(content="Hi")]
    host = ColdModel(emit(*shared), emit(*shared))
    seen: list[Any] = []

    def publish(signal: Any) -> None:
        vars(signal)["attempt"] = 1  # the run stamps events in the same way
        seen.append(signal)

    for step, where in (("1", None), ("2", branch)):
        call_model()(emit(make_request(host, step, branch=where))).subscribe(publish)

    assert [(event.kind, event.step, event.branch) for event in seen] == [
        ("llm-call", "1", None),
        ("content-delta", "1", None),
        ("content-complete", "1", None),
        ("llm-call", "2", branch),
        ("content-delta", "2", branch),
        ("content-complete", "2", branch),
    ]
