"""Second requests of recorded conversations, compared with OpenAI's client."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import orjson
import pytest

from rxloop.protocol.messages import Message
from support.vendors.recordings import body, needs_recordings, recording, recording_names
from support.vendors.responses import encode, last_message, make_codec, read_events

pytestmark = needs_recordings
THERE = "https://recorded.example/v1"

IDS = {"+function_call.id", "+function_call.status"}
"""The client omits item ids, which we keep."""
AS_ITEM = {"+message.id", "+message.status", "+message.type", "message.content"}
"""The client sends only the text.

The codec sends the item with its id, because reasoning requires the following item.
"""
REASONING = {"+reasoning"}
"""The client omits required reasoning."""
UNSENT = "reasoning that the vendor has neither stored nor sent encrypted"
NO_REASONING = ("azure-resp-j-tool-0787de92", "openai-resp-s-multi-tool-streaming-cdb0c689")
"""Reasoning was not stored, and the client did not request the encrypted form."""
DIFFER: dict[str, set[str]] = {
    "azure-resp-j-tool-0787de92": set(),
    "azure-resp-s-thinking-streaming-85f0ee27": IDS | REASONING,
    # The client loses encrypted content, or sends null for it. We keep `phase`.
    "deepseek-resp-j-test-deepseek-responses-replay-own-reasoning-ba13dda1": AS_ITEM
    | {"reasoning.encrypted_content", "+reasoning.status", "+message.phase"},
    "deepseek-resp-j-test-deepseek-responses-text-multi-turn-cfa352d6": AS_ITEM
    | {"-reasoning.encrypted_content", "+reasoning.status", "+message.phase"},
    "deepseek-resp-s-test-deepseek-responses-function-tool-stream-3b9d8995": IDS
    | {"-reasoning.encrypted_content", "+reasoning.status"},
    # The client renames `paths` to `queries`, and drops null fields.
    "openai-resp-j-test-live-tool-search-handoff-openai-to-anth-035e6b14": {
        "tool_search_call.arguments",
        "tool_search_output.tools",
        "+function_call.status",
    },
    # In addition, the client generates a call id and loses the output.
    "openai-resp-s-test-openai-native-tool-search-streaming-6794c4ae": {
        "tool_search_call.arguments",
        "tool_search_call.call_id",
        "+tool_search_output",
        "+function_call.status",
    },
    # An empty message is omitted.
    "openai-resp-j-test-openai-responses-model-retry-8d327f88": IDS | {"-message"},
    # The client changed the message, which OpenAI then rejected. We send the original.
    "openai-resp-j-test-openai-responses-thinking-with-modified-2598f3c3": AS_ITEM,
    "openai-resp-s-multi-tool-streaming-cdb0c689": set(),
    # The client used the item id as the call id.
    "openai-resp-s-test-openai-responses-stream-298b4175": IDS
    | {"function_call.call_id", "function_call_output.call_id"},
    # The client formats the arguments with spaces.
    "openai-resp-s-test-responses-tool-use-streaming-442eaef5": IDS | {"function_call.arguments"},
}


def read_answer(exchange: Any) -> Message:
    """Return the message of a recorded response."""
    by = make_codec(exchange["request"]["body"]["model"], THERE)
    data = body(exchange)
    if not exchange["stream"]:
        return last_message(read_events(data, by))
    lines = [line[5:].strip() for line in data.splitlines() if line.startswith(b"data:")]
    return last_message(read_events([orjson.loads(line) for line in lines if line != b"[DONE]"], by))


def list_pairs() -> list[tuple[str, int]]:
    """List exchanges that the next exchange continues."""
    found: list[tuple[str, int]] = []
    for name in recording_names(api="resp"):
        exchanges = recording(name)["exchanges"]
        for number, (one, other) in enumerate(pairwise(exchanges)):
            before, after = one["request"]["body"]["input"], other["request"]["body"]["input"]
            said = one["response"]["status"] == 200 and "queued" not in str(one["response"].get("text"))[:3000]
            if said and len(after) > len(before) and after[: len(before)] == before:
                found.append((name, number))
    return found


def differences(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> set[str]:
    """Return the differences between two lists of items: `+` is only ours, `-` only theirs."""
    found: set[str] = set()
    left = list(theirs)
    for item in ours:
        kind = item.get("type", "message")
        match = next((other for other in left if item_type(other) == kind), None)
        if match is None:
            found.add(f"+{kind}")
            continue
        left.remove(match)
        found |= {f"+{kind}.{name}" for name in item.keys() - match.keys()}
        found |= {f"-{kind}.{name}" for name in match.keys() - item.keys()}
        found |= {f"{kind}.{name}" for name in item.keys() & match.keys() if item[name] != match[name]}
    return found | {f"-{item_type(other)}" for other in left}


def item_type(item: dict[str, Any]) -> str:
    return item.get("type", "message")


@pytest.mark.parametrize(("name", "number"), list_pairs() or [("none", 0)])
def test_second_request_equals_the_recorded_one_except_for_listed_fields(name: str, number: int) -> None:
    one, other = recording(name)["exchanges"][number : number + 2]
    theirs = other["request"]["body"]["input"][len(one["request"]["body"]["input"]) :]
    message = read_answer(one)
    outputs = [item["output"] for item in theirs if item.get("type") == "function_call_output"]
    results = [Message.tool(call.id, text) for call, text in zip(message.tool_calls, outputs, strict=True)]
    results += [Message.user(item["content"]) for item in theirs if item.get("role") == "user"]
    notices: list[str] = []
    ours = encode([message, *results], make_codec(one["request"]["body"]["model"], THERE), notices)["input"]
    assert differences(ours, theirs) == DIFFER[name]
    assert [each.partition(" does not receive ")[2] for each in notices] == ([UNSENT] if name in NO_REASONING else [])
