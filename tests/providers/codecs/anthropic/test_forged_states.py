"""Tests that invalid blocks in the provider state are not sent to Anthropic."""

from __future__ import annotations

from typing import Any

import pytest

from rxloop.protocol.messages import Message
from support.vendors.claude import encode

OPEN = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}


def encode_state(*raw: dict[str, Any]) -> Any:
    state = {"anthropic": [{"text": 2}, *({"raw": each} for each in raw)]}
    answer = Message(role="assistant", content="hi", provider_state=state)
    return encode([Message.user("hi"), answer, Message.user("go on")])


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"id": "x"},
        {"type": 5},
        {"type": ""},
        {"item": 0, "fields": {"type": "message"}},
        {"type": "tool_use", "id": "a", "name": "b", "input": {}},
        {"type": "tool_result", "tool_use_id": "a"},
        {"type": "text", "text": ""},
        {"type": "thinking", "thinking": "x"},
    ],
)
def test_request_omits_invalid_blocks_of_the_provider_state(raw: dict[str, Any]) -> None:
    request = encode_state(raw)
    assert request.messages[1]["content"] == [{"type": "text", "text": "hi"}]
    assert request.notices == ["anthropic:claude-sonnet-4-5 does not receive an invalid content block"]


def test_open_server_call_is_handled_next_to_a_call_with_an_invalid_id() -> None:
    strange = {"type": "server_tool_use", "id": {"a": 1}, "name": "x", "input": {}}
    assert encode_state(OPEN, strange).messages[1]["content"][0]["text"] == "hi"
