"""What goes back of a recorded answer, beside what the vendor's own client has sent."""

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
"""The client sends calls without the ids of their items; with them the vendor knows what belongs to what."""
AS_ITEM = {"+message.id", "+message.status", "+message.type", "message.content"}
"""The client sends the text alone; we send the item as it came, with its id, so that reasoning has what follows it."""
REASONING = {"+reasoning"}
"""The client leaves it out; the vendor asks for it."""
UNSENT = "reasoning that the vendor has neither stored nor sent encrypted"
NO_REASONING = ("azure-resp-j-tool-0787de92", "openai-resp-s-multi-tool-streaming-cdb0c689")
"""Nothing was stored, and the client had not asked for the encrypted form."""
DIFFER: dict[str, set[str]] = {
    "azure-resp-j-tool-0787de92": set(),
    "azure-resp-s-thinking-streaming-85f0ee27": IDS | REASONING,
    # The client has no encrypted content where there is some, and says so where there is none; `phase` is to be kept.
    "deepseek-resp-j-test-deepseek-responses-replay-own-reasoning-ba13dda1": AS_ITEM
    | {"reasoning.encrypted_content", "+reasoning.status", "+message.phase"},
    "deepseek-resp-j-test-deepseek-responses-text-multi-turn-cfa352d6": AS_ITEM
    | {"-reasoning.encrypted_content", "+reasoning.status", "+message.phase"},
    "deepseek-resp-s-test-deepseek-responses-function-tool-stream-3b9d8995": IDS
    | {"-reasoning.encrypted_content", "+reasoning.status"},
    # The client writes `queries` where the vendor has written `paths`, and drops the fields that are null.
    "openai-resp-j-test-live-tool-search-handoff-openai-to-anth-035e6b14": {
        "tool_search_call.arguments",
        "tool_search_output.tools",
        "+function_call.status",
    },
    # It also makes up an id of a call, and forgets the output.
    "openai-resp-s-test-openai-native-tool-search-streaming-6794c4ae": {
        "tool_search_call.arguments",
        "tool_search_call.call_id",
        "+tool_search_output",
        "+function_call.status",
    },
    # A message without text says nothing.
    "openai-resp-j-test-openai-responses-model-retry-8d327f88": IDS | {"-message"},
    # Its user has put another text into the message, which the vendor then refused; ours goes back as it came.
    "openai-resp-j-test-openai-responses-thinking-with-modified-2598f3c3": AS_ITEM,
    "openai-resp-s-multi-tool-streaming-cdb0c689": set(),
    # The client took the id of the item for that of the call.
    "openai-resp-s-test-openai-responses-stream-298b4175": IDS
    | {"function_call.call_id", "function_call_output.call_id"},
    # The client writes the arguments anew, with spaces.
    "openai-resp-s-test-responses-tool-use-streaming-442eaef5": IDS | {"function_call.arguments"},
}


def answered(exchange: Any) -> Message:
    """The message of the model that a recorded answer is."""
    by = make_codec(exchange["request"]["body"]["model"], THERE)
    data = body(exchange)
    if not exchange["stream"]:
        return last_message(read_events(data, by))
    lines = [line[5:].strip() for line in data.splitlines() if line.startswith(b"data:")]
    return last_message(read_events([orjson.loads(line) for line in lines if line != b"[DONE]"], by))


def pairs() -> list[tuple[str, int]]:
    """The exchanges after which the same conversation goes on."""
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
    """What differs between two lists of items: `+` is ours alone, `-` theirs alone."""
    found: set[str] = set()
    left = list(theirs)
    for item in ours:
        kind = item.get("type", "message")
        match = next((other for other in left if kind_of(other) == kind), None)
        if match is None:
            found.add(f"+{kind}")
            continue
        left.remove(match)
        found |= {f"+{kind}.{name}" for name in item.keys() - match.keys()}
        found |= {f"-{kind}.{name}" for name in match.keys() - item.keys()}
        found |= {f"{kind}.{name}" for name in item.keys() & match.keys() if item[name] != match[name]}
    return found | {f"-{kind_of(other)}" for other in left}


def kind_of(item: dict[str, Any]) -> str:
    return item.get("type", "message")


@pytest.mark.parametrize(("name", "number"), pairs() or [("none", 0)])
def test_what_goes_back_is_what_the_client_sent_but_for_what_is_listed(name: str, number: int) -> None:
    one, other = recording(name)["exchanges"][number : number + 2]
    theirs = other["request"]["body"]["input"][len(one["request"]["body"]["input"]) :]
    message = answered(one)
    outputs = [item["output"] for item in theirs if item.get("type") == "function_call_output"]
    results = [Message.tool(call.id, text) for call, text in zip(message.tool_calls, outputs, strict=True)]
    results += [Message.user(item["content"]) for item in theirs if item.get("role") == "user"]
    told: list[str] = []
    ours = encode([message, *results], make_codec(one["request"]["body"]["model"], THERE), told)["input"]
    assert differences(ours, theirs) == DIFFER[name]
    assert [each.partition(" does not receive ")[2] for each in told] == ([UNSENT] if name in NO_REASONING else [])
