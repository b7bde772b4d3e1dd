from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from counting import extra_memory, operations
from rxloop.errors import (
    ContextLengthExceeded,
    ProviderConnectionError,
    ProviderError,
    ProviderProtocolError,
    RateLimited,
)
from rxloop.errors import ServerError as VendorFailed
from rxloop.pipeline.requests import ToolDefinition
from rxloop.protocol.events import (
    ContentCompleteEvent,
    ContentDeltaEvent,
    Event,
    ThoughtDeltaEvent,
    ThoughtStreamEvent,
    ToolCallDeltaEvent,
    UsageEvent,
)
from rxloop.protocol.messages import ToolCall, Usage
from rxloop.providers._draft import Draft
from rxloop.providers._errors import Endpoint
from rxloop.providers.bounds import OutOfBounds
from rxloop.providers.chat._chunks import ChatReader
from servers import delta

WHERE = Endpoint("zai:glm-4.7", "http://vendor/v1/chat/completions", "ZAI_API_KEY")


def read(*chunks: Any, done: bool = True, step: str = "1", tools: Sequence[ToolDefinition] = ()) -> list[Event]:
    events: list[Event] = []
    answer = ChatReader(Draft(events.append, step, WHERE, tools))
    answer.feed([orjson.dumps(chunk) for chunk in chunks])
    if done:
        answer.feed([b"[DONE]"])
    answer.complete()
    return events


def final(*chunks: Any) -> ContentCompleteEvent:
    last = read(*chunks)[-1]
    assert isinstance(last, ContentCompleteEvent)
    return last


def piece(index: int | None = None, id: str | None = None, name: str | None = None, args: Any = None) -> dict[str, Any]:
    call: dict[str, Any] = {"function": {"name": name, "arguments": args}}
    if id is not None:
        call["id"] = id
    return call if index is None else {**call, "index": index}


def calls(*pieces: dict[str, Any]) -> dict[str, Any]:
    return delta(tool_calls=list(pieces))


@given(st.lists(st.text(max_size=20), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_interleaved_calls_come_out_by_index_with_their_arguments_joined(texts: list[str], rnd: random.Random) -> None:
    # L55
    wanted = [orjson.dumps({"text": text}).decode() for text in texts]
    queues = [[raw[i : i + 3] for i in range(0, len(raw), 3)] for raw in wanted]
    chunks = [calls(piece(i, f"id{i}", f"tool{i}", "")) for i in rnd.sample(range(len(texts)), len(texts))]
    while any(queues):
        index = rnd.choice([i for i, queue in enumerate(queues) if queue])
        chunks.append(calls(piece(index, args=queues[index].pop(0))))
    events = read(*chunks, delta("tool_calls"))
    done = events[-1]
    assert isinstance(done, ContentCompleteEvent)
    assert [(call.id, call.name, call.raw) for call in done.tool_calls] == [
        (f"id{i}", f"tool{i}", raw) for i, raw in enumerate(wanted)
    ]
    assert [call.arguments for call in done.tool_calls] == [{"text": text} for text in texts]
    for i, raw in enumerate(wanted):
        streamed = [e.fragment for e in events if isinstance(e, ToolCallDeltaEvent) and e.index == i]
        assert "".join(streamed) == raw


@pytest.mark.parametrize("raw", ["stop", "", None, "eos", "STOP"])
def test_a_message_with_calls_ends_as_tool_calls_whatever_the_vendor_says(raw: str | None) -> None:
    # L56
    done = final(calls(piece(0, "a", "look", "{}")), delta(raw))
    assert done.finish_reason == "tool_calls"
    assert done.raw_finish_reason == raw


@pytest.mark.parametrize(
    ("raw", "finish"),
    [("stop", "stop"), (None, "stop"), ("eos", "stop"), ("length", "length"), ("sensitive", "content_filter")],
)
def test_the_finish_reason_is_one_of_ours_and_the_raw_one_is_kept(raw: str | None, finish: str) -> None:
    done = final(delta(content="Hi"), delta(raw))
    assert (done.finish_reason, done.raw_finish_reason) == (finish, raw)


def test_a_message_that_was_cut_for_length_says_so_although_it_has_calls() -> None:
    assert final(calls(piece(0, "a", "look", '{"x')), delta("length")).finish_reason == "length"


def test_a_call_without_a_usable_name_leaves_the_finish_reason_tool_calls() -> None:
    # L57, the provider's half: whoever reads it sees that calls were meant and none is there.
    done = final(calls(piece(0, "a", "", "{}")), delta("tool_calls"))
    assert (done.finish_reason, done.tool_calls) == ("tool_calls", [])


@pytest.mark.parametrize("arguments", ["", None, "  ", "null", {}])
def test_empty_arguments_are_no_arguments(arguments: Any) -> None:
    # L58
    call = final(calls(piece(0, "a", "look", arguments))).tool_calls[0]
    assert (call.arguments, call.error) == ({}, None)


def test_missing_arguments_are_no_arguments() -> None:
    # L58
    assert final(calls({"index": 0, "id": "a", "function": {"name": "look"}})).tool_calls == [
        ToolCall(id="a", name="look")
    ]


def test_unreadable_arguments_are_kept_with_what_is_wrong() -> None:
    # L59
    done = final(calls(piece(0, "a", "look", '{"city": Oslo}'), piece(1, "b", "look", '{"city": "Oslo"}')))
    broken, whole = done.tool_calls
    assert (broken.arguments, broken.raw) == ({}, '{"city": Oslo}')
    assert broken.error is not None
    assert "not valid JSON" in broken.error
    assert whole.arguments == {"city": "Oslo"}


def test_a_call_without_an_id_gets_the_same_made_up_one_in_every_attempt() -> None:
    # L60
    events = read(calls(piece(None, "", "look", "{}"), piece(None, "", "look", "{}")), step="tot/1/2")
    done = events[-1]
    assert isinstance(done, ContentCompleteEvent)
    assert [call.id for call in done.tool_calls] == ["call_tot_1_2_0", "call_tot_1_2_1"]
    assert [e.tool_call_id for e in events if isinstance(e, ToolCallDeltaEvent)] == ["call_tot_1_2_0", "call_tot_1_2_1"]


def test_a_call_without_a_name_is_dropped() -> None:
    # L60
    done = final(calls(piece(0, "a", None, "{}"), piece(1, "b", "look", "{}")))
    assert [call.id for call in done.tool_calls] == ["b"]


def test_calls_without_an_index_are_told_apart_by_id() -> None:
    done = final(
        calls(piece(None, "a", "look", '{"n":'), piece(None, "b", "see", "{}")), calls(piece(None, "a", args="1}"))
    )
    assert [(call.id, call.arguments) for call in done.tool_calls] == [("a", {"n": 1}), ("b", {})]


def test_pieces_with_neither_index_nor_id_go_on_with_the_last_call() -> None:
    done = final(calls(piece(None, "a", "look", '{"n":')), calls(piece(args="1}")))
    assert [call.arguments for call in done.tool_calls] == [{"n": 1}]


def test_a_name_of_a_tool_that_is_no_name_is_refused() -> None:
    read(calls(piece(0, "a", "n" * 1_000, "{}")))
    with pytest.raises(OutOfBounds, match=r"name of a tool of more than 1,000 .*Bounds\(name="):
        read(calls(piece(0, "a", "n" * 1_001, "{}")))


@pytest.mark.parametrize("depth", [150, 500, 1_000])
@pytest.mark.parametrize(
    "call",
    [piece(0, "a", "add", {"deep": 0}), {**piece(0, "a", "add", "{}"), "extra_content": {"deep": 0}}],
    ids=["arguments", "extra"],
)
def test_what_is_kept_of_a_call_is_not_deep(call: dict[str, Any], depth: int) -> None:
    answer = ChatReader(Draft(lambda _: None, "1", WHERE))
    deep = b'{"deep":' + b"[" * depth + b"]" * depth + b"}"
    with pytest.raises(OutOfBounds, match="nested"):
        answer.feed([orjson.dumps(calls(call)).replace(b'{"deep":0}', deep)])


def test_calls_that_all_have_index_zero_are_told_apart_by_id() -> None:
    done = final(calls(piece(0, "a", "look", "{}")), calls(piece(0, "b", "see", '{"n":')), calls(piece(0, args="1}")))
    assert [(call.id, call.arguments) for call in done.tool_calls] == [("a", {}), ("b", {"n": 1})]


def test_calls_of_a_hidden_tool_are_not_for_clients() -> None:
    plan = ToolDefinition("plan", "Plans.", {}, hidden=True)
    events = read(calls(piece(0, "a", "look", "{}"), piece(1, "b", "plan", "{}")), tools=[plan])
    assert [e.public for e in events if isinstance(e, ToolCallDeltaEvent)] == [True, False]


def test_content_is_never_trimmed() -> None:
    # L61
    events = read(delta(content="\n "), delta(content=" x "), delta("stop", content="\n"))
    assert [e.delta for e in events if isinstance(e, ContentDeltaEvent)] == ["\n ", " x ", "\n"]
    assert events[-1].content == "\n  x \n"  # pyright: ignore[reportAttributeAccessIssue]


def test_deltas_are_counted_and_empty_ones_are_left_out() -> None:
    events = read(delta(role="assistant", content=""), delta(content="a"), delta(content=None), delta(content="b"))
    assert [(e.index, e.delta) for e in events if isinstance(e, ContentDeltaEvent)] == [(0, "a"), (1, "b")]


def test_the_last_usage_counts_and_is_never_a_sum() -> None:
    # L64
    def chunk(usage: Any, **fields: Any) -> dict[str, Any]:
        return {**delta(content="x"), "usage": usage, **fields}

    read_details = {"cached_tokens": 4, "cache_write_tokens": 3}
    details = {"prompt_tokens_details": read_details, "completion_tokens_details": {"reasoning_tokens": 2}}
    events = read(
        chunk({"prompt_tokens": 9, "completion_tokens": 1}),
        chunk(None, x_groq={"usage": {"prompt_tokens": 9, "completion_tokens": 2}}),
        {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3, "cost": 0.1, **details}},
        chunk(None),
    )
    assert [e.usage for e in events if isinstance(e, UsageEvent)] == [
        Usage(input_tokens=9, output_tokens=3, cached_tokens=4, cache_write_tokens=3, reasoning_tokens=2)
    ]
    assert [type(e) for e in events[-2:]] == [UsageEvent, ContentCompleteEvent]


@pytest.mark.parametrize("count", [-5, 1e40, 1e308, "many", [], None])
def test_a_count_that_can_be_none_costs_no_answer(count: Any) -> None:
    events = read({**delta(content="x"), "usage": {"prompt_tokens": count, "completion_tokens": 3}})
    assert [e.usage for e in events if isinstance(e, UsageEvent)] == [Usage(output_tokens=3)]
    assert [e.content for e in events if isinstance(e, ContentCompleteEvent)] == ["x"]


def test_a_text_with_many_commas_in_its_arguments_is_no_value_of_its_own() -> None:
    written = {"text": ", [" * 50_000}
    assert final(calls(piece(0, "a", "write", json.dumps(written)))).tool_calls[0].arguments == written


def test_no_usage_gives_no_usage_event() -> None:
    # L64
    assert not [e for e in read(delta(content="x")) if isinstance(e, UsageEvent)]


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
def test_reasoning_in_any_field_is_a_thought_and_counted_once(fields: dict[str, Any]) -> None:
    # L65
    events = read(delta(**fields), delta(**fields), delta(content="Hi"), delta("stop"), step="3")
    assert [(e.index, e.delta) for e in events if isinstance(e, ThoughtDeltaEvent)] == [(0, "hmm"), (1, "hmm")]
    (thought,) = [e for e in events if isinstance(e, ThoughtStreamEvent)]
    assert (thought.content, thought.source, thought.thought_id) == ("hmmhmm", "reasoning", "3.reasoning")
    done = events[-1]
    assert isinstance(done, ContentCompleteEvent)
    assert (done.content, done.reasoning) == ("Hi", "hmmhmm")


def test_signed_and_encrypted_reasoning_is_kept_for_the_next_request_and_not_shown() -> None:
    def details(*items: dict[str, Any]) -> dict[str, Any]:
        return delta(reasoning_details=list(items))

    events = read(
        details({"type": "reasoning.text", "index": 0, "text": "hm"}),
        details({"type": "reasoning.text", "index": 0, "text": "m", "signature": "sig"}),
        details({"type": "reasoning.encrypted", "index": 1, "data": "opaque"}),
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


def test_an_error_beside_the_last_text_fails_the_call_and_keeps_the_text() -> None:
    # L66
    events: list[Event] = []
    answer = ChatReader(Draft(events.append, "1", WHERE))
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
def test_an_error_in_any_place_is_a_provider_error(chunk: Any, error: type[Exception]) -> None:
    # L66
    with pytest.raises(error):
        read(chunk)


def test_an_end_with_neither_a_finish_reason_nor_done_is_a_broken_connection() -> None:
    # L66
    with pytest.raises(ProviderConnectionError, match="cut short") as caught:
        read(delta(content="Hel"), done=False)
    assert caught.value.retryable
    assert read(delta("stop", content="Hello"), done=False)
    assert read(delta(content="Hello"), done=True)


def test_half_an_event_at_the_end_is_a_broken_connection_too() -> None:
    # L66
    answer = ChatReader(Draft([].append, "1", WHERE))
    with pytest.raises(ProviderConnectionError, match="cut short"):
        answer.last([b'{"choices": [{"del'])


def test_only_the_first_of_several_choices_is_read() -> None:
    other = {"choices": [{"index": 1, "delta": {"content": "no"}, "finish_reason": "stop"}]}
    assert final(delta(content="yes"), other).content == "yes"


def test_half_a_surrogate_pair_does_not_break_the_answer() -> None:
    events: list[Event] = []
    answer = ChatReader(Draft(events.append, "1", WHERE))
    answer.feed([b'{"choices":[{"delta":{"content":"a\\ud83d"},"finish_reason":"stop"}]}'])
    # Its other half may still come.
    assert [e.delta for e in events if isinstance(e, ContentDeltaEvent)] == ["a"]
    answer.complete()
    assert [e.delta for e in events if isinstance(e, ContentDeltaEvent)] == ["a", "\ufffd"]


def test_a_refusal_is_the_text_of_the_answer() -> None:
    assert final(delta(refusal="I can't"), delta("stop", refusal=".")).content == "I can't."


def whole(body: Any) -> list[Event]:
    events: list[Event] = []
    answer = ChatReader(Draft(events.append, "1", WHERE))
    answer.whole(body if isinstance(body, bytes) else orjson.dumps(body))
    answer.complete()
    return events


def test_an_answer_that_was_not_streamed_means_the_same() -> None:
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
    events = whole(b"\n  \n" + orjson.dumps(body))
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
def test_a_whole_answer_that_is_no_json_object_is_a_protocol_error(body: bytes) -> None:
    with pytest.raises(ProviderProtocolError):
        whole(body)


def test_an_error_in_a_whole_answer_fails_the_call() -> None:
    with pytest.raises(VendorFailed, match="out of cheese"):
        whole({"error": {"message": "out of cheese", "code": 500}})
    with pytest.raises(VendorFailed, match="out of cheese"):
        whole({"code": 500, "msg": "out of cheese", "success": False})


def test_a_chunk_with_calls_may_report_an_error_or_have_a_second_choice() -> None:
    first = calls(piece(0, "c", "look", "{}"))
    second = {"choices": [*first["choices"], {"delta": {"content": "beside"}}]}
    assert final(second, delta("tool_calls")).content == "beside"
    with pytest.raises(ProviderError):
        read({**first, "object": "error"})


@pytest.mark.parametrize(
    "of_call",
    [
        pytest.param(lambda number: piece(None, f"id{number}", "f", "{}"), id="by id"),
        pytest.param(lambda number: piece(number, f"id{number}", "f", "{}"), id="by index"),
        pytest.param(lambda number: piece(None, None, "f", "{}"), id="by name"),
        pytest.param(lambda number: piece(0, f"id{number}", "f", "{}"), id="all under one index"),
    ],
)
def test_twice_as_many_calls_take_twice_the_work(of_call: Callable[[int], dict[str, Any]]) -> None:
    def taken(count: int) -> int:
        answer = ChatReader(Draft(lambda _: None, "1", WHERE))
        payloads = [orjson.dumps(calls(of_call(number))) for number in range(count)]
        return operations(lambda: answer.feed(payloads))

    assert taken(400) < 2.2 * taken(200)


def test_a_further_piece_of_reasoning_costs_the_same_however_long_it_is() -> None:
    answer = ChatReader(Draft(lambda _: None, "1", WHERE))
    payload = orjson.dumps(delta(reasoning_details=[{"type": "reasoning.text", "index": 0, "text": "x" * 100}]))
    answer.feed([payload] * 10_000)
    assert extra_memory(lambda: answer.feed([payload])) < 10_000


def test_what_names_the_block_of_a_piece_of_reasoning_counts_once() -> None:
    detail = {"type": "reasoning.text", "index": 0, "format": "anthropic-claude-v1", "text": " so"}
    done = final(*[delta(reasoning_details=[detail])] * 150_000, delta(content="x"))
    assert done.reasoning == " so" * 150_000


def test_a_further_field_beside_a_call_costs_the_same_however_many_there_are() -> None:
    answer = ChatReader(Draft(lambda _: None, "1", WHERE))
    payloads = [orjson.dumps(calls({**piece(0), "extra_content": {f"k{n}": n}})) for n in range(10_000)]
    answer.feed(payloads)
    assert extra_memory(lambda: answer.feed(payloads[-1:])) < 10_000


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
def test_a_character_that_was_cut_in_two_is_joined(pieces: list[str], whole: str, field: str) -> None:
    events: list[Event] = []
    read = ChatReader(Draft(events.append, "1", WHERE))
    for piece in pieces:
        read.feed([json.dumps({"choices": [{"delta": {field: piece}}]}).encode()])
    read.feed([b'{"choices":[{"delta":{},"finish_reason":"stop"}]}', b"[DONE]"])
    read.complete()
    kind = ContentDeltaEvent if field == "content" else ThoughtDeltaEvent
    assert "".join(event.delta for event in events if isinstance(event, kind)) == whole
    message = events[-1]
    assert isinstance(message, ContentCompleteEvent)
    assert (message.content or message.reasoning) == whole
    assert all(event.to_json() for event in events)


def test_halves_in_the_arguments_of_a_call_are_joined() -> None:
    events: list[Event] = []
    read = ChatReader(Draft(events.append, "1", WHERE))
    for piece in ('{"a": "\ud83d', '\ude00"}'):
        call = {"index": 0, "id": "1", "function": {"name": "f", "arguments": piece}}
        read.feed([json.dumps({"choices": [{"delta": {"tool_calls": [call]}}]}).encode()])
    read.feed([b'{"choices":[{"delta":{},"finish_reason":"tool_calls"}]}', b"[DONE]"])
    read.complete()
    message = events[-1]
    assert isinstance(message, ContentCompleteEvent)
    assert message.tool_calls[0].arguments == {"a": "\U0001f600"}
