"""Second requests of recorded conversations, compared with the SDK."""

from __future__ import annotations

from typing import Any

import pytest

from rxloop.pipeline.requests import ModelRequest, ToolDefinition
from rxloop.protocol.messages import Message, TextPart
from support.http_server import REQUEST, collect
from support.vendors.claude import Json, encode, last_message, make_codec, strip_cache_control
from support.vendors.native import NATIVE
from support.vendors.recordings import needs_recordings, recording, recording_names, replay_server

pytestmark = needs_recordings


def list_conversations() -> list[str]:
    """List conversations whose second request contains the first answer."""
    found = [name for name in recording_names(api="msgs") if _continues(recording(name)["exchanges"])]
    return found or ["nobody"]


def _continues(exchanges: list[Any]) -> bool:
    if len(exchanges) < 2 or exchanges[0]["response"]["status"] != 200:
        return False
    return len(exchanges[1]["request"]["body"]["messages"]) > len(exchanges[0]["request"]["body"]["messages"])


def normalise_message(message: Json) -> Json:
    """Normalise equivalent forms of a message.

    Strings become text blocks, default fields are removed, and blank texts are dropped because we omit them.
    """
    content = message["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return {"role": message["role"], "content": [_normalise_block(each) for each in blocks if not _is_blank(each)]}


def _is_blank(block: Json) -> bool:
    return block["type"] == "text" and not block["text"].strip()


def _normalise_block(block: Json) -> Json:
    made = {name: value for name, value in block.items() if value is not None and (name, value) != ("is_error", False)}
    # Newer models set `caller`, whose default is "direct".
    if made.get("caller") == {"type": "direct"}:
        del made["caller"]
    if block["type"] == "tool_result" and isinstance(block.get("content"), str):
        made["content"] = [{"type": "text", "text": block["content"]}]
    elif isinstance(block.get("content"), list):
        made["content"] = [_normalise_block(each) for each in block["content"]]
    return made


def to_messages(recorded: list[Json]) -> list[Message]:
    """Convert recorded user messages and tool results."""
    found: list[Message] = []
    for message in recorded:
        assert message["role"] == "user"
        for each in normalise_message(message)["content"]:
            if each["type"] == "tool_result":
                parts = [TextPart(text=part["text"]) for part in each["content"]]
                found.append(Message.tool(each["tool_use_id"], parts))
            else:
                found.append(Message.user(each["text"]))
    return found


@pytest.mark.parametrize("name", list_conversations())
async def test_second_request_matches_the_recording(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a-key")
    conversation = recording(name)
    first, second = (exchange["request"]["body"] for exchange in conversation["exchanges"][:2])
    async with replay_server("httpx", NATIVE["msgs"].make) as vendor:
        vendor.replay_conversation(conversation)
        answer = await collect(vendor.provider(conversation["exchanges"][0]).call(REQUEST))
    begun = len(first["messages"])
    history = [*to_messages(first["messages"]), last_message(answer), *to_messages(second["messages"][begun + 1 :])]
    tools = tuple(
        ToolDefinition(each["name"], each.get("description", ""), each["input_schema"])
        for each in second.get("tools", ())
        if "input_schema" in each
    )
    asked = encode(ModelRequest(messages=history, tools=tools), make_codec(first.get("model", "claude-3-7-sonnet")))
    assert [normalise_message(each) for each in asked.messages] == [
        normalise_message(each) for each in strip_cache_control(second["messages"])
    ]
    assert not asked.notices
