"""Up to where a request is kept in the cache."""

from __future__ import annotations

from typing import Any

import pytest

from rxloop.pipeline.requests import ModelRequest, ToolDefinition
from rxloop.protocol.messages import Message, ToolCall
from rxloop.protocol.settings import ModelSettings, PromptCache
from support.vendors.claude import Json, encode

TOOLS = (ToolDefinition("a", "", {"type": "object"}), ToolDefinition("b", "", {"type": "object"}))
MARK = {"type": "ephemeral"}


def places(points: list[Any] | None = None, **changes: Any) -> Json:
    """Where the breakpoints stand: names of tools, texts of messages."""
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
    asked = encode(ModelRequest(**fields))
    blocks = [block for message in asked["messages"] for block in message["content"]]
    return {
        "tools": [each["name"] for each in asked.body.get("tools", []) if "cache_control" in each],
        "system": [each["text"] for each in asked.body.get("system", []) if "cache_control" in each],
        "messages": [each.get("text") or each["type"] for each in blocks if "cache_control" in each],
        "notices": asked.notices,
    }


def test_by_default_it_is_kept_up_to_the_tools_the_system_prompt_and_the_newest_message() -> None:
    assert places() == {"tools": ["b"], "system": ["s2"], "messages": ["3"], "notices": []}


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
def test_it_is_kept_where_the_settings_say(
    points: list[Any], tools: list[str], system: list[str], messages: list[str]
) -> None:
    assert places(points) == {"tools": tools, "system": system, "messages": messages, "notices": []}


def test_there_are_four_places_at_most() -> None:
    found = places(["tools", "system", "newest", 0, 1])
    assert (found["tools"], found["system"], found["messages"]) == (["b"], ["s2"], ["1", "3"])
    assert "more than 4" in found["notices"][0]


def test_those_of_server_tools_count() -> None:
    search = {"type": "web_search_20250305", "name": "web_search", "cache_control": {"type": "ephemeral"}}
    found = places(["tools", "system", "newest", 0], settings={"server_tools": [search]})
    assert (found["tools"], found["messages"]) == (["b", "web_search"], ["3"])


def test_who_leaves_it_to_the_vendor_gets_none_of_ours() -> None:
    found = places(settings={"extra_body": {"cache_control": {"type": "ephemeral"}}})
    assert (found["tools"], found["system"], found["messages"]) == ([], [], [])


def test_an_hour_is_said_at_each_place() -> None:
    cache = PromptCache(ttl="1h")
    asked = encode(ModelRequest(messages=[Message.user("x")], settings=ModelSettings(prompt_cache=cache), tools=TOOLS))
    assert asked["tools"][1]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
    assert asked["messages"][0]["content"][0]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}


def test_thinking_has_none_so_that_it_stands_before() -> None:
    state = {"anthropic": [{"text": 2}, {"reasoning": 3, "extra": {"signature": "s"}}]}
    thinking = Message(role="assistant", content="hi", reasoning="hmm", provider_state=state)
    assert places(messages=[Message.user("1"), thinking], tail=())["messages"] == ["hi"]
    only = Message(role="assistant", reasoning="hmm", provider_state={"anthropic": [state["anthropic"][1]]})
    assert places(messages=[Message.user("1"), only], tail=())["messages"] == ["1"]


def test_a_result_may_be_the_place() -> None:
    history = [Message.user("1"), Message.assistant(tool_calls=[ToolCall(id="x", name="a")]), Message.tool("x", "2")]
    assert places(messages=history)["messages"] == ["tool_result"]


def test_the_places_are_no_part_of_what_is_kept_of_a_message() -> None:
    message = Message.user("1")
    encode([message])
    longer = encode([message, Message.assistant("2"), Message.user("3")])
    assert "cache_control" not in longer["messages"][0]["content"][0]
    assert longer["messages"][2]["content"][0]["cache_control"] == MARK
