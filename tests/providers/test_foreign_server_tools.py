"""Foreign server tools are omitted with a notice, so that a fallback can continue."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol.messages import Message
from rxloop.protocol.settings import ModelSettings
from rxloop.providers import PRESETS
from rxloop.providers.codecs.chat import ChatCodec
from rxloop.providers.vendors.presets import CUSTOM
from support.vendors import claude, gemini, responses

GOOGLES = {"googleSearch": {}}
THEIRS: dict[str, Any] = {"type": "web_search", "name": "web_search"}


def make_request(*server_tools: dict[str, Any]) -> ModelRequest:
    return ModelRequest(messages=[Message.user("hi")], settings=ModelSettings(server_tools=list(server_tools)))


def test_claude_is_not_sent_a_tool_of_google() -> None:
    asked = claude.encode(make_request(GOOGLES, {"type": "web_search_20250305", "name": "web_search"}))
    assert [tool["name"] for tool in asked["tools"]] == ["web_search"]
    assert asked.notices == ["anthropic:claude-sonnet-4-5 does not accept the tool 'googleSearch' of another vendor"]


def test_responses_is_not_sent_a_tool_of_google() -> None:
    left_out: list[str] = []
    assert responses.encode(make_request(GOOGLES, THEIRS), notices=left_out)["tools"] == [THEIRS]
    assert left_out == ["openai_responses:gpt-5 does not accept the tool 'googleSearch' of another vendor"]


def test_gemini_is_not_sent_a_tool_of_another_vendor() -> None:
    told = gemini.NoticeRecorder()
    assert gemini.encode_body(notices=told, server_tools=[GOOGLES, THEIRS])["tools"] == [GOOGLES]
    assert len(told.notices) == 1


def test_gemini_is_not_sent_an_unknown_service_tier() -> None:
    told = gemini.NoticeRecorder()
    assert "serviceTier" not in gemini.encode_body(notices=told, service_tier="auto")
    assert "'auto'" in told.notices[0]


def test_gemini_tool_config_is_sent_only_with_its_own_tools() -> None:
    assert "toolConfig" not in gemini.encode_body(server_tools=[THEIRS])
    assert "toolConfig" in gemini.encode_body(server_tools=[GOOGLES])


@pytest.mark.parametrize("named", [True, False])
def test_named_chat_endpoint_is_not_sent_a_tool_of_another_vendor(named: bool) -> None:
    claudes: dict[str, Any] = {"type": "web_search_20250305", "name": "web_search"}
    told: list[str] = []
    # Custom URLs may be gateways that accept all tools.
    wire = ChatCodec("m", PRESETS["zai"] if named else CUSTOM, stream=True)
    for _ in range(2):
        encoded = wire.encode(make_request(GOOGLES, claudes, THEIRS), lambda code, text: told.append(text))
        assert orjson.loads(encoded)["tools"] == ([THEIRS] if named else [GOOGLES, claudes, THEIRS])
    tools = ("googleSearch", "web_search_20250305") if named else ()
    assert told == [f"zai:m does not accept the tool {tool!r} of another vendor" for tool in tools]
