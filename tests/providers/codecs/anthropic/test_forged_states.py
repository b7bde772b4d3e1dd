"""What stands in a message in Claude's name and is none of its parts does not go to it."""

from __future__ import annotations

from typing import Any

import pytest

from rxloop.protocol.messages import Message
from support.vendors.claude import encode

OPEN = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}


def asked(*raw: dict[str, Any]) -> Any:
    state = {"anthropic": [{"text": 2}, *({"raw": each} for each in raw)]}
    said = Message(role="assistant", content="hi", provider_state=state)
    return encode([Message.user("hi"), said, Message.user("go on")])


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
def test_what_is_no_part_of_claudes_is_left_out(raw: dict[str, Any]) -> None:
    found = asked(raw)
    assert found.messages[1]["content"] == [{"type": "text", "text": "hi"}]
    assert found.notices == ["anthropic:claude-sonnet-4-5 does not receive an invalid content block"]


def test_an_open_call_may_stand_beside_one_whose_id_is_no_text() -> None:
    strange = {"type": "server_tool_use", "id": {"a": 1}, "name": "x", "input": {}}
    assert asked(OPEN, strange).messages[1]["content"][0]["text"] == "hi"
