"""Calls without results, and results without calls, in requests to chat endpoints."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson

from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol.messages import Message, ToolCall
from rxloop.providers import PRESETS
from rxloop.providers.chat._encode import RequestEncoder
from rxloop.providers.chat._order import is_paired
from rxloop.state.history import History
from wires import unheard

OPENAI = PRESETS["openai"]


def asks(*ids: str) -> Message:
    return Message.assistant("", tool_calls=[ToolCall(id=each, name="look") for each in ids])


def outline(*messages: Message, preset: Any = OPENAI) -> list[tuple[str, str]]:
    """The roles of the messages that are sent, and of what they speak."""
    encoded = RequestEncoder("m", preset, stream=True).encode(ModelRequest(messages=messages), unheard)
    return [
        (each["role"], each.get("tool_call_id") or each["content"] or "calls")
        for each in orjson.loads(encoded)["messages"]
    ]


def test_a_call_that_nobody_answered_has_an_answer_behind_the_others() -> None:
    assert outline(Message.user("Hi"), asks("a", "b", "c"), Message.tool("b", "2"), Message.user("And?")) == [
        ("user", "Hi"),
        ("assistant", "calls"),
        ("tool", "b"),
        ("tool", "a"),
        ("tool", "c"),
        ("user", "And?"),
    ]


def test_the_last_call_has_an_answer() -> None:
    assert outline(Message.user("Hi"), asks("a"))[-1] == ("tool", "a")


def test_a_result_that_belongs_to_no_call_is_what_the_user_says_behind_the_others() -> None:
    history = [Message.tool("x", "0"), asks("a"), Message.tool("a", "1"), Message.tool("a", "2"), Message.user("And?")]
    assert outline(*history) == [
        ("user", "The result of a call that is not shown:\n0"),
        ("assistant", "calls"),
        ("tool", "a"),
        ("user", "The result of a call that is not shown:\n2"),
        ("user", "And?"),
    ]


def test_what_is_put_in_other_words_is_told_once() -> None:
    told: list[str] = []
    encoder = RequestEncoder("m", OPENAI, stream=True)
    history = History([Message.tool("x", "0"), Message.user("Hi")])
    for _ in range(2):
        encoder.encode(ModelRequest(messages=history), lambda code, text: told.append(text))
        history = history.append(Message.user("And?"))
    assert told == ["the call 'x' that a result belongs to: the result goes as a text"]


def test_ids_are_as_short_as_the_endpoint_wants_them_and_fit_each_other() -> None:
    long = "chatcmpl-tool-0123456789abcdef0123456789abcdef"
    [call, result] = orjson.loads(
        RequestEncoder("m", OPENAI, stream=True).encode(
            ModelRequest(messages=[asks(long), Message.tool(long, "1")]), unheard
        )
    )["messages"]
    assert call["tool_calls"][0]["id"] == result["tool_call_id"]
    assert len(result["tool_call_id"]) == 40
    free = replace(OPENAI, longest_call_id=None)
    assert outline(asks(long), Message.tool(long, "1"), preset=free)[1] == ("tool", long)
    short = "call_0123456789012345678901234567890123"
    assert outline(asks(short), Message.tool(short, "1"))[1] == ("tool", short)


def test_mistral_answers_the_user_or_a_tool() -> None:
    assert outline(Message.user("Hi"), Message.assistant("Ho"), preset=PRESETS["mistral"])[-1][0] == "user"


def test_of_a_history_only_what_is_new_is_looked_at() -> None:
    history = History([Message.user("Hi"), asks("a"), Message.tool("a", "1")])
    assert is_paired(history)
    assert history.paired == 3
    waits = history.append(asks("b"))
    assert not is_paired(waits)
    assert waits.paired == 3
    done = waits.append(Message.tool("b", "1"))
    assert is_paired(done)
    assert done.paired == 5
    assert not is_paired(history.append(Message.tool("a", "1")))
