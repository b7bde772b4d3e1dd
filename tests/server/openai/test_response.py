"""Response items for single events."""

from __future__ import annotations

from typing import Any

import pytest

from rxloop.protocol.events import (
    ContentCompleteEvent,
    ContentDeltaEvent,
    Event,
    LLMCallEvent,
    ToolCallDeltaEvent,
    ToolCompleteEvent,
)
from rxloop.protocol.messages import Citation, ToolCall
from rxloop.server.core.chat_fold import ChatFold
from rxloop.server.openai.response_fold import ResponseFold, ResponseInfo
from rxloop.server.openai.response_items import Json, ResponseId

CALL = ToolCall(id="0", name="weather", arguments={"city": "Oslo"}, raw='{"city": "Oslo"}')


def make_event(cls: type[Event], /, **fields: Any) -> Event:
    return cls(task_id="t", context_id="c", attempt=1, step="1", **fields)


def llm_call() -> Event:
    counts = {"iteration": 1, "message_count": 1, "tool_count": 0, "estimated_input_tokens": 1}
    return make_event(LLMCallEvent, model="m", **counts)


def test_call_answered_before_its_text_was_replaced_is_one_item() -> None:
    events: list[Json] = []
    chat = ChatFold(ResponseFold(ResponseInfo("m", "c", 0), ResponseId("t", 1), events.append).take)
    chat.take(llm_call())
    chat.take(make_event(ToolCompleteEvent, call=CALL, success=True, content="7"))
    chat.take(make_event(ContentDeltaEvent, delta="look."))
    chat.take(make_event(ContentCompleteEvent, content="I look.", tool_calls=[CALL]))
    done = [each["item"]["type"] for each in events if each["type"] == "response.output_item.done"]
    assert done == ["mcp_call", "message", "message"]


@pytest.mark.parametrize("live", [True, False])
def test_text_before_a_call_has_its_citations_live_and_from_the_log(live: bool) -> None:
    events: list[Json] = []
    fold = ResponseFold(ResponseInfo("m", "c", 0), ResponseId("t", 1), events.append)
    chat = ChatFold(fold.take)
    chat.take(llm_call())
    if live:
        chat.take(make_event(ContentDeltaEvent, delta="I look."))
        chat.take(make_event(ToolCallDeltaEvent, index=0, tool_call_id="0", name="weather", fragment=CALL.raw))
    pages = [Citation(url="https://example.com", start=2, end=6)]
    chat.take(make_event(ContentCompleteEvent, content="I look.", tool_calls=[CALL], citations=pages))
    [message] = fold.response()["output"]
    assert [each["url"] for each in message["content"][0]["annotations"]] == ["https://example.com"]
    kinds = [each["type"].removeprefix("response.") for each in events]
    assert kinds[-2:] == ["output_text.annotation.added", "output_item.done"]
