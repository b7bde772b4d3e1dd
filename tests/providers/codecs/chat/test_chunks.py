from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from rxloop.errors import (
    ContextLengthExceeded,
    ProviderConnectionError,
    ProviderError,
    ProviderProtocolError,
    RateLimited,
)
from rxloop.errors import ServerError as VendorFailed
from rxloop.protocol.events import (
    ContentCompleteEvent,
    ContentDeltaEvent,
    Event,
    ThoughtDeltaEvent,
    ThoughtStreamEvent,
    ToolCallDeltaEvent,
    UsageEvent,
)
from rxloop.protocol.messages import Usage
from rxloop.providers.bounds import Bounds
from rxloop.providers.codecs.chat.response import ChatReader
from rxloop.providers.codecs.draft import MessageDraft
from support.http_server import delta
from support.processes.counters import measure_peak_memory
from support.vendors.chat_chunks import WHERE, call_delta, call_deltas, read_chunks, read_message, read_whole


@pytest.mark.parametrize(
    ("raw", "finish"),
    [("stop", "stop"), (None, "stop"), ("eos", "stop"), ("length", "length"), ("sensitive", "content_filter")],
)
def test_finish_reason_is_normalised_and_the_raw_value_is_kept(raw: str | None, finish: str) -> None:
    done = read_message(delta(content="Hi"), delta(raw))
    assert (done.finish_reason, done.raw_finish_reason) == (finish, raw)


def test_truncated_message_with_calls_has_the_finish_reason_length() -> None:
    assert read_message(call_deltas(call_delta(0, "a", "look", '{"x')), delta("length")).finish_reason == "length"


def test_content_is_not_stripped() -> None:
    # L61
    events = read_chunks(delta(content="\n "), delta(content=" x "), delta("stop", content="\n"))
    assert [e.delta for e in events if isinstance(e, ContentDeltaEvent)] == ["\n ", " x ", "\n"]
    assert events[-1].content == "\n  x \n"  # pyright: ignore[reportAttributeAccessIssue]


def test_deltas_are_numbered_and_empty_deltas_are_omitted() -> None:
    events = read_chunks(
        delta(role="assistant", content=""), delta(content="a"), delta(content=None), delta(content="b")
    )
    assert [(e.index, e.delta) for e in events if isinstance(e, ContentDeltaEvent)] == [(0, "a"), (1, "b")]


def test_last_usage_replaces_earlier_ones() -> None:
    # L64
    def chunk(usage: Any, **fields: Any) -> dict[str, Any]:
        return {**delta(content="x"), "usage": usage, **fields}

    read_details = {"cached_tokens": 4, "cache_write_tokens": 3}
    make_details = {"prompt_tokens_details": read_details, "completion_tokens_details": {"reasoning_tokens": 2}}
    events = read_chunks(
        chunk({"prompt_tokens": 9, "completion_tokens": 1}),
        chunk(None, x_groq={"usage": {"prompt_tokens": 9, "completion_tokens": 2}}),
        {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3, "cost": 0.1, **make_details}},
        chunk(None),
    )
    assert [e.usage for e in events if isinstance(e, UsageEvent)] == [
        Usage(input_tokens=9, output_tokens=3, cached_tokens=4, cache_write_tokens=3, reasoning_tokens=2)
    ]
    assert [type(e) for e in events[-2:]] == [UsageEvent, ContentCompleteEvent]


@pytest.mark.parametrize("count", [-5, 1e40, 1e308, "many", [], None])
def test_invalid_token_count_is_ignored(count: Any) -> None:
    events = read_chunks({**delta(content="x"), "usage": {"prompt_tokens": count, "completion_tokens": 3}})
    assert [e.usage for e in events if isinstance(e, UsageEvent)] == [Usage(output_tokens=3)]
    assert [e.content for e in events if isinstance(e, ContentCompleteEvent)] == ["x"]


def test_missing_usage_emits_no_usage_event() -> None:
    # L64
    assert not [e for e in read_chunks(delta(content="x")) if isinstance(e, UsageEvent)]


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_content": "hmm"},
        {"reasoning": "hmm"},
        {"reasoning_details": [{"type": "reasoning.text", "text": "hmm", "index": 0}]},
        {"reasoning_details": [{"type": "reasoning.summary", "summary": "hmm", "index": 0}]},
        {"reasoning": "hmm", "reasoning_details": [{"type": "reasoning.text", "text": "hmm", "index": 0}]},
        {"reasoning_content": "hmm", "reasoning": "hmm", "content": ""},
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hmm"}]}]},
    ],
)
def test_reasoning_in_any_field_is_read_once(fields: dict[str, Any]) -> None:
    # L65
    events = read_chunks(delta(**fields), delta(**fields), delta(content="Hi"), delta("stop"), step="3")
    assert [(e.index, e.delta) for e in events if isinstance(e, ThoughtDeltaEvent)] == [(0, "hmm"), (1, "hmm")]
    (thought,) = [e for e in events if isinstance(e, ThoughtStreamEvent)]
    assert (thought.content, thought.source, thought.thought_id) == ("hmmhmm", "reasoning", "3.reasoning")
    done = events[-1]
    assert isinstance(done, ContentCompleteEvent)
    assert (done.content, done.reasoning) == ("Hi", "hmmhmm")


def test_signed_reasoning_is_stored_for_the_next_request_and_not_shown() -> None:
    def make_details(*items: dict[str, Any]) -> dict[str, Any]:
        return delta(reasoning_details=list(items))

    events = read_chunks(
        make_details({"type": "reasoning.text", "index": 0, "text": "hm"}),
        make_details({"type": "reasoning.text", "index": 0, "text": "m", "signature": "sig"}),
        make_details({"type": "reasoning.encrypted", "index": 1, "data": "opaque"}),
        delta(content="Hi"),
    )
    assert [e.delta for e in events if isinstance(e, ThoughtDeltaEvent)] == ["hm", "m"]
    done = events[-1]
    assert isinstance(done, ContentCompleteEvent)
    assert done.provider_state == {
        "reasoning_details": [
            {"type": "reasoning.text", "index": 0, "text": "hmm", "signature": "sig"},
            {"type": "reasoning.encrypted", "index": 1, "data": "opaque"},
        ]
    }


def test_error_next_to_the_last_text_fails_the_call_and_keeps_the_text() -> None:
    # L66
    events: list[Event] = []
    answer = ChatReader(MessageDraft(events.append, "1", WHERE))
    bad = {**delta(content="lo"), "error": {"code": 429, "message": "slow down"}}
    with pytest.raises(RateLimited, match="slow down") as caught:
        answer.feed([orjson.dumps(delta(content="Hel")), orjson.dumps(bad), orjson.dumps(delta(content="never"))])
    assert caught.value.retryable
    assert [e.delta for e in events if isinstance(e, ContentDeltaEvent)] == ["Hel", "lo"]


@pytest.mark.parametrize(
    ("chunk", "error"),
    [
        ({"error": "it broke"}, VendorFailed),
        ({"object": "error", "message": "the prompt exceeds the context length"}, ContextLengthExceeded),
        (delta("network_error"), VendorFailed),
        (
            {"choices": [{"delta": {}, "finish_reason": "error", "error": {"code": 502, "message": "bad gateway"}}]},
            VendorFailed,
        ),
        ([1], ProviderProtocolError),
    ],
)
def test_error_at_any_position_is_a_provider_error(chunk: Any, error: type[Exception]) -> None:
    # L66
    with pytest.raises(error):
        read_chunks(chunk)


def test_end_without_finish_reason_and_done_is_a_connection_error() -> None:
    # L66
    with pytest.raises(ProviderConnectionError, match="cut short") as caught:
        read_chunks(delta(content="Hel"), done=False)
    assert caught.value.retryable
    assert read_chunks(delta("stop", content="Hello"), done=False)
    assert read_chunks(delta(content="Hello"), done=True)


def test_partial_event_at_the_end_is_a_connection_error() -> None:
    # L66
    answer = ChatReader(MessageDraft([].append, "1", WHERE))
    with pytest.raises(ProviderConnectionError, match="cut short"):
        answer.feed_last([b'{"choices": [{"del'])


def test_only_the_first_choice_is_read() -> None:
    other = {"choices": [{"index": 1, "delta": {"content": "no"}, "finish_reason": "stop"}]}
    assert read_message(delta(content="yes"), other).content == "yes"


def test_single_surrogate_is_replaced() -> None:
    events: list[Event] = []
    answer = ChatReader(MessageDraft(events.append, "1", WHERE))
    answer.feed([b'{"choices":[{"delta":{"content":"a\\ud83d"},"finish_reason":"stop"}]}'])
    # The second half may follow.
    assert [e.delta for e in events if isinstance(e, ContentDeltaEvent)] == ["a"]
    answer.complete()
    assert [e.delta for e in events if isinstance(e, ContentDeltaEvent)] == ["a", "\ufffd"]


def test_refusal_becomes_the_text_of_the_answer() -> None:
    assert read_message(delta(refusal="I can't"), delta("stop", refusal=".")).content == "I can't."


def test_answer_without_streaming_has_the_same_result() -> None:
    function = {"name": "look", "arguments": '{"n":1}'}
    body = {
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "Hi",
                    "reasoning": "hmm",
                    "tool_calls": [{"id": "0", "function": function}, {"id": "0", "function": function}],
                    "function_call": {},
                },
                "finish_reason": "",
            },
            {"index": 1, "message": {"content": "other"}, "finish_reason": "stop"},
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4},
    }
    events = read_whole(b"\n  \n" + orjson.dumps(body))
    done = events[-1]
    assert isinstance(done, ContentCompleteEvent)
    assert (done.content, done.reasoning, done.finish_reason, done.raw_finish_reason) == ("Hi", "hmm", "tool_calls", "")
    assert [(call.id, call.arguments) for call in done.tool_calls] == [("0", {"n": 1}), ("0", {"n": 1})]
    assert [type(e) for e in events] == [
        ThoughtDeltaEvent,
        ContentDeltaEvent,
        ToolCallDeltaEvent,
        ToolCallDeltaEvent,
        ThoughtStreamEvent,
        UsageEvent,
        ContentCompleteEvent,
    ]


@pytest.mark.parametrize("body", [b"<html>hello</html>", b"[]", b""])
def test_whole_answer_that_is_not_a_json_object_is_a_protocol_error(body: bytes) -> None:
    with pytest.raises(ProviderProtocolError):
        read_whole(body)


def test_error_in_a_whole_answer_fails_the_call() -> None:
    with pytest.raises(VendorFailed, match="out of cheese"):
        read_whole({"error": {"message": "out of cheese", "code": 500}})
    with pytest.raises(VendorFailed, match="out of cheese"):
        read_whole({"code": 500, "msg": "out of cheese", "success": False})


def test_chunk_with_calls_may_have_an_error_or_a_second_choice() -> None:
    first = call_deltas(call_delta(0, "c", "look", "{}"))
    second = {"choices": [*first["choices"], {"delta": {"content": "beside"}}]}
    assert read_message(second, delta("tool_calls")).content == "beside"
    with pytest.raises(ProviderError):
        read_chunks({**first, "object": "error"})


def test_additional_reasoning_fragment_has_constant_cost() -> None:
    answer = ChatReader(MessageDraft(lambda _: None, "1", WHERE))
    payload = orjson.dumps(delta(reasoning_details=[{"type": "reasoning.text", "index": 0, "text": "x" * 100}]))
    answer.feed([payload] * 10_000)
    assert measure_peak_memory(lambda: answer.feed([payload])) < 10_000


def test_repeated_reasoning_block_names_count_once() -> None:
    detail = {"type": "reasoning.text", "index": 0, "format": "anthropic-claude-v1", "text": " so"}
    events: list[Event] = []
    # Enough for the text and one name, but not for one name per fragment.
    answer = ChatReader(MessageDraft(events.append, "1", WHERE, bounds=Bounds(text=10_000)))
    answer.feed([orjson.dumps(delta(reasoning_details=[detail]))] * 1_500)
    answer.feed([orjson.dumps(delta(content="x")), b"[DONE]"])
    answer.complete()
    done = events[-1]
    assert isinstance(done, ContentCompleteEvent)
    assert done.reasoning == " so" * 1_500


@pytest.mark.parametrize(
    ("pieces", "whole"),
    [
        (["Hi \ud83d", "\ude00 there"], "Hi \U0001f600 there"),
        (["\ud83d", "", "\ude00"], "\U0001f600"),
        (["a\ud83d", "b"], "a\ufffdb"),
        (["a\ud83d"], "a\ufffd"),
        (["\ude00a"], "\ufffda"),
        (["a\ud83d", "\ud83d", "\ude00"], "a\ufffd\U0001f600"),
    ],
)
@pytest.mark.parametrize("field", ["content", "reasoning_content"])
def test_split_surrogate_pair_is_joined(pieces: list[str], whole: str, field: str) -> None:
    events: list[Event] = []
    read = ChatReader(MessageDraft(events.append, "1", WHERE))
    for given in pieces:
        read.feed([json.dumps({"choices": [{"delta": {field: given}}]}).encode()])
    read.feed([b'{"choices":[{"delta":{},"finish_reason":"stop"}]}', b"[DONE]"])
    read.complete()
    kind = ContentDeltaEvent if field == "content" else ThoughtDeltaEvent
    assert "".join(event.delta for event in events if isinstance(event, kind)) == whole
    message = events[-1]
    assert isinstance(message, ContentCompleteEvent)
    assert (message.content or message.reasoning) == whole
    assert all(event.to_json() for event in events)
