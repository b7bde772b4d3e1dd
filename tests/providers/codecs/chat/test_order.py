"""Unanswered calls and unmatched results in requests to chat endpoints."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson

from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol.messages import Message, ToolCall
from rxloop.providers import PRESETS
from rxloop.providers.codecs.chat.request import RequestEncoder
from rxloop.state.history import History
from support.vendors.codecs import ignore_notice

OPENAI = PRESETS["openai"]


def make_calls(*ids: str) -> Message:
    return Message.assistant("", tool_calls=[ToolCall(id=each, name="look") for each in ids])


def outline(*messages: Message, preset: Any = OPENAI) -> list[tuple[str, str]]:
    """Summarise each message as role and content."""
    encoded = RequestEncoder("m", preset, stream=True).encode(ModelRequest(messages=messages), ignore_notice)
    return [
        (each["role"], each.get("tool_call_id") or each["content"] or "calls")
        for each in orjson.loads(encoded)["messages"]
    ]


def test_unanswered_call_gets_a_result_after_the_others() -> None:
    assert outline(Message.user("Hi"), make_calls("a", "b", "c"), Message.tool("b", "2"), Message.user("And?")) == [
        ("user", "Hi"),
        ("assistant", "calls"),
        ("tool", "b"),
        ("tool", "a"),
        ("tool", "c"),
        ("user", "And?"),
    ]


def test_last_unanswered_call_gets_a_result() -> None:
    assert outline(Message.user("Hi"), make_calls("a"))[-1] == ("tool", "a")


def test_unmatched_result_becomes_a_user_message_after_the_others() -> None:
    history = [
        Message.tool("x", "0"),
        make_calls("a"),
        Message.tool("a", "1"),
        Message.tool("a", "2"),
        Message.user("And?"),
    ]
    assert outline(*history) == [
        ("user", "The result of a call that is not shown:\n0"),
        ("assistant", "calls"),
        ("tool", "a"),
        ("user", "The result of a call that is not shown:\n2"),
        ("user", "And?"),
    ]


def test_converted_result_is_reported_once() -> None:
    told: list[str] = []
    encoder = RequestEncoder("m", OPENAI, stream=True)
    history = History([Message.tool("x", "0"), Message.user("Hi")])
    for _ in range(2):
        encoder.encode(ModelRequest(messages=history), lambda code, text: told.append(text))
        history = history.append(Message.user("And?"))
    assert told == ["openai:m receives the result of the missing call 'x' as text"]


def test_call_ids_are_shortened_consistently() -> None:
    long = "chatcmpl-tool-0123456789abcdef0123456789abcdef"
    [call, result] = orjson.loads(
        RequestEncoder("m", OPENAI, stream=True).encode(
            ModelRequest(messages=[make_calls(long), Message.tool(long, "1")]), ignore_notice
        )
    )["messages"]
    assert call["tool_calls"][0]["id"] == result["tool_call_id"]
    assert len(result["tool_call_id"]) == 40
    free = replace(OPENAI, longest_call_id=None)
    assert outline(make_calls(long), Message.tool(long, "1"), preset=free)[1] == ("tool", long)
    short = "call_0123456789012345678901234567890123"
    assert outline(make_calls(short), Message.tool(short, "1"))[1] == ("tool", short)


def test_mistral_request_ends_with_a_user_or_tool_message() -> None:
    assert outline(Message.user("Hi"), Message.assistant("Ho"), preset=PRESETS["mistral"])[-1][0] == "user"


def test_duplicate_call_ids_of_a_message_are_renamed_with_their_results() -> None:
    said = [
        make_calls("0", "0", "0_2"),
        *(Message.tool(each, text) for each, text in (("0", "a"), ("0_2", "c"), ("0", "b"))),
    ]
    encoder = RequestEncoder("m", replace(OPENAI, longest_call_id=None), stream=True)
    bodies = [
        orjson.loads(encoder.encode(ModelRequest(messages=history), ignore_notice))["messages"]
        for history in (History(said), History(said).append(Message.user("And?")))
    ]
    assert [call["id"] for call in bodies[0][0]["tool_calls"]] == ["0", "0_3", "0_2"]
    assert [(each["tool_call_id"], each["content"]) for each in bodies[0][1:]] == [
        ("0", "a"),
        ("0_2", "c"),
        ("0_3", "b"),
    ]
    assert bodies[1][:4] == bodies[0]


def test_unanswered_calls_with_a_duplicate_id_get_separate_results() -> None:
    assert outline(make_calls("0", "0"), Message.user("And?"))[1:3] == [("tool", "0"), ("tool", "0_2")]
