"""Second requests of recorded conversations, compared with Google's client."""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode
from typing import Any

import orjson
import pytest

from rxloop.protocol.events import ContentCompleteEvent
from rxloop.protocol.messages import Message
from support.http_server import REQUEST, collect
from support.vendors.gemini import THREE, TWO, encode_body
from support.vendors.messages import to_message
from support.vendors.native import make_gemini
from support.vendors.recordings import needs_recordings, recording, recording_names, replay_server

pytestmark = needs_recordings
DIFFER = {
    "response": "clients wrap results differently; Google documents `output`",
    "toolCall.args": "google-genai adds empty arguments, while we send the received ones",
    "toolResponse.response": "the client added sources, while we send the received response",
    "functionCall.id": "the client generated missing ids",
}
"""Fields that may differ, with reasons."""


def list_conversations() -> list[str]:
    """List conversations whose second request contains the first answer."""
    found: list[str] = []
    for name in recording_names(api="gen"):
        exchanges = recording(name)["exchanges"]
        if len(exchanges) > 1 and len(exchanges[1]["request"]["body"]["contents"]) > 1:
            found.append(name)
    return found or ["none"]


def normalise(value: Any, vendor_ids: set[str]) -> Any:
    """Remove intentional differences, and normalise equivalent spellings."""
    if isinstance(value, list):
        return [normalise(each, vendor_ids) for each in value]
    if not isinstance(value, dict):
        return value
    made: dict[str, Any] = {}
    for key, each in value.items():
        name = re.sub("_(.)", lambda match: match[1].upper(), key)
        if name == "thoughtSignature":
            each = urlsafe_b64decode(each.replace("+", "-").replace("/", "_"))
        made[name] = each if name in ("args", "text") else normalise(each, vendor_ids)
    for kind, field in (("toolCall", "args"), ("toolResponse", "response")):
        if kind in made:
            made[kind].pop(field, None)
    for kind in ("functionCall", "functionResponse"):
        if kind in made:
            made[kind].pop("response", None)
            if made[kind].get("id") not in vendor_ids:
                made[kind].pop("id", None)
    return made


def to_messages(contents: list[Any], calls: ContentCompleteEvent) -> list[Message]:
    """Convert recorded tool results and later user messages."""
    texts = [part for turn in contents for part in turn["parts"]]
    answers = [part.get("functionResponse") or part.get("function_response") for part in texts]
    found = [
        Message.tool(call.id, orjson.dumps(answer["response"]).decode())
        for call, answer in zip(calls.tool_calls, filter(None, answers), strict=True)
    ]
    return [*found, *(Message.user(part["text"]) for part in texts if "text" in part)]


@pytest.mark.parametrize("name", list_conversations())
async def test_second_request_matches_the_recording(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", "a-key")
    conversation = recording(name)
    exchange = conversation["exchanges"][0]
    async with replay_server("httpx", make_gemini) as vendor:
        vendor.replay_conversation(conversation)
        answer = await collect(vendor.provider(exchange).call(REQUEST))
    complete = answer.events[-1]
    assert isinstance(complete, ContentCompleteEvent)
    theirs = conversation["exchanges"][1]["request"]["body"]["contents"]
    said = Message.user(theirs[0]["parts"][0]["text"])
    history = [said, to_message(complete), *to_messages(theirs[2:], complete)]
    ours = encode_body(history, model=THREE if "gemini-3" in conversation["model"] else TWO)["contents"]
    ids = set(re.findall(r'"id": ?"([^"]+)"', exchange["response"]["text"]))
    assert normalise(ours, ids) == normalise(theirs, ids)


def test_enough_conversations_are_found() -> None:
    assert len(list_conversations()) >= 12
