"""Conversion of run events to chat changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import reactivex as rx

from rxloop.protocol.events import (
    ContentCompleteEvent,
    ContentDeltaEvent,
    Event,
    LLMCallEvent,
    StatusUpdateEvent,
    ThoughtDeltaEvent,
    ThoughtStreamEvent,
    ToolCallDeltaEvent,
    ToolCompleteEvent,
    ToolStartEvent,
    UsageEvent,
)
from rxloop.protocol.messages import ToolCall
from rxloop.server.core.chat_fold import chat

CALL = ToolCall(id="0", name="weather", arguments={"city": "Oslo"}, raw='{"city": "Oslo"}')


def make_event(cls: type[Event], /, step: str = "1", **fields: Any) -> Event:
    return cls(task_id="t", context_id="c", attempt=1, step=step, **fields)


def llm_call(step: str = "1") -> Event:
    return make_event(
        LLMCallEvent, step, iteration=1, model="m", message_count=1, tool_count=0, estimated_input_tokens=1
    )


def describe_items(*events: Event) -> list[str]:
    """Return short descriptions of the chat items for the events."""
    items: list[Any] = []
    rx.from_iterable(events).pipe(chat()).subscribe(items.append)
    return [_describe(each) for each in items]


def _describe(item: Any) -> str:
    if isinstance(item, Event):
        return item.kind
    fields: Sequence[Any] = item[1:]
    return " ".join([type(item).__name__, *(each for each in fields if isinstance(each, str))])


def test_text_starts_once_and_ends_once() -> None:
    assert describe_items(
        llm_call(),
        make_event(ContentDeltaEvent, delta="He"),
        make_event(ContentDeltaEvent, delta="y"),
        make_event(UsageEvent, input_tokens=1),
        make_event(ContentCompleteEvent, content="Hey"),
    ) == [
        "StepBegan t:1",
        "TextBegan t:1",
        "TextDelta t:1 He",
        "TextDelta t:1 y",
        "usage",
        "TextEnded t:1",
        "StepEnded t:1 complete",
    ]


def test_reader_without_deltas_gets_complete_messages() -> None:
    assert describe_items(
        llm_call(),
        make_event(ThoughtStreamEvent, content="Hm.", source="reasoning"),
        make_event(ContentCompleteEvent, content="Hey", reasoning="Hm.", tool_calls=[CALL]),
        make_event(ToolStartEvent, call=CALL, idempotency_key="k"),
        make_event(ToolCompleteEvent, call=CALL, success=True, content="sunny"),
    ) == [
        "StepBegan t:1",
        "ReasoningBegan t:1:reasoning",
        "ReasoningDelta t:1:reasoning Hm.",
        "ReasoningEnded t:1:reasoning",
        "TextBegan t:1",
        "TextDelta t:1 Hey",
        "TextEnded t:1",
        "CallBegan t:1:0 weather t:1",
        'CallDelta t:1:0 {"city": "Oslo"}',
        "CallEnded t:1:0",
        "StepEnded t:1 complete",
        "CallStarted t:1:0",
        "CallResult t:1:0",
    ]


def test_reader_that_missed_deltas_gets_the_rest_of_the_text() -> None:
    assert describe_items(
        llm_call(), make_event(ContentDeltaEvent, delta="He"), make_event(ContentCompleteEvent, content="Hey you")
    )[2:4] == [
        "TextDelta t:1 He",
        "TextDelta t:1 y you",
    ]


def test_items_of_a_failed_attempt_are_discarded() -> None:
    assert describe_items(
        llm_call(),
        make_event(ContentDeltaEvent, delta="wrong"),
        make_event(ToolCallDeltaEvent, index=0, tool_call_id="0", name="weather", fragment='{"ci'),
        llm_call(),
        make_event(ContentDeltaEvent, delta="right"),
        make_event(ContentCompleteEvent, content="right"),
    ) == [
        "StepBegan t:1",
        "TextBegan t:1",
        "TextDelta t:1 wrong",
        "TextEnded t:1",
        "CallBegan t:1:0 weather t:1",
        'CallDelta t:1:0 {"ci',
        "CallDiscarded t:1:0",
        "StepEnded t:1 discarded",
        "StepBegan t:1:2",
        "TextBegan t:1:2",
        "TextDelta t:1:2 right",
        "TextEnded t:1:2",
        "StepEnded t:1:2 complete",
    ]


def test_emitted_text_is_discarded_when_the_final_message_differs() -> None:
    assert describe_items(
        llm_call(), make_event(ContentDeltaEvent, delta="a secret"), make_event(ContentCompleteEvent, content="nothing")
    )[-6:] == [
        "StepEnded t:1 discarded",
        "StepBegan t:1:2",
        "TextBegan t:1:2",
        "TextDelta t:1:2 nothing",
        "TextEnded t:1:2",
        "StepEnded t:1:2 complete",
    ]


def test_reader_that_starts_within_arguments_gets_all_of_them_under_the_same_id() -> None:
    assert describe_items(
        llm_call(),
        make_event(ToolCallDeltaEvent, index=0, tool_call_id="0", name="weather", fragment='"Oslo"}'),
        make_event(ContentCompleteEvent, content="", tool_calls=[CALL]),
        make_event(ToolStartEvent, index=0, call=CALL, idempotency_key="k"),
    )[2:] == [
        'CallDelta t:1:0 "Oslo"}',
        "CallDiscarded t:1:0",
        "StepEnded t:1 discarded",
        "StepBegan t:1:2",
        "CallBegan t:1:0 weather t:1:2",
        'CallDelta t:1:0 {"city": "Oslo"}',
        "CallEnded t:1:0",
        "StepEnded t:1:2 complete",
        "CallStarted t:1:0",
    ]


def test_result_is_repeated_when_its_message_was_discarded() -> None:
    assert describe_items(
        llm_call(),
        make_event(ToolStartEvent, index=0, call=CALL, idempotency_key="k"),
        make_event(ToolCompleteEvent, index=0, call=CALL, content="Rain", success=True),
        make_event(ContentDeltaEvent, delta="look."),
        make_event(ContentCompleteEvent, content="Let me look.", tool_calls=[CALL]),
    )[-10:] == [
        "StepEnded t:1 discarded",
        "StepBegan t:1:2",
        "TextBegan t:1:2",
        "TextDelta t:1:2 Let me look.",
        "TextEnded t:1:2",
        "CallBegan t:1:0 weather t:1:2",
        'CallDelta t:1:0 {"city": "Oslo"}',
        "CallEnded t:1:0",
        "CallResult t:1:0",
        "StepEnded t:1:2 complete",
    ]


def test_arguments_with_different_formatting_are_not_discarded() -> None:
    delta = make_event(ToolCallDeltaEvent, index=0, tool_call_id="0", name="weather", fragment='{"city":"Oslo"}')
    assert describe_items(llm_call(), delta, make_event(ContentCompleteEvent, content="", tool_calls=[CALL]))[-3:] == [
        'CallDelta t:1:0 {"city":"Oslo"}',
        "CallEnded t:1:0",
        "StepEnded t:1 complete",
    ]


def test_reader_that_starts_within_reasoning_gets_all_of_it() -> None:
    def thought(number: int, content: str) -> Event:
        return make_event(ThoughtStreamEvent, thought_id=str(number), content=content, source="reasoning")

    assert describe_items(
        llm_call(),
        thought(1, "First."),
        make_event(ThoughtDeltaEvent, delta="me see.\n"),
        thought(2, "Let me see."),
        make_event(ContentDeltaEvent, delta="Hey"),
        make_event(ContentCompleteEvent, content="Hey", reasoning="First.Let me see."),
    )[-12:] == [
        "StepEnded t:1 discarded",
        "StepBegan t:1:2",
        "ReasoningBegan t:1:2:reasoning",
        "ReasoningDelta t:1:2:reasoning First.",
        "ReasoningEnded t:1:2:reasoning",
        "ReasoningBegan t:1:2:reasoning:2",
        "ReasoningDelta t:1:2:reasoning:2 Let me see.",
        "ReasoningEnded t:1:2:reasoning:2",
        "TextBegan t:1:2",
        "TextDelta t:1:2 Hey",
        "TextEnded t:1:2",
        "StepEnded t:1:2 complete",
    ]


def test_calls_of_two_steps_have_different_ids_although_the_vendor_ids_are_equal() -> None:
    items = describe_items(
        llm_call(),
        make_event(ContentCompleteEvent, tool_calls=[CALL]),
        make_event(ToolCompleteEvent, call=CALL, success=True, content="a"),
        llm_call("2"),
        make_event(ContentCompleteEvent, "2", tool_calls=[CALL]),
        make_event(ToolCompleteEvent, "2", call=CALL, success=True, content="b"),
    )
    assert [each for each in items if each.startswith("CallResult")] == ["CallResult t:1:0", "CallResult t:2:0"]


def test_call_keeps_its_index_next_to_a_hidden_call() -> None:
    hidden = ToolCall(id="1", name="secret", hidden=True)
    items = describe_items(
        llm_call(),
        make_event(ToolCallDeltaEvent, index=0, tool_call_id="1", name="secret", fragment="{}", hidden=True),
        make_event(ToolCallDeltaEvent, index=1, tool_call_id="0", name="weather", fragment='{"city": "Oslo"}'),
        make_event(ContentCompleteEvent, tool_calls=[hidden, CALL]),
        make_event(ToolStartEvent, call=hidden, hidden=True, idempotency_key="k"),
        make_event(ToolCompleteEvent, call=hidden, hidden=True, success=True, content="x"),
        make_event(ToolCompleteEvent, call=CALL, index=1, success=True, content="a"),
    )
    assert items == [
        "StepBegan t:1",
        "CallBegan t:1:1 weather t:1",
        'CallDelta t:1:1 {"city": "Oslo"}',
        "CallEnded t:1:1",
        "StepEnded t:1 complete",
        "CallResult t:1:1",
    ]


def test_text_after_a_call_belongs_to_the_same_message() -> None:
    items = describe_items(
        llm_call(),
        make_event(ContentDeltaEvent, delta="I look. "),
        make_event(ToolCallDeltaEvent, index=0, tool_call_id="0", name="weather", fragment='{"city": "Oslo"}'),
        make_event(ContentDeltaEvent, delta="Wait."),
        make_event(ContentCompleteEvent, content="I look. Wait.", tool_calls=[CALL]),
    )
    assert [each for each in items if each.startswith("Text")] == [
        "TextBegan t:1",
        "TextDelta t:1 I look. ",
        "TextEnded t:1",
        "TextBegan t:1",
        "TextDelta t:1 Wait.",
        "TextEnded t:1",
    ]


def test_reasoning_after_text_has_its_own_id() -> None:
    items = describe_items(
        llm_call(),
        make_event(ThoughtDeltaEvent, delta="Hm. "),
        make_event(ContentDeltaEvent, delta="A"),
        make_event(ThoughtDeltaEvent, delta="Well."),
        make_event(ThoughtStreamEvent, content="Hm. Well.", source="reasoning"),
        make_event(ContentCompleteEvent, content="A", reasoning="Hm. Well."),
    )
    assert [each for each in items if each.startswith("ReasoningDelta")] == [
        "ReasoningDelta t:1:reasoning Hm. ",
        "ReasoningDelta t:1:reasoning:2 Well.",
    ]


def test_early_tool_call_is_complete_before_its_message() -> None:
    items = describe_items(
        llm_call(),
        make_event(ToolCallDeltaEvent, index=0, tool_call_id="0", name="weather", fragment='{"city": "Oslo"}'),
        make_event(ToolStartEvent, call=CALL, idempotency_key="k"),
        make_event(ContentCompleteEvent, tool_calls=[CALL]),
        make_event(ToolCompleteEvent, call=CALL, success=True, content="a"),
    )
    assert items == [
        "StepBegan t:1",
        "CallBegan t:1:0 weather t:1",
        'CallDelta t:1:0 {"city": "Oslo"}',
        "CallEnded t:1:0",
        "CallStarted t:1:0",
        "StepEnded t:1 complete",
        "CallResult t:1:0",
    ]


def test_open_items_end_before_the_attempt() -> None:
    assert describe_items(
        llm_call(),
        make_event(ContentDeltaEvent, delta="He"),
        StatusUpdateEvent(task_id="t", attempt=1, state="failed", final=True, reason="error"),
    ) == [
        "StepBegan t:1",
        "TextBegan t:1",
        "TextDelta t:1 He",
        "TextEnded t:1",
        "StepEnded t:1 canceled",
        "status-update",
    ]


def test_canceled_message_is_reported_as_canceled() -> None:
    items = describe_items(
        llm_call(),
        make_event(ContentDeltaEvent, delta="He"),
        make_event(ContentCompleteEvent, content="He", finish_reason="canceled"),
    )
    assert items[-1] == "StepEnded t:1 canceled"
