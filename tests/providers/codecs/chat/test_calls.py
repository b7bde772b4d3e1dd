"""Streamed tool calls: separated, joined, and rejected if invalid."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxloop.pipeline.requests import ToolDefinition
from rxloop.protocol.events import (
    ContentCompleteEvent,
    Event,
    ToolCallDeltaEvent,
)
from rxloop.protocol.messages import ToolCall
from rxloop.providers.bounds import OutOfBounds
from rxloop.providers.codecs.chat.response import ChatReader
from rxloop.providers.codecs.draft import MessageDraft
from support.http_server import delta
from support.processes.counters import count_operations, measure_peak_memory
from support.vendors.chat_chunks import WHERE, call_delta, call_deltas, read_chunks, read_message


@given(st.lists(st.text(max_size=20), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_interleaved_calls_are_ordered_by_index(texts: list[str], rnd: random.Random) -> None:
    # L55
    wanted = [orjson.dumps({"text": text}).decode() for text in texts]
    queues = [[raw[i : i + 3] for i in range(0, len(raw), 3)] for raw in wanted]
    chunks = [call_deltas(call_delta(i, f"id{i}", f"tool{i}", "")) for i in rnd.sample(range(len(texts)), len(texts))]
    while any(queues):
        index = rnd.choice([i for i, queue in enumerate(queues) if queue])
        chunks.append(call_deltas(call_delta(index, args=queues[index].pop(0))))
    events = read_chunks(*chunks, delta("tool_calls"))
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
def test_message_with_calls_has_the_finish_reason_tool_calls(raw: str | None) -> None:
    # L56
    done = read_message(call_deltas(call_delta(0, "a", "look", "{}")), delta(raw))
    assert done.finish_reason == "tool_calls"
    assert done.raw_finish_reason == raw


def test_call_without_a_name_keeps_the_finish_reason_tool_calls() -> None:
    # L57: readers can detect that calls were intended but none is usable.
    done = read_message(call_deltas(call_delta(0, "a", "", "{}")), delta("tool_calls"))
    assert (done.finish_reason, done.tool_calls) == ("tool_calls", [])


@pytest.mark.parametrize("arguments", ["", None, "  ", "null", {}])
def test_empty_arguments_become_an_empty_object(arguments: Any) -> None:
    # L58
    call = read_message(call_deltas(call_delta(0, "a", "look", arguments))).tool_calls[0]
    assert (call.arguments, call.error) == ({}, None)


def test_missing_arguments_become_an_empty_object() -> None:
    # L58
    assert read_message(call_deltas({"index": 0, "id": "a", "function": {"name": "look"}})).tool_calls == [
        ToolCall(id="a", name="look")
    ]


def test_malformed_arguments_are_kept_with_an_error() -> None:
    # L59
    done = read_message(
        call_deltas(call_delta(0, "a", "look", '{"city": Oslo}'), call_delta(1, "b", "look", '{"city": "Oslo"}'))
    )
    broken, whole = done.tool_calls
    assert (broken.arguments, broken.raw) == ({}, '{"city": Oslo}')
    assert broken.error is not None
    assert "not valid JSON" in broken.error
    assert whole.arguments == {"city": "Oslo"}


def test_generated_call_id_is_the_same_in_every_attempt() -> None:
    # L60
    events = read_chunks(
        call_deltas(call_delta(None, "", "look", "{}"), call_delta(None, "", "look", "{}")), step="tot/1/2"
    )
    done = events[-1]
    assert isinstance(done, ContentCompleteEvent)
    assert [call.id for call in done.tool_calls] == ["call_tot_1_2_0", "call_tot_1_2_1"]
    assert [e.tool_call_id for e in events if isinstance(e, ToolCallDeltaEvent)] == ["call_tot_1_2_0", "call_tot_1_2_1"]


def test_call_without_a_name_is_dropped() -> None:
    # L60
    done = read_message(call_deltas(call_delta(0, "a", None, "{}"), call_delta(1, "b", "look", "{}")))
    assert [call.id for call in done.tool_calls] == ["b"]


def test_calls_without_an_index_are_identified_by_id() -> None:
    done = read_message(
        call_deltas(call_delta(None, "a", "look", '{"n":'), call_delta(None, "b", "see", "{}")),
        call_deltas(call_delta(None, "a", args="1}")),
    )
    assert [(call.id, call.arguments) for call in done.tool_calls] == [("a", {"n": 1}), ("b", {})]


def test_fragments_without_index_and_id_continue_the_last_call() -> None:
    done = read_message(call_deltas(call_delta(None, "a", "look", '{"n":')), call_deltas(call_delta(args="1}")))
    assert [call.arguments for call in done.tool_calls] == [{"n": 1}]


def test_long_tool_name_is_rejected() -> None:
    read_chunks(call_deltas(call_delta(0, "a", "n" * 1_000, "{}")))
    with pytest.raises(OutOfBounds, match=r"name of a tool of more than 1,000 .*Bounds\(name="):
        read_chunks(call_deltas(call_delta(0, "a", "n" * 1_001, "{}")))


@pytest.mark.parametrize("depth", [150, 500, 1_000])
@pytest.mark.parametrize(
    "call",
    [call_delta(0, "a", "add", {"deep": 0}), {**call_delta(0, "a", "add", "{}"), "extra_content": {"deep": 0}}],
    ids=["arguments", "extra"],
)
def test_deeply_nested_call_is_rejected(call: dict[str, Any], depth: int) -> None:
    answer = ChatReader(MessageDraft(lambda _: None, "1", WHERE))
    deep = b'{"deep":' + b"[" * depth + b"]" * depth + b"}"
    with pytest.raises(OutOfBounds, match="nested"):
        answer.feed([orjson.dumps(call_deltas(call)).replace(b'{"deep":0}', deep)])


def test_calls_with_index_zero_are_identified_by_id() -> None:
    done = read_message(
        call_deltas(call_delta(0, "a", "look", "{}")),
        call_deltas(call_delta(0, "b", "see", '{"n":')),
        call_deltas(call_delta(0, args="1}")),
    )
    assert [(call.id, call.arguments) for call in done.tool_calls] == [("a", {}), ("b", {"n": 1})]


def test_calls_of_a_hidden_tool_are_hidden() -> None:
    plan = ToolDefinition("plan", "Plans.", {}, hidden=True)
    events = read_chunks(call_deltas(call_delta(0, "a", "look", "{}"), call_delta(1, "b", "plan", "{}")), tools=[plan])
    assert [e.public for e in events if isinstance(e, ToolCallDeltaEvent)] == [True, False]


def test_commas_in_a_string_do_not_count_as_values() -> None:
    written = {"text": ", [" * 50_000}
    assert (
        read_message(call_deltas(call_delta(0, "a", "write", json.dumps(written)))).tool_calls[0].arguments == written
    )


@pytest.mark.parametrize(
    "of_call",
    [
        pytest.param(lambda number: call_delta(None, f"id{number}", "f", "{}"), id="by id"),
        pytest.param(lambda number: call_delta(number, f"id{number}", "f", "{}"), id="by index"),
        pytest.param(lambda number: call_delta(None, None, "f", "{}"), id="by name"),
        pytest.param(lambda number: call_delta(0, f"id{number}", "f", "{}"), id="all under one index"),
    ],
)
def test_calls_have_linear_cost(of_call: Callable[[int], dict[str, Any]]) -> None:
    def count_steps(count: int) -> int:
        answer = ChatReader(MessageDraft(lambda _: None, "1", WHERE))
        payloads = [orjson.dumps(call_deltas(of_call(number))) for number in range(count)]
        return count_operations(lambda: answer.feed(payloads))

    assert count_steps(400) < 2.2 * count_steps(200)


def test_additional_field_of_a_call_has_constant_cost() -> None:
    answer = ChatReader(MessageDraft(lambda _: None, "1", WHERE))
    payloads = [orjson.dumps(call_deltas({**call_delta(0), "extra_content": {f"k{n}": n}})) for n in range(10_000)]
    answer.feed(payloads)
    assert measure_peak_memory(lambda: answer.feed(payloads[-1:])) < 10_000


def test_split_surrogate_pair_in_the_arguments_is_joined() -> None:
    events: list[Event] = []
    read = ChatReader(MessageDraft(events.append, "1", WHERE))
    for half in ('{"a": "\ud83d', '\ude00"}'):
        call = {"index": 0, "id": "1", "function": {"name": "f", "arguments": half}}
        read.feed([json.dumps({"choices": [{"delta": {"tool_calls": [call]}}]}).encode()])
    read.feed([b'{"choices":[{"delta":{},"finish_reason":"tool_calls"}]}', b"[DONE]"])
    read.complete()
    message = events[-1]
    assert isinstance(message, ContentCompleteEvent)
    assert message.tool_calls[0].arguments == {"a": "\U0001f600"}
