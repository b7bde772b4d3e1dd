"""Recorded conversations of several turns: what we send as the second request is what the vendor's client sent.

The first answer is read by our wire, the message goes into the history as in a run, and with the recorded results the
contents are compared part for part.
"""

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
    "response": "clients wrap a result each in their own way; `output` is the name that Google documents",
    "toolCall.args": "google-genai adds empty arguments to a call of a tool of Google's, and we what came",
    "toolResponse.response": "the client added what it found in the sources to the answer of a tool, and we what came",
    "functionCall.id": "the client made an id up where the vendor gave none",
}
"""What is compared no further, with the reason."""


def conversations() -> list[str]:
    """Those whose second request goes on after the first answer."""
    found: list[str] = []
    for name in recording_names(api="gen"):
        exchanges = recording(name)["exchanges"]
        if len(exchanges) > 1 and len(exchanges[1]["request"]["body"]["contents"]) > 1:
            found.append(name)
    return found or ["none"]


def same_form(value: Any, vendor_ids: set[str]) -> Any:
    """A part without what is meant to differ, and without the spellings of one field that Google takes alike."""
    if isinstance(value, list):
        return [same_form(each, vendor_ids) for each in value]
    if not isinstance(value, dict):
        return value
    made: dict[str, Any] = {}
    for key, each in value.items():
        name = re.sub("_(.)", lambda match: match[1].upper(), key)
        if name == "thoughtSignature":
            each = urlsafe_b64decode(each.replace("+", "-").replace("/", "_"))
        made[name] = each if name in ("args", "text") else same_form(each, vendor_ids)
    for kind, field in (("toolCall", "args"), ("toolResponse", "response")):
        if kind in made:
            made[kind].pop(field, None)
    for kind in ("functionCall", "functionResponse"):
        if kind in made:
            made[kind].pop("response", None)
            if made[kind].get("id") not in vendor_ids:
                made[kind].pop("id", None)
    return made


def results(contents: list[Any], calls: ContentCompleteEvent) -> list[Message]:
    """The recorded results as the messages of our history, and what the user said after them."""
    texts = [part for turn in contents for part in turn["parts"]]
    answers = [part.get("functionResponse") or part.get("function_response") for part in texts]
    found = [
        Message.tool(call.id, orjson.dumps(answer["response"]).decode())
        for call, answer in zip(calls.tool_calls, filter(None, answers), strict=True)
    ]
    return [*found, *(Message.user(part["text"]) for part in texts if "text" in part)]


@pytest.mark.parametrize("name", conversations())
async def test_the_second_request_is_the_one_that_was_recorded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
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
    history = [said, to_message(complete), *results(theirs[2:], complete)]
    ours = encode_body(history, model=THREE if "gemini-3" in conversation["model"] else TWO)["contents"]
    ids = set(re.findall(r'"id": ?"([^"]+)"', exchange["response"]["text"]))
    assert same_form(ours, ids) == same_form(theirs, ids)


def test_there_are_conversations_enough() -> None:
    assert len(conversations()) >= 12
