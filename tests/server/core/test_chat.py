"""What has begun in a chat ends once, in whatever way a run goes."""

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


def at(cls: type[Event], /, step: str = "1", **fields: Any) -> Event:
    return cls(task_id="t", context_id="c", attempt=1, step=step, **fields)


def llm(step: str = "1") -> Event:
    return at(LLMCallEvent, step, iteration=1, model="m", message_count=1, tool_count=0, estimated_input_tokens=1)


def told(*events: Event) -> list[str]:
    """What a door is told, each change in a few letters."""
    found: list[Any] = []
    rx.from_iterable(events).pipe(chat()).subscribe(found.append)
    return [_written(each) for each in found]


def _written(item: Any) -> str:
    if isinstance(item, Event):
        return item.kind
    rest: Sequence[Any] = item[1:]
    return " ".join([type(item).__name__, *(each for each in rest if isinstance(each, str))])


def test_a_text_begins_once_and_ends_once() -> None:
    assert told(
        llm(),
        at(ContentDeltaEvent, delta="He"),
        at(ContentDeltaEvent, delta="y"),
        at(UsageEvent, input_tokens=1),
        at(ContentCompleteEvent, content="Hey"),
    ) == [
        "StepBegan t:1",
        "TextBegan t:1",
        "TextDelta t:1 He",
        "TextDelta t:1 y",
        "usage",
        "TextEnded t:1",
        "StepEnded t:1 complete",
    ]


def test_a_reader_without_deltas_gets_whole_messages() -> None:
    assert told(
        llm(),
        at(ThoughtStreamEvent, content="Hm.", source="reasoning"),
        at(ContentCompleteEvent, content="Hey", reasoning="Hm.", tool_calls=[CALL]),
        at(ToolStartEvent, call=CALL, idempotency_key="k"),
        at(ToolCompleteEvent, call=CALL, success=True, content="sunny"),
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


def test_a_reader_that_missed_deltas_gets_the_rest_of_the_text() -> None:
    assert told(llm(), at(ContentDeltaEvent, delta="He"), at(ContentCompleteEvent, content="Hey you"))[2:4] == [
        "TextDelta t:1 He",
        "TextDelta t:1 y you",
    ]


def test_what_a_second_try_of_a_step_makes_void_is_told() -> None:
    assert told(
        llm(),
        at(ContentDeltaEvent, delta="wrong"),
        at(ToolCallDeltaEvent, index=0, tool_call_id="0", name="weather", fragment='{"ci'),
        llm(),
        at(ContentDeltaEvent, delta="right"),
        at(ContentCompleteEvent, content="right"),
    ) == [
        "StepBegan t:1",
        "TextBegan t:1",
        "TextDelta t:1 wrong",
        "TextEnded t:1",
        "CallBegan t:1:0 weather t:1",
        'CallDelta t:1:0 {"ci',
        "CallVoided t:1:0",
        "StepEnded t:1 void",
        "StepBegan t:1:2",
        "TextBegan t:1:2",
        "TextDelta t:1:2 right",
        "TextEnded t:1:2",
        "StepEnded t:1:2 complete",
    ]


def test_a_message_that_comes_out_differently_makes_void_what_was_shown() -> None:
    assert told(llm(), at(ContentDeltaEvent, delta="a secret"), at(ContentCompleteEvent, content="nothing"))[-6:] == [
        "StepEnded t:1 void",
        "StepBegan t:1:2",
        "TextBegan t:1:2",
        "TextDelta t:1:2 nothing",
        "TextEnded t:1:2",
        "StepEnded t:1:2 complete",
    ]


def test_a_reader_that_comes_in_the_middle_of_arguments_gets_all_of_them_under_the_same_id() -> None:
    assert told(
        llm(),
        at(ToolCallDeltaEvent, index=0, tool_call_id="0", name="weather", fragment='"Oslo"}'),
        at(ContentCompleteEvent, content="", tool_calls=[CALL]),
        at(ToolStartEvent, index=0, call=CALL, idempotency_key="k"),
    )[2:] == [
        'CallDelta t:1:0 "Oslo"}',
        "CallVoided t:1:0",
        "StepEnded t:1 void",
        "StepBegan t:1:2",
        "CallBegan t:1:0 weather t:1:2",
        'CallDelta t:1:0 {"city": "Oslo"}',
        "CallEnded t:1:0",
        "StepEnded t:1:2 complete",
        "CallStarted t:1:0",
    ]


def test_a_call_that_was_answered_before_its_message_was_void_has_its_result_again() -> None:
    assert told(
        llm(),
        at(ToolStartEvent, index=0, call=CALL, idempotency_key="k"),
        at(ToolCompleteEvent, index=0, call=CALL, content="Rain", success=True),
        at(ContentDeltaEvent, delta="look."),
        at(ContentCompleteEvent, content="Let me look.", tool_calls=[CALL]),
    )[-10:] == [
        "StepEnded t:1 void",
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


def test_arguments_that_were_written_in_another_way_are_not_void() -> None:
    written = at(ToolCallDeltaEvent, index=0, tool_call_id="0", name="weather", fragment='{"city":"Oslo"}')
    assert told(llm(), written, at(ContentCompleteEvent, content="", tool_calls=[CALL]))[-3:] == [
        'CallDelta t:1:0 {"city":"Oslo"}',
        "CallEnded t:1:0",
        "StepEnded t:1 complete",
    ]


def test_a_reader_that_comes_in_the_middle_of_reasoning_gets_all_of_it() -> None:
    def thought(number: int, content: str) -> Event:
        return at(ThoughtStreamEvent, thought_id=str(number), content=content, source="reasoning")

    assert told(
        llm(),
        thought(1, "First."),
        at(ThoughtDeltaEvent, delta="me see.\n"),
        thought(2, "Let me see."),
        at(ContentDeltaEvent, delta="Hey"),
        at(ContentCompleteEvent, content="Hey", reasoning="First.Let me see."),
    )[-12:] == [
        "StepEnded t:1 void",
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


def test_the_calls_of_two_steps_are_told_apart_although_the_vendor_counts_from_0() -> None:
    found = told(
        llm(),
        at(ContentCompleteEvent, tool_calls=[CALL]),
        at(ToolCompleteEvent, call=CALL, success=True, content="a"),
        llm("2"),
        at(ContentCompleteEvent, "2", tool_calls=[CALL]),
        at(ToolCompleteEvent, "2", call=CALL, success=True, content="b"),
    )
    assert [each for each in found if each.startswith("CallResult")] == ["CallResult t:1:0", "CallResult t:2:0"]


def test_a_call_keeps_its_place_beside_one_that_is_not_for_clients() -> None:
    hidden = ToolCall(id="1", name="secret", hidden=True)
    found = told(
        llm(),
        at(ToolCallDeltaEvent, index=0, tool_call_id="1", name="secret", fragment="{}", hidden=True),
        at(ToolCallDeltaEvent, index=1, tool_call_id="0", name="weather", fragment='{"city": "Oslo"}'),
        at(ContentCompleteEvent, tool_calls=[hidden, CALL]),
        at(ToolStartEvent, call=hidden, hidden=True, idempotency_key="k"),
        at(ToolCompleteEvent, call=hidden, hidden=True, success=True, content="x"),
        at(ToolCompleteEvent, call=CALL, index=1, success=True, content="a"),
    )
    assert found == [
        "StepBegan t:1",
        "CallBegan t:1:1 weather t:1",
        'CallDelta t:1:1 {"city": "Oslo"}',
        "CallEnded t:1:1",
        "StepEnded t:1 complete",
        "CallResult t:1:1",
    ]


def test_text_after_a_call_is_one_more_piece_of_the_same_message() -> None:
    found = told(
        llm(),
        at(ContentDeltaEvent, delta="I look. "),
        at(ToolCallDeltaEvent, index=0, tool_call_id="0", name="weather", fragment='{"city": "Oslo"}'),
        at(ContentDeltaEvent, delta="Wait."),
        at(ContentCompleteEvent, content="I look. Wait.", tool_calls=[CALL]),
    )
    assert [each for each in found if each.startswith("Text")] == [
        "TextBegan t:1",
        "TextDelta t:1 I look. ",
        "TextEnded t:1",
        "TextBegan t:1",
        "TextDelta t:1 Wait.",
        "TextEnded t:1",
    ]


def test_reasoning_that_goes_on_after_the_text_has_an_id_of_its_own() -> None:
    found = told(
        llm(),
        at(ThoughtDeltaEvent, delta="Hm. "),
        at(ContentDeltaEvent, delta="A"),
        at(ThoughtDeltaEvent, delta="Well."),
        at(ThoughtStreamEvent, content="Hm. Well.", source="reasoning"),
        at(ContentCompleteEvent, content="A", reasoning="Hm. Well."),
    )
    assert [each for each in found if each.startswith("ReasoningDelta")] == [
        "ReasoningDelta t:1:reasoning Hm. ",
        "ReasoningDelta t:1:reasoning:2 Well.",
    ]


def test_a_tool_that_starts_early_has_its_call_complete_before_the_message() -> None:
    found = told(
        llm(),
        at(ToolCallDeltaEvent, index=0, tool_call_id="0", name="weather", fragment='{"city": "Oslo"}'),
        at(ToolStartEvent, call=CALL, idempotency_key="k"),
        at(ContentCompleteEvent, tool_calls=[CALL]),
        at(ToolCompleteEvent, call=CALL, success=True, content="a"),
    )
    assert found == [
        "StepBegan t:1",
        "CallBegan t:1:0 weather t:1",
        'CallDelta t:1:0 {"city": "Oslo"}',
        "CallEnded t:1:0",
        "CallStarted t:1:0",
        "StepEnded t:1 complete",
        "CallResult t:1:0",
    ]


def test_what_is_open_ends_before_the_attempt_does() -> None:
    assert told(
        llm(),
        at(ContentDeltaEvent, delta="He"),
        StatusUpdateEvent(task_id="t", attempt=1, state="failed", final=True, reason="error"),
    ) == [
        "StepBegan t:1",
        "TextBegan t:1",
        "TextDelta t:1 He",
        "TextEnded t:1",
        "StepEnded t:1 canceled",
        "status-update",
    ]


def test_a_message_that_was_cancelled_is_told_as_such() -> None:
    found = told(
        llm(), at(ContentDeltaEvent, delta="He"), at(ContentCompleteEvent, content="He", finish_reason="canceled")
    )
    assert found[-1] == "StepEnded t:1 canceled"
