"""What becomes of single events in a response."""

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
from rxloop.server.openai.response_fold import About, ResponseFold
from rxloop.server.openai.response_items import Json, ResponseId

CALL = ToolCall(id="0", name="weather", arguments={"city": "Oslo"}, raw='{"city": "Oslo"}')


def at(cls: type[Event], /, **fields: Any) -> Event:
    return cls(task_id="t", context_id="c", attempt=1, step="1", **fields)


def llm() -> Event:
    counts = {"iteration": 1, "message_count": 1, "tool_count": 0, "estimated_input_tokens": 1}
    return at(LLMCallEvent, model="m", **counts)


def test_a_call_that_was_answered_before_a_torn_text_was_taken_back_is_one_item() -> None:
    told: list[Json] = []
    chat = ChatFold(ResponseFold(About("m", "c", 0), ResponseId("t", 1), told.append).take)
    chat.take(llm())
    chat.take(at(ToolCompleteEvent, call=CALL, success=True, content="7"))
    chat.take(at(ContentDeltaEvent, delta="look."))
    chat.take(at(ContentCompleteEvent, content="I look.", tool_calls=[CALL]))
    done = [each["item"]["type"] for each in told if each["type"] == "response.output_item.done"]
    assert done == ["mcp_call", "message", "message"]


@pytest.mark.parametrize("live", [True, False])
def test_a_text_before_a_call_says_what_it_rests_on_whether_it_came_in_pieces_or_whole(live: bool) -> None:
    told: list[Json] = []
    fold = ResponseFold(About("m", "c", 0), ResponseId("t", 1), told.append)
    chat = ChatFold(fold.take)
    chat.take(llm())
    if live:
        chat.take(at(ContentDeltaEvent, delta="I look."))
        chat.take(at(ToolCallDeltaEvent, index=0, tool_call_id="0", name="weather", fragment=CALL.raw))
    pages = [Citation(url="https://example.com", start=2, end=6)]
    chat.take(at(ContentCompleteEvent, content="I look.", tool_calls=[CALL], citations=pages))
    [message] = fold.response()["output"]
    assert [each["url"] for each in message["content"][0]["annotations"]] == ["https://example.com"]
    kinds = [each["type"].removeprefix("response.") for each in told]
    assert kinds[-2:] == ["output_text.annotation.added", "output_item.done"]
