"""Tests of the cache points in Anthropic requests."""

from __future__ import annotations

from typing import Any

import pytest

from rxloop.pipeline.requests import ModelRequest, ToolDefinition
from rxloop.protocol.messages import Message, ToolCall
from rxloop.protocol.settings import ModelSettings, PromptCache
from support.vendors.claude import Json, encode

TOOLS = (ToolDefinition("a", "", {"type": "object"}), ToolDefinition("b", "", {"type": "object"}))
MARK = {"type": "ephemeral"}


def find_cache_points(points: list[Any] | None = None, **changes: Any) -> Json:
    settings: dict[str, Any] = dict(changes.pop("settings", {}))
    if points is not None:
        settings["prompt_cache"] = PromptCache(points=points)
    fields: dict[str, Any] = {
        "messages": [Message.user("1"), Message.assistant("2"), Message.user("3")],
        "system": (Message.system("s1"), Message.system("s2")),
        "tail": (Message.user("tail"),),
        "tools": TOOLS,
        "settings": ModelSettings(**settings),
    }
    fields.update(changes)
    encoded = encode(ModelRequest(**fields))
    blocks = [block for message in encoded["messages"] for block in message["content"]]
    return {
        "tools": [each["name"] for each in encoded.body.get("tools", []) if "cache_control" in each],
        "system": [each["text"] for each in encoded.body.get("system", []) if "cache_control" in each],
        "messages": [each.get("text") or each["type"] for each in blocks if "cache_control" in each],
        "notices": encoded.notices,
    }


def test_cache_points_cover_tools_system_prompt_and_newest_message_by_default() -> None:
    assert find_cache_points() == {"tools": ["b"], "system": ["s2"], "messages": ["3"], "notices": []}


@pytest.mark.parametrize(
    ("points", "tools", "system", "messages"),
    [
        ([], [], [], []),
        (["system"], [], ["s2"], []),
        (["newest", 0], [], [], ["1", "3"]),
        ([-2], [], [], ["2"]),
        ([7, -7], [], [], []),
    ],
)
def test_cache_points_follow_the_settings(
    points: list[Any], tools: list[str], system: list[str], messages: list[str]
) -> None:
    assert find_cache_points(points) == {"tools": tools, "system": system, "messages": messages, "notices": []}


def test_request_has_at_most_four_cache_points() -> None:
    found = find_cache_points(["tools", "system", "newest", 0, 1])
    assert (found["tools"], found["system"], found["messages"]) == (["b"], ["s2"], ["1", "3"])
    assert "more than 4" in found["notices"][0]


def test_cache_points_of_server_tools_count_towards_the_limit() -> None:
    search = {"type": "web_search_20250305", "name": "web_search", "cache_control": {"type": "ephemeral"}}
    found = find_cache_points(["tools", "system", "newest", 0], settings={"server_tools": [search]})
    assert (found["tools"], found["messages"]) == (["b", "web_search"], ["3"])


def test_request_has_no_cache_points_when_the_vendor_chooses_them() -> None:
    found = find_cache_points(settings={"extra_body": {"cache_control": {"type": "ephemeral"}}})
    assert (found["tools"], found["system"], found["messages"]) == ([], [], [])


def test_cache_points_have_the_configured_ttl() -> None:
    cache = PromptCache(ttl="1h")
    encoded = encode(
        ModelRequest(messages=[Message.user("x")], settings=ModelSettings(prompt_cache=cache), tools=TOOLS)
    )
    assert encoded["tools"][1]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
    assert encoded["messages"][0]["content"][0]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}


def test_cache_point_precedes_thinking_blocks() -> None:
    state = {"anthropic": [{"text": 2}, {"reasoning": 3, "extra": {"signature": "s"}}]}
    thinking = Message(role="assistant", content="hi", reasoning="hmm", provider_state=state)
    assert find_cache_points(messages=[Message.user("1"), thinking], tail=())["messages"] == ["hi"]
    only = Message(role="assistant", reasoning="hmm", provider_state={"anthropic": [state["anthropic"][1]]})
    assert find_cache_points(messages=[Message.user("1"), only], tail=())["messages"] == ["1"]


def test_cache_point_may_be_a_tool_result() -> None:
    history = [Message.user("1"), Message.assistant(tool_calls=[ToolCall(id="x", name="a")]), Message.tool("x", "2")]
    assert find_cache_points(messages=history)["messages"] == ["tool_result"]


def test_cached_encoding_of_a_message_has_no_cache_points() -> None:
    message = Message.user("1")
    encode([message])
    longer = encode([message, Message.assistant("2"), Message.user("3")])
    assert "cache_control" not in longer["messages"][0]["content"][0]
    assert longer["messages"][2]["content"][0]["cache_control"] == MARK
