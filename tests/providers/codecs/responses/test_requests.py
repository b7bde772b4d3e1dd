"""Property tests that requests match the types of the openai SDK."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rxloop.errors import BadRequest
from rxloop.pipeline.requests import ModelRequest, ToolDefinition
from rxloop.protocol.messages import FilePart, ImagePart, Message, Part, TextPart, ToolCall
from rxloop.protocol.settings import ModelSettings
from support.vendors.responses import (
    call,
    check_request,
    encode,
    last_message,
    make_codec,
    read_events,
    reasoning,
    response,
    text,
)

LOOK = ToolDefinition("look", "Looks.", {"type": "object", "properties": {}}, strict=True)
IMAGE, PDF = ImagePart(data=b"png", media_type="image/png"), FilePart(data=b"%PDF", media_type="application/pdf")
NAMES = st.sampled_from(["look", "weird name.x", "", "n" * 200])
IDS = st.sampled_from(["0", "call_1", "toolu_" + "x" * 80, "", "a b"])
TEXTS = st.sampled_from(["", "hi", "½ 🙂", "{}"])
PARTS: st.SearchStrategy[list[Part]] = st.lists(
    st.one_of(
        st.builds(TextPart, text=TEXTS),
        st.sampled_from([IMAGE, PDF, ImagePart(url="https://e.org/a.png"), FilePart(url="https://e.org/a.pdf")]),
    ),
    max_size=3,
)
CALLS = st.builds(
    ToolCall.parse, id=IDS, name=NAMES, raw=st.sampled_from(["{}", '{"a": 1}', "not json", "", '{"input": "x"}'])
)
STATES: st.SearchStrategy[dict[str, Any] | None] = st.sampled_from(
    [
        None,
        {"anthropic_messages": [{"raw": {"type": "thinking"}}]},
        {"responses@api.openai.com": [{"raw": {"item": 0}}, {"raw": "no"}, 7]},
        {"responses@api.openai.com": [{"text": 2, "extra": {"item": 4, "part": "output_text/0"}}]},
        {"responses@api.openai.com": "nothing"},
    ]
)
ANSWER = last_message(read_events(response(reasoning("Hm."), text("hi"), call("look", "{}"))))
MESSAGES = st.lists(
    st.one_of(
        st.builds(Message.user, st.one_of(TEXTS, PARTS)),
        st.builds(Message.system, TEXTS),
        st.builds(Message.tool, IDS, st.one_of(TEXTS, PARTS)),
        st.builds(
            Message,
            role=st.just("assistant"),
            content=st.one_of(TEXTS, PARTS),
            tool_calls=st.lists(CALLS, max_size=2).map(tuple),
            provider_state=STATES,
            reasoning=st.sampled_from([None, "hm"]),
        ),
        st.just(ANSWER),
    ),
    max_size=6,
)
SETTINGS = st.builds(
    ModelSettings,
    temperature=st.sampled_from([None, 0.5]),
    top_p=st.sampled_from([None, 0.5]),
    max_tokens=st.sampled_from([None, 1, 1000]),
    tool_choice=st.sampled_from([None, "auto", "required", "look", "web_search"]),
    parallel_tool_calls=st.sampled_from([None, False]),
    seed=st.sampled_from([None, 1]),
    stop=st.sampled_from([None, ["x"]]),
    reasoning_effort=st.sampled_from([None, "none", "low"]),
    thinking_budget=st.sampled_from([None, 1000]),
    service_tier=st.sampled_from([None, "flex"]),
    server_tools=st.sampled_from([[], [{"type": "web_search"}]]),
)


@settings(max_examples=300, deadline=None)
@given(MESSAGES, SETTINGS, st.sampled_from(["gpt-5", "gpt-4o", "gpt-oss-20b", "openai/gpt-5"]), st.booleans())
def test_request_for_any_history_and_settings_matches_the_sdk_types(
    messages: list[Message], asked: ModelSettings, model: str, tools: bool
) -> None:
    request = ModelRequest(
        messages=messages,
        system=(Message.system("Be kind."),),
        tools=(LOOK,) if tools else (),
        settings=asked,
        response_schema={"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    )
    items = check_request(encode(request, make_codec(model)))["input"]
    calls = [item["call_id"] for item in items if item.get("type") == "function_call"]
    outputs = [item["call_id"] for item in items if item.get("type") == "function_call_output"]
    assert calls == sorted(set(calls), key=calls.index)
    assert sorted(calls) == sorted(outputs)
    assert items


def test_request_for_several_candidates_is_rejected() -> None:
    request = ModelRequest(messages=[Message.user("hi")], settings=ModelSettings(extra_body={"n": 2}))
    with pytest.raises(BadRequest, match="one answer"):
        encode(request)
