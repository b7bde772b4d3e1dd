"""Gemini's answers as events."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxloop.errors import BadRequest, ProviderProtocolError, RateLimited, RxloopError
from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol.events import (
    ContentDeltaEvent,
    LLMNoticeEvent,
    ServerToolEvent,
    ThoughtDeltaEvent,
    ToolCallDeltaEvent,
    UsageEvent,
)
from rxloop.protocol.messages import FilePart, ImagePart, Message
from rxloop.providers.bounds import Bounds, OutOfBounds
from rxloop.providers.codecs.draft import MessageDraft
from rxloop.providers.codecs.gemini.response import GeminiReader
from support.vendors.codecs import ignore_notice
from support.vendors.gemini import WHERE, chunk, encode_contents, make_codec, read_events, read_message
from support.vendors.messages import to_message

CALL = {"name": "look", "args": {"at": "Oslo"}}
STOP = chunk({"text": "ok"}, finish="STOP")


def encode_back(*chunks: Any) -> list[dict[str, Any]]:
    answers = [Message.tool(call.id, "done") for call in read_message(*chunks).tool_calls]
    sent = encode_contents(Message.user("hi"), to_message(read_message(*chunks)), *answers, Message.user("on"))
    return sent[1]["parts"]


def test_text_is_streamed_as_deltas_and_ends_with_a_finish_reason() -> None:
    found = read_events(chunk({"text": "It "}), chunk({"text": "is."}, finish="STOP"))
    assert [event.delta for event in found if isinstance(event, ContentDeltaEvent)] == ["It ", "is."]
    complete = read_message(chunk({"text": "It "}), chunk({"text": "is."}, finish="STOP"))
    assert (complete.content, complete.finish_reason, complete.raw_finish_reason) == ("It is.", "stop", "STOP")
    assert complete.provider_state is None


def test_usage_after_the_last_text_is_read() -> None:
    after = {"usageMetadata": {"promptTokenCount": 9, "candidatesTokenCount": 2, "totalTokenCount": 11}}
    usage = [event for event in read_events(STOP, after) if isinstance(event, UsageEvent)]
    assert [(event.input_tokens, event.output_tokens) for event in usage] == [(9, 2)]


def test_last_usage_counts_all_tokens() -> None:
    first = {**chunk({"text": "a"}), "usageMetadata": {"promptTokenCount": 9, "totalTokenCount": 9}}
    last = {
        **STOP,
        "usageMetadata": {
            "promptTokenCount": 100,
            "toolUsePromptTokenCount": 20,
            "cachedContentTokenCount": 80,
            "candidatesTokenCount": 7,
            "thoughtsTokenCount": 5,
            "totalTokenCount": 132,
        },
    }
    # Vertex sometimes sends usage without tokens.
    (usage,) = [
        event
        for event in read_events(first, last, {"usageMetadata": {"trafficType": "ON_DEMAND"}})
        if isinstance(event, UsageEvent)
    ]
    assert (usage.input_tokens, usage.output_tokens, usage.cached_tokens, usage.reasoning_tokens) == (120, 12, 80, 5)


def test_thoughts_are_reasoning_and_only_signed_ones_are_sent_back() -> None:
    thought, signed = {"text": "hm", "thought": True}, {"text": "so", "thought": True, "thoughtSignature": "c2ln"}
    chunks = (chunk(thought), chunk(signed), STOP)
    assert read_message(*chunks).reasoning == "hmso"
    assert [event.delta for event in read_events(*chunks) if isinstance(event, ThoughtDeltaEvent)] == ["hm", "so"]
    assert encode_back(*chunks) == [signed, {"text": "ok"}]


def test_signatures_are_sent_back_on_the_same_part() -> None:
    signed, empty = {"text": "b", "thoughtSignature": "Yg=="}, {"text": "", "thoughtSignature": "Yw=="}
    chunks = (
        chunk({"text": "a"}),
        chunk(signed),
        chunk({"text": "c"}),
        chunk({"text": "d"}),
        chunk(empty, finish="STOP"),
    )
    assert read_message(*chunks).content == "abcd"
    assert encode_back(*chunks) == [{"text": "a"}, signed, {"text": "cd"}, empty]


def test_signature_without_content_is_sent_back_unchanged() -> None:
    assert encode_back(chunk({"text": "a"}), chunk({"thoughtSignature": "Yg=="}, finish="STOP"))[1] == {
        "thoughtSignature": "Yg=="
    }


def test_calls_keep_native_ids_and_signatures_only() -> None:
    calls = [{"functionCall": {**CALL, "id": "v1"}, "thoughtSignature": "c2ln"}, {"functionCall": CALL}]
    complete = read_message(chunk(*calls, finish="STOP"))
    assert complete.finish_reason == "tool_calls"
    assert complete.raw_finish_reason == "STOP"
    assert [(call.name, call.arguments) for call in complete.tool_calls] == [("look", {"at": "Oslo"})] * 2
    assert complete.tool_calls[0].id == "v1"
    assert complete.tool_calls[1].id
    assert encode_back(chunk(*calls, finish="STOP")) == calls


def test_call_without_arguments_is_read() -> None:
    complete = read_message(chunk({"functionCall": {"name": "look"}}, finish="STOP"))
    assert complete.tool_calls[0].arguments == {}


def test_streamed_arguments_are_published_as_fragments() -> None:
    pieces = [
        {"name": "write", "id": "v1", "willContinue": True},
        {"partialArgs": [{"jsonPath": "$.to", "stringValue": "An"}], "willContinue": True},
        {"partialArgs": [{"jsonPath": "$.text", "stringValue": "Hel", "willContinue": True}], "willContinue": True},
        {"partialArgs": [{"jsonPath": "$.text", "stringValue": "lo"}], "willContinue": True},
        {},
    ]
    chunks = [chunk({"functionCall": piece}) for piece in pieces]
    chunks[0]["candidates"][0]["content"]["parts"][0]["thoughtSignature"] = "c2ln"
    chunks.append(chunk({"functionCall": CALL}, finish="STOP"))
    first, second = read_message(*chunks).tool_calls
    assert (first.id, first.arguments, second.arguments) == ("v1", {"to": "An", "text": "Hello"}, {"at": "Oslo"})
    deltas = [event for event in read_events(*chunks) if isinstance(event, ToolCallDeltaEvent) and event.index == 0]
    assert [event.fragment for event in deltas if event.fragment] == ['{"to":"An"', ',"text":"Hel', 'lo"', "}"]
    assert encode_back(*chunks)[0] == {
        "functionCall": {"name": "write", "args": {"to": "An", "text": "Hello"}, "id": "v1"},
        "thoughtSignature": "c2ln",
    }


@pytest.mark.parametrize(
    "pieces",
    [
        # As documented, an empty call ends the arguments.
        [{"name": "look"}, {"partialArgs": [{"jsonPath": "$.at", "stringValue": "Oslo"}], "willContinue": True}, {}],
        [{"name": "look", "partialArgs": [{"jsonPath": "$.at", "stringValue": "Oslo"}]}],
        [
            {"name": "look", "partialArgs": [{"jsonPath": "$.at", "willContinue": True}], "willContinue": True},
            {"name": "look", "partialArgs": [{"jsonPath": "$.at", "stringValue": "Oslo"}]},
        ],
        [{"name": "look", "args": {"at": "Oslo"}, "willContinue": True}],
    ],
)
def test_streamed_arguments_may_start_and_end_in_several_ways(pieces: list[dict[str, Any]]) -> None:
    chunks = [chunk({"functionCall": piece}) for piece in [*pieces, CALL]]
    calls = read_message(*chunks, chunk(finish="STOP")).tool_calls
    assert [call.arguments for call in calls] == [{"at": "Oslo"}] * 2


def test_consecutive_calls_without_arguments_are_separate() -> None:
    calls = read_message(*[chunk({"functionCall": {"name": "look"}})] * 2, chunk(finish="STOP")).tool_calls
    assert [call.arguments for call in calls] == [{}, {}]


def test_truncated_arguments_are_reported_as_an_error() -> None:
    first_piece = {"name": "write", "partialArgs": [{"jsonPath": "$.a", "stringValue": "b", "willContinue": True}]}
    complete = read_message(chunk({"functionCall": {**first_piece, "willContinue": True}}, finish="MAX_TOKENS"))
    assert complete.finish_reason == "length"
    assert complete.tool_calls[0].error is not None


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("MAX_TOKENS", "length"),
        ("SAFETY", "content_filter"),
        ("RECITATION", "content_filter"),
        ("PROHIBITED_CONTENT", "content_filter"),
        ("MODEL_ARMOR", "content_filter"),
        ("MALFORMED_FUNCTION_CALL", "tool_calls"),
        ("UNEXPECTED_TOOL_CALL", "tool_calls"),
    ],
)
def test_finish_reason_is_mapped(raw: str, expected: str) -> None:
    complete = read_message({"candidates": [{"finishReason": raw}]})
    assert (complete.finish_reason, complete.raw_finish_reason, complete.content) == (expected, raw, "")


@pytest.mark.parametrize("raw", ["OTHER", "A_NEW_ONE"])
def test_unknown_finish_reason_is_an_error_only_without_content(raw: str) -> None:  # P9
    with pytest.raises(ProviderProtocolError, match=raw):
        read_message({"candidates": [{"finishReason": raw}]})
    complete = read_message(chunk({"text": "Hi"}, finish=raw))
    assert (complete.finish_reason, complete.raw_finish_reason) == ("unknown", raw)


def test_answer_that_ends_while_thinking_is_empty() -> None:
    complete = read_message({"candidates": [{"content": {"role": "model"}, "finishReason": "MAX_TOKENS"}]})
    assert (complete.content, complete.finish_reason) == ("", "length")


def test_blocked_prompt_ends_with_content_filter_and_its_reason() -> None:
    complete = read_message({"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": {}})
    assert (complete.finish_reason, complete.raw_finish_reason) == ("content_filter", "PROHIBITED_CONTENT")


def test_missing_thought_signature_is_an_error() -> None:
    with pytest.raises(BadRequest, match="MISSING_THOUGHT_SIGNATURE"):
        read_events({"candidates": [{"finishReason": "MISSING_THOUGHT_SIGNATURE"}]})


def test_error_during_a_stream_keeps_earlier_deltas() -> None:
    pushed: list[Any] = []
    reader = GeminiReader(MessageDraft(pushed.append, "1", WHERE), "google_gemini")
    reader.feed([orjson.dumps(chunk({"text": "It is"}))])
    error = {"error": {"code": 429, "message": "slow down", "status": "RESOURCE_EXHAUSTED"}}
    with pytest.raises(RateLimited, match="slow down"):
        reader.feed([orjson.dumps(error)])
    assert [event.delta for event in pushed] == ["It is"]


def test_stream_without_a_finish_reason_is_an_error() -> None:
    with pytest.raises(RxloopError, match="cut short"):
        read_events(chunk({"text": "It is"}))


def test_unstreamed_answer_is_read_like_a_streamed_one() -> None:
    parts = [{"text": "hm", "thought": True}, {"text": "I look."}, {"functionCall": CALL, "thoughtSignature": "c2ln"}]
    pushed: list[Any] = []
    reader = GeminiReader(MessageDraft(pushed.append, "1", WHERE), "google_gemini")
    reader.read_body(orjson.dumps(chunk(*parts, finish="STOP")))
    reader.complete()
    assert pushed[-1].model_dump(exclude={"id", "timestamp"}) == read_message(
        *map(chunk, parts), chunk(finish="STOP")
    ).model_dump(exclude={"id", "timestamp"})


def test_unexpected_json_object_is_an_error() -> None:
    reader = GeminiReader(MessageDraft(lambda _: None, "1", WHERE), "google_gemini")
    with pytest.raises(RxloopError, match="out of order"):
        reader.read_body(b'{"message": "the proxy is out of order"}')


def test_answer_without_candidates_is_empty() -> None:
    pushed: list[Any] = []
    reader = GeminiReader(MessageDraft(pushed.append, "1", WHERE), "google_gemini")
    reader.read_body(b'{"usageMetadata": {"promptTokenCount": 3, "totalTokenCount": 3}}')
    reader.complete()
    assert (pushed[-1].content, pushed[-1].finish_reason) == ("", "stop")


def test_other_candidates_are_ignored() -> None:
    other = {"candidates": [{"index": 1, "content": {"parts": [{"text": "no"}]}}]}
    assert read_message(other, STOP).content == "ok"


def test_generated_image_is_a_file_and_sent_back_with_its_signature() -> None:
    png = {"mimeType": "image/png", "data": b64encode(b"\x89PNG").decode()}
    image_part = {"inlineData": png, "thoughtSignature": "c2ln"}
    sketch = {"inlineData": png, "thought": True}
    chunks = (chunk(sketch), chunk({"text": "Here: "}), chunk(image_part), STOP)
    assert read_message(*chunks).files == [ImagePart(data=b"\x89PNG", media_type="image/png")]
    assert encode_back(*chunks) == [{"text": "Here: "}, image_part, {"text": "ok"}]


def test_audio_and_stored_files_are_read() -> None:
    sound = {"inlineData": {"mimeType": "audio/wav", "data": "_-8="}}
    stored = {"fileData": {"mimeType": "application/pdf", "fileUri": "https://e.org/a"}}
    assert read_message(chunk(sound, stored), STOP).files == [
        FilePart(data=b"\xff\xef", media_type="audio/wav"),
        FilePart(url="https://e.org/a", media_type="application/pdf"),
    ]


def test_code_execution_is_published_and_sent_back_unchanged() -> None:
    code = {"executableCode": {"language": "PYTHON", "code": "1+1"}, "thoughtSignature": "c2ln"}
    result = {"codeExecutionResult": {"outcome": "OUTCOME_FAILED", "output": "no"}}
    notices = [event for event in read_events(chunk(code, result), STOP) if isinstance(event, ServerToolEvent)]
    assert [(event.tool_call_id, event.name, event.phase, event.success) for event in notices] == [
        ("code_1", "code_execution", "start", True),
        ("code_1", "code_execution", "complete", False),
    ]
    assert notices[0].arguments == {"language": "PYTHON", "code": "1+1"}
    assert notices[1].result == {"outcome": "OUTCOME_FAILED", "output": "no"}
    assert encode_back(chunk(code, result), STOP) == [code, result, {"text": "ok"}]


def test_server_tool_call_is_published_and_sent_back_unchanged() -> None:
    call = {"toolCall": {"id": "a", "toolType": "FILE_SEARCH", "args": {"q": "x"}}, "thoughtSignature": "c2ln"}
    answer = {"toolResponse": {"id": "a", "toolType": "FILE_SEARCH", "response": {"found": 1}}}
    notices = [event for event in read_events(chunk(call, answer), STOP) if isinstance(event, ServerToolEvent)]
    assert [(event.tool_call_id, event.name, event.phase) for event in notices] == [
        ("a", "file_search", "start"),
        ("a", "file_search", "complete"),
    ]
    assert (notices[0].arguments, notices[1].result) == ({"q": "x"}, {"found": 1})
    assert encode_back(chunk(call, answer), STOP) == [call, answer, {"text": "ok"}]


def test_unknown_part_is_reported_once_and_sent_back() -> None:
    odd = {"hologram": {"x": 1}}
    notices = [event for event in read_events(chunk(odd), chunk(odd), STOP) if isinstance(event, LLMNoticeEvent)]
    assert [event.code for event in notices] == ["skipped"]
    assert "hologram" in notices[0].message
    assert to_message(read_message(chunk(odd), STOP)).provider_state == {"google_gemini": [{"raw": odd}, {"text": 2}]}


def test_unknown_event_is_reported() -> None:
    notices = [event for event in read_events({"weather": "fine"}, STOP) if isinstance(event, LLMNoticeEvent)]
    assert len(notices) == 1


def test_signatures_count_towards_the_message_size() -> None:
    reader = GeminiReader(MessageDraft(lambda _: None, "1", WHERE, bounds=Bounds(text=10_000)), "google_gemini")
    long = orjson.dumps(chunk({"text": "", "thoughtSignature": "a" * 900}))
    with pytest.raises(OutOfBounds):
        reader.feed([long] * 100)


KEYS = """candidates content parts text thought thoughtSignature functionCall name args partialArgs jsonPath id
stringValue inlineData data mimeType executableCode codeExecutionResult toolCall toolResponse index finishReason
groundingMetadata groundingSupports groundingChunks segment usageMetadata promptFeedback blockReason citationMetadata
urlContextMetadata willContinue fileData fileUri promptTokenCount"""
LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=3))
ODD = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(KEYS.split()), inner, max_size=4)
    ),
    max_leaves=15,
)


@given(st.lists(st.one_of(ODD, st.builds(chunk, ODD)), max_size=4), st.booleans())
def test_reader_handles_values_of_any_type(chunks: list[Any], whole: bool) -> None:
    pushed: list[Any] = []
    reader = GeminiReader(MessageDraft(pushed.append, "1", WHERE), "google_gemini")
    try:
        if whole:
            reader.read_body(json.dumps(chunks[0] if chunks else {}).encode())
        else:
            reader.feed([json.dumps(each).encode() for each in [*chunks, STOP]])
        reader.complete()
    except (RxloopError, OutOfBounds):
        return
    text = "".join(event.delta for event in pushed if isinstance(event, ContentDeltaEvent))
    assert pushed[-1].content == text
    # Sending the message back must not fail.
    make_codec().encode(ModelRequest(messages=[to_message(pushed[-1])]), ignore_notice)


def test_argument_path_to_an_earlier_value_is_rejected() -> None:
    pieces = [{"jsonPath": path, "numberValue": 1} for path in ("$.a.b", "$.c", "$.a.d")]
    with pytest.raises(ProviderProtocolError, match="order"):
        read_events(chunk({"functionCall": {"name": "x", "partialArgs": pieces}}, finish="STOP"))
