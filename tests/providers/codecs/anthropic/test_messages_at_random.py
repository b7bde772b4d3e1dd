"""Property tests of the Anthropic codec with random histories, settings and responses."""

from __future__ import annotations

from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from rxloop.errors import RxloopError
from rxloop.pipeline.requests import ModelRequest, ToolDefinition
from rxloop.protocol.events import ContentCompleteEvent, ContentDeltaEvent, LLMNoticeEvent, ThoughtDeltaEvent
from rxloop.protocol.messages import FilePart, ImagePart, Message, TextPart, ToolCall
from rxloop.protocol.settings import ModelSettings, PromptCache
from rxloop.providers.bounds import OutOfBounds
from support.vendors.claude import (
    block,
    call,
    check_request,
    encode,
    end,
    last_message,
    make_codec,
    read_answer,
    start,
    text,
)

WORDS = st.sampled_from(["", " ", "hi", "Straße 😀", "\n", "x" * 50])
IDS = st.sampled_from(["a", "b", "0", "functions.x:0", "é", "toolu_1", "x" * 80])
PARTS = st.one_of(
    st.builds(TextPart, text=WORDS),
    st.builds(ImagePart, data=st.binary(max_size=4), media_type=st.sampled_from(["image/png", "image/bmp"])),
    st.builds(
        FilePart,
        data=st.binary(max_size=4),
        media_type=st.sampled_from(["application/pdf", "text/csv", "a/b"]),
        filename=st.sampled_from([None, "", "a.pdf"]),
    ),
    st.builds(FilePart, url=st.sampled_from(["https://e.org/a.pdf", "data:text/plain,hi", "gs://b/c", "http://["])),
)
CONTENT = st.one_of(WORDS, st.lists(PARTS, max_size=3))
ARGUMENTS = st.dictionaries(st.text(max_size=3), st.one_of(st.none(), st.integers(), st.text(max_size=3)), max_size=2)
CALLS = st.builds(ToolCall, id=IDS, name=st.sampled_from(["look", "a.b", "", "é"]), arguments=ARGUMENTS)
RAW = st.sampled_from(
    [
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []},
        {"type": "redacted_thinking", "data": "x"},
    ]
)
PIECES = st.lists(
    st.one_of(
        st.builds(lambda value: {"raw": value}, RAW),
        st.just({"reasoning": 2, "extra": {"signature": "s"}}),
        st.builds(lambda size: {"text": size}, st.integers(0, 3)),
        st.builds(lambda place: {"call": place}, st.integers(0, 2)),
    ),
    max_size=4,
)
STATES = st.one_of(
    st.none(),
    st.builds(lambda pieces: {"anthropic": pieces}, PIECES),
    st.just({"openai": [1], "anthropic_container": "c"}),
)
MESSAGES = st.one_of(
    st.builds(Message.user, CONTENT),
    st.builds(Message.system, WORDS),
    st.builds(
        Message,
        role=st.just("assistant"),
        content=CONTENT,
        reasoning=st.sampled_from([None, "hm"]),
        tool_calls=st.lists(CALLS, max_size=3).map(tuple),
        provider_state=STATES,
    ),
    st.builds(Message.tool, IDS, CONTENT),
)
TOOLS = st.sampled_from([(), (ToolDefinition("look", "", {"type": "object"}, strict=True),)])
MODELS = st.sampled_from(
    ["claude-sonnet-4-5", "claude-opus-4-8", "claude-sonnet-4-6", "claude-3-haiku-20240307", "kimi"]
)
EFFORTS = st.sampled_from([None, "none", "minimal", "low", "medium", "high", "xhigh", "max"])
SETTINGS = st.builds(
    ModelSettings,
    temperature=st.one_of(st.none(), st.floats(0, 2)),
    top_p=st.one_of(st.none(), st.floats(0, 1)),
    max_tokens=st.one_of(st.none(), st.integers(1, 10**6)),
    tool_choice=st.sampled_from([None, "auto", "none", "required", "look"]),
    parallel_tool_calls=st.sampled_from([None, True, False]),
    seed=st.sampled_from([None, 1]),
    stop=st.sampled_from([None, ["x"], [" "]]),
    reasoning_effort=EFFORTS,
    thinking_budget=st.one_of(st.none(), st.integers(0, 10**5)),
    service_tier=st.sampled_from([None, "auto", "flex"]),
    prompt_cache=st.one_of(
        st.none(),
        st.builds(
            PromptCache,
            points=st.lists(st.one_of(st.sampled_from(["tools", "system", "newest"]), st.integers(-9, 9)), max_size=6),
            ttl=st.sampled_from(["5m", "1h"]),
        ),
    ),
)
SCHEMAS = st.sampled_from([None, {"type": "object", "properties": {}}, {"type": "object"}, {}])


@given(messages=st.lists(MESSAGES, max_size=8), model=MODELS, tools=TOOLS, chosen=SETTINGS, schema=SCHEMAS)
@settings(max_examples=300, deadline=None)
def test_request_is_valid_for_any_history_and_settings(
    messages: list[Message], model: str, tools: Any, chosen: ModelSettings, schema: Any
) -> None:
    request = ModelRequest(messages=messages, tools=tools, settings=chosen, response_schema=schema)
    encoded = encode(request, model=model)
    thinking = encoded.body.get("thinking", {})
    assert thinking.get("budget_tokens", 0) < encoded["max_tokens"]
    if thinking.get("type") == "enabled":
        assert encoded.body.get("temperature", 1) == 1
        assert encoded.body.get("tool_choice", {"type": "auto"})["type"] in ("auto", "none")
    # Encoding with cached messages yields the same bytes.
    by = make_codec(model)
    assert by.encode(request, lambda *_: None) == by.encode(request, lambda *_: None)


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.text(max_size=5), st.floats(allow_nan=False)),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=5), inner, max_size=2)),
    max_leaves=4,
)


def _mutate(event: Any, path: list[int], value: Any) -> Any:
    if not path or not isinstance(event, dict | list) or not event:
        return value
    if isinstance(event, list):
        place = path[0] % len(event)
        return [_mutate(each, path[1:], value) if n == place else each for n, each in enumerate(event)]
    key = sorted(event)[path[0] % len(event)]
    return {name: _mutate(each, path[1:], value) if name == key else each for name, each in event.items()}


EVENTS = [
    start(input_tokens=3),
    *block(0, {"type": "thinking", "thinking": "", "signature": ""}, {"type": "thinking_delta", "thinking": "h"}),
    *text(1, "a", "b"),
    *call(2, "t1", "look", '{"a":', "1}"),
    *block(3, {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}),
    *block(4, {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []}),
    *end("tool_use", output_tokens=4),
]


@given(
    changes=st.lists(
        st.tuples(st.integers(0, len(EVENTS) - 1), st.lists(st.integers(0, 9), max_size=3), VALUES), max_size=3
    ),
    order=st.lists(st.tuples(st.integers(0, len(EVENTS) - 1), st.integers(0, len(EVENTS) - 1)), max_size=2),
)
@settings(max_examples=400, deadline=None)
def test_reader_returns_an_answer_or_an_rxloop_error_for_any_events(
    changes: list[tuple[int, list[int], Any]], order: list[tuple[int, int]]
) -> None:
    events: list[Any] = list(EVENTS)
    for place, path, value in changes:
        events[place] = _mutate(events[place], path, value)
    for one, other in order:
        events[one], events[other] = events[other], events[one]
    answer = read_answer(*events)
    assert answer.error is None or isinstance(answer.error, RxloopError | OutOfBounds)
    if answer.error is not None:
        return
    complete = answer.events[-1]
    assert isinstance(complete, ContentCompleteEvent)
    assert complete.content == "".join(each.delta for each in answer.events if isinstance(each, ContentDeltaEvent))
    thought = "".join(each.delta for each in answer.events if isinstance(each, ThoughtDeltaEvent))
    assert (complete.reasoning or "") == thought
    assert len([each for each in answer.events if isinstance(each, LLMNoticeEvent)]) <= 25
    history = [Message.user("hi"), last_message(answer), Message.user("go on")]
    body = orjson.loads(make_codec().encode(ModelRequest(messages=history), lambda *_: None))
    raw = [each["raw"] for each in (complete.provider_state or {}).get("anthropic", []) if "raw" in each]
    if not raw:
        check_request(body)


@given(st.binary(max_size=60))
@settings(max_examples=200, deadline=None)
def test_reader_returns_an_answer_or_an_rxloop_error_for_any_bytes(data: bytes) -> None:
    for whole in (False, True):
        answer = read_answer(data, whole=whole)
        assert answer.error is None or isinstance(answer.error, RxloopError | OutOfBounds)
