"""Tests of reading Anthropic responses, and of sending them back."""

from __future__ import annotations

from typing import Any

import pytest

from rxloop.errors import Overloaded, ProviderError, ProviderProtocolError, RateLimited, ServerError
from rxloop.protocol.events import (
    ContentCompleteEvent,
    ContentDeltaEvent,
    LLMNoticeEvent,
    ServerToolEvent,
    ThoughtDeltaEvent,
    ToolCallDeltaEvent,
    UsageEvent,
)
from rxloop.protocol.messages import Citation, Message
from support.http_server import StreamResult
from support.vendors.claude import Json, block, call, encode, end, last_message, read_answer, start, text


def read_message(answer: StreamResult) -> ContentCompleteEvent:
    assert answer.error is None
    assert isinstance(answer.events[-1], ContentCompleteEvent)
    return answer.events[-1]


def select_events(answer: StreamResult, kind: type[Any]) -> list[Any]:
    return [event for event in answer.events if isinstance(event, kind)]


def encode_back(answer: StreamResult) -> list[Json]:
    encoded = encode([Message.user("hi"), last_message(answer), Message.user("go on")], model="claude-sonnet-4-6")
    return [each for turn in encoded.messages if turn["role"] == "assistant" for each in turn["content"]]


def thinking_block(index: int, *pieces: str, signature: str = "s1") -> list[Json]:
    deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces]
    signed = [{"type": "signature_delta", "signature": signature}] if signature else []
    return block(index, {"type": "thinking", "thinking": "", "signature": ""}, *deltas, *signed)


def test_reader_streams_text_thinking_and_calls() -> None:
    answer = read_answer(
        start(input_tokens=5),
        {"type": "ping"},
        *thinking_block(0, "let ", "me"),
        *text(1, "I ", "look"),
        *call(2, "toolu_1", "look", "", '{"a"', ":1}"),
        *call(3, "toolu_2", "wait"),
        *end("tool_use", output_tokens=9),
    )
    message = read_message(answer)
    assert (message.content, message.reasoning) == ("I look", "let me")
    assert [(each.id, each.name, each.arguments) for each in message.tool_calls] == [
        ("toolu_1", "look", {"a": 1}),
        ("toolu_2", "wait", {}),
    ]
    assert [event.delta for event in select_events(answer, ContentDeltaEvent)] == ["I ", "look"]
    assert [event.delta for event in select_events(answer, ThoughtDeltaEvent)] == ["let ", "me"]
    assert [event.fragment for event in select_events(answer, ToolCallDeltaEvent)] == ["", '{"a"', ":1}", ""]
    assert (message.finish_reason, message.raw_finish_reason) == ("tool_calls", "tool_use")
    assert not select_events(answer, LLMNoticeEvent)


def test_signed_thinking_is_sent_back_unchanged_and_in_order() -> None:
    answer = read_answer(
        start(),
        *thinking_block(0, "a"),
        *text(1, "x"),
        *thinking_block(2, signature="s2"),
        *text(3, "y"),
        *end(output_tokens=1),
    )
    assert encode_back(answer) == [
        {"type": "thinking", "thinking": "a", "signature": "s1"},
        {"type": "text", "text": "x"},
        {"type": "thinking", "thinking": "", "signature": "s2"},
        {"type": "text", "text": "y"},
    ]


def test_unsigned_thinking_is_not_sent_back() -> None:
    answer = read_answer(start(), *thinking_block(0, "a", signature=""), *text(1, "x"), *end())
    assert encode_back(answer) == [{"type": "text", "text": "x"}]


def test_redacted_thinking_is_sent_back_but_not_published() -> None:
    redacted = {"type": "redacted_thinking", "data": "secret"}
    answer = read_answer(start(), *block(0, redacted), *text(1, "x"), *end())
    assert encode_back(answer) == [redacted, {"type": "text", "text": "x"}]
    assert read_message(answer).reasoning is None
    assert not select_events(answer, ThoughtDeltaEvent)


def test_interleaved_calls_are_read_separately() -> None:
    first, second = call(0, "a", "look", '{"n":', "1}"), call(1, "b", "look", '{"n":', "2}")
    mixed = [first[0], second[0], first[1], second[1], second[2], first[2], first[3], second[3]]
    answer = read_answer(start(), *mixed, *end("tool_use"))
    assert [each.arguments for each in read_message(answer).tool_calls] == [{"n": 1}, {"n": 2}]


def test_interleaved_texts_are_read_completely() -> None:
    one, two = text(0, "a", "c"), thinking_block(1, "b", "d")
    answer = read_answer(start(), one[0], two[0], one[1], two[1], one[2], *two[2:], one[3], *end())
    assert (read_message(answer).content, read_message(answer).reasoning) == ("ac", "bd")
    assert [each for each in encode_back(answer) if each["type"] == "thinking"] == []


SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
FOUND = {
    "type": "web_search_tool_result",
    "tool_use_id": "srvtoolu_1",
    "content": [{"type": "web_search_result", "url": "https://e.org", "title": "E", "encrypted_content": "x"}],
}


def test_server_tool_call_is_published_and_sent_back_unchanged() -> None:
    pieces = [{"type": "input_json_delta", "partial_json": piece} for piece in ("", '{"query":', '"x"}')]
    answer = read_answer(start(), *block(0, SEARCH, *pieces), *block(1, FOUND), *text(2, "so"), *end())
    server_events = select_events(answer, ServerToolEvent)
    assert [(each.phase, each.name, each.tool_call_id, each.success) for each in server_events] == [
        ("start", "web_search", "srvtoolu_1", True),
        ("complete", "web_search", "srvtoolu_1", True),
    ]
    assert server_events[0].arguments == {"query": "x"}
    assert encode_back(answer) == [{**SEARCH, "input": {"query": "x"}}, FOUND, {"type": "text", "text": "so"}]
    assert not read_message(answer).tool_calls


def test_failed_server_tool_call_is_published_as_failed() -> None:
    error = {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"}
    answer = read_answer(start(), *block(0, SEARCH), *block(1, {**FOUND, "content": error}), *end())
    assert [each.success for each in select_events(answer, ServerToolEvent)] == [True, False]
    mcp = {"type": "mcp_tool_use", "id": "m1", "name": "ask", "server_name": "wiki", "input": {"q": 1}}
    result = {"type": "mcp_tool_result", "tool_use_id": "m1", "is_error": True, "content": []}
    server_events = select_events(read_answer(start(), *block(0, mcp), *block(1, result), *end()), ServerToolEvent)
    assert [(each.name, each.phase, each.success) for each in server_events] == [
        ("ask", "start", True),
        ("ask", "complete", False),
    ]


def test_truncated_server_tool_call_is_not_sent_back() -> None:
    answer = read_answer(start(), *text(0, "hm"), *block(1, SEARCH), *end("max_tokens"))
    assert encode_back(answer) == [{"type": "text", "text": "hm"}]


def test_paused_answer_is_sent_back_last() -> None:
    answer = read_answer(start(), *text(0, "hm"), *block(1, SEARCH), *end("pause_turn"))
    assert (read_message(answer).finish_reason, read_message(answer).raw_finish_reason) == ("pause", "pause_turn")
    encoded = encode([Message.user("hi"), last_message(answer)], model="claude-sonnet-4-6")
    assert encoded.messages[-1] == {"role": "assistant", "content": [{"type": "text", "text": "hm"}, SEARCH]}


def test_unknown_blocks_are_reported_once_and_sent_back_when_complete() -> None:
    new = {"type": "hologram", "data": [1]}
    other = {"type": "quantum_tool_use", "id": "q1", "name": "q", "input": {}}
    lost = block(3, {"type": "hologram"}, {"type": "hologram_delta", "x": 1})
    events = [{"type": "aurora"}, {"type": "aurora"}, *block(0, new), *block(1, other), *text(2, "x"), *lost]
    answer = read_answer(start(), *events, *end())
    server_events = [event.message for event in select_events(answer, LLMNoticeEvent)]
    assert [
        "aurora" in server_events[0],
        "block 'hologram'" in server_events[1],
        "'hologram_delta'" in server_events[2],
    ] == [True] * 3
    assert len(server_events) == 3
    state = read_message(answer).provider_state
    assert state is not None
    assert state["anthropic"] == [{"raw": new}, {"raw": other}, {"text": 1}]


@pytest.mark.parametrize(
    ("citation", "expected"),
    [
        (
            {"type": "web_search_result_location", "url": "https://e.org", "title": "E", "encrypted_index": "i"},
            {"url": "https://e.org", "title": "E"},
        ),
        ({"type": "search_result_location", "source": "notes", "title": None}, {"title": "notes"}),
        ({"type": "char_location", "document_index": 0, "document_title": "D"}, {"title": "D"}),
        ({"type": "page_location", "document_index": 0, "start_page_number": 1}, {}),
        ({"type": "content_block_location", "document_index": 0}, {}),
        ({"type": "something_else"}, {}),
    ],
)
def test_citations_are_read_and_sent_back(citation: Json, expected: Json) -> None:
    cited = {**citation, "cited_text": "words"}
    deltas = [{"type": "citations_delta", "citation": cited}, {"type": "text_delta", "text": "fact"}]
    answer = read_answer(
        start(), *text(0, "So: "), *block(1, {"type": "text", "text": ""}, *deltas), *text(2, "."), *end()
    )
    message = read_message(answer)
    assert list(message.citations) == [Citation(text="words", start=4, end=8, **expected)]
    state = message.provider_state
    assert state is not None
    assert state["anthropic"][1] == {"text": 4, "extra": {"citations": [cited]}}


@pytest.mark.parametrize(
    ("raw", "ours"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "content_filter"),
        ("compaction", "pause"),
        ("something_new", "unknown"),
    ],
)
def test_finish_reason_is_mapped(raw: str, ours: str) -> None:
    message = read_message(read_answer(start(), *text(0, "x"), *end(raw)))
    assert (message.finish_reason, message.raw_finish_reason) == (ours, raw)


def test_usage_includes_cached_tokens_and_uses_the_last_counts() -> None:
    answer = read_answer(
        start(input_tokens=5, cache_creation_input_tokens=10, cache_read_input_tokens=100, output_tokens=1),
        *text(0, "x"),
        *end("end_turn", output_tokens=42, input_tokens=6, output_tokens_details={"thinking_tokens": 7}),
    )
    usage = select_events(answer, UsageEvent)
    assert len(usage) == 1
    found = usage[0].usage
    assert (found.input_tokens, found.output_tokens) == (116, 42)
    assert (found.cached_tokens, found.cache_write_tokens, found.reasoning_tokens) == (100, 10, 7)


@pytest.mark.parametrize(
    ("kind", "error"), [("overloaded_error", Overloaded), ("rate_limit_error", RateLimited), ("odd", ServerError)]
)
def test_error_during_a_stream_keeps_earlier_deltas(kind: str, error: type[ProviderError]) -> None:
    broken = {"type": "error", "error": {"type": kind, "message": "no"}, "request_id": "req_1"}
    answer = read_answer(start(), *text(0, "par", "t")[:3], broken)
    assert type(answer.error) is error
    assert "req_1" in str(answer.error)
    assert [event.delta for event in select_events(answer, ContentDeltaEvent)] == ["par", "t"]
    assert not select_events(answer, ContentCompleteEvent)


def test_incomplete_answer_is_an_error() -> None:
    assert isinstance(read_answer(start(), *text(0, "x")).error, ProviderError)
    assert isinstance(read_answer(b'{"type":"message"}', whole=True).error, ProviderProtocolError)


def test_answer_without_a_last_event_is_complete_when_it_has_a_finish_reason() -> None:
    assert read_message(read_answer(start(), *text(0, "x")[:2], end()[0])).content == "x"


def test_open_blocks_end_with_the_answer() -> None:
    cited = {"type": "char_location", "cited_text": "w"}
    events = block(0, {"type": "text", "text": "x"}, {"type": "citations_delta", "citation": cited}, stop=False)
    searched = block(1, SEARCH, stop=False)
    for last in (end()[:1], end()):
        answer = read_answer(start(), *events, *searched, *last)
        assert [each.text for each in read_message(answer).citations] == ["w"]
        assert len(select_events(answer, ServerToolEvent)) == 1


def test_unstreamed_answer_is_read_like_a_streamed_one() -> None:
    content = [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "text", "text": "x", "citations": [{"type": "char_location", "cited_text": "w"}]},
        {"type": "tool_use", "id": "t", "name": "look", "input": {"a": 1}, "caller": {"type": "direct"}},
        SEARCH,
        FOUND,
    ]
    usage = {"input_tokens": 1, "output_tokens": 2}
    body: Json = {"type": "message", "role": "assistant", "content": content, "stop_reason": "tool_use", "usage": usage}
    answer = read_answer(body, whole=True)
    message = read_message(answer)
    assert (message.content, message.reasoning, message.finish_reason) == ("x", "hm", "tool_calls")
    assert message.tool_calls[0].arguments == {"a": 1}
    assert len(select_events(answer, ServerToolEvent)) == 2
    history = [Message.user("hi"), last_message(answer), Message.tool("t", "1")]
    assert encode(history).messages[1]["content"] == content


@pytest.mark.parametrize("content", [[], None])
def test_empty_answer_is_accepted(content: Any) -> None:
    body: Json = {"type": "message", "content": content, "stop_reason": "end_turn", "usage": {}}
    message = read_message(read_answer(body, whole=True))
    assert (message.content, message.finish_reason) == ("", "stop")
    assert [
        turn["role"]
        for turn in encode([Message.user("a"), last_message(read_answer(body, whole=True)), Message.user("b")]).messages
    ] == ["user"]


def test_error_body_of_an_unstreamed_answer_is_raised() -> None:
    answer = read_answer({"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}, whole=True)
    assert isinstance(answer.error, Overloaded)


def test_code_container_is_stored_in_the_provider_state() -> None:
    ended = {"type": "message_delta", "delta": {"stop_reason": "end_turn", "container": {"id": "c1"}}, "usage": {}}
    state = read_message(read_answer(start(), *text(0, "x"), ended, {"type": "message_stop"})).provider_state
    assert state is not None
    assert state["anthropic_container"] == "c1"
