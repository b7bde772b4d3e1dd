"""Conversations that switch between vendors at random remain valid."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from rxloop.protocol.events import ContentCompleteEvent, Event
from rxloop.protocol.messages import FilePart, ImagePart, Message, TextPart
from rxloop.providers.codecs import Codec
from rxloop.providers.codecs.draft import MessageDraft
from rxloop.providers.failures import Endpoint
from support.vendors.messages import to_message
from support.vendors.other_vendors import LOOK, OTHER_VENDORS, encode_request
from support.vendors.vendor_rules import Json

MARK = "SIGNED"
PNG = ImagePart(data=b"\x89PNG", media_type="image/png")
FILES = st.sampled_from(
    [
        PNG,
        ImagePart(url="https://e.org/a.png"),
        ImagePart(data=b"h", media_type="image/heic"),
        FilePart(data=b"%PDF", media_type="application/pdf"),
        FilePart(data=b"a,b", media_type="text/csv", filename="a.csv"),
        FilePart(data=b"\0", media_type="video/mp4"),
    ]
)
TEXTS = st.sampled_from(["", " ", "Oslo.", "Oslo is\n", "\U0001f600"])
CALL_IDS = st.sampled_from(["0", "call_1", "toolu_01A", "chatcmpl-tool-" + "f" * 32, "a b/c", "x" * 70, ""])
TOOLS = st.sampled_from(["look", "look.up", "no such tool"])
PIECES = st.lists(
    st.one_of(
        st.tuples(st.just("text"), TEXTS),
        st.tuples(st.just("thought"), st.sampled_from(["", "Hm.", "Well\n"])),
        st.tuples(st.just("call"), st.tuples(CALL_IDS, TOOLS)),
        st.tuples(st.just("server"), st.just("")),
        st.tuples(st.just("image"), st.just("")),
    ),
    max_size=5,
)
Piece = tuple[str, Any]


def make_claude_answer(pieces: Sequence[Piece], turn: str) -> Json:
    blocks: list[Json] = []
    for number, (kind, value) in enumerate(pieces):
        mark = f"{MARK}{turn}{number}"
        if kind == "text":
            blocks.append({"type": "text", "text": value})
        elif kind == "thought" and value:
            blocks.append({"type": "thinking", "thinking": value, "signature": mark})
        elif kind == "thought":
            blocks.append({"type": "redacted_thinking", "data": mark})
        elif kind == "call":
            blocks.append({"type": "tool_use", "id": value[0], "name": value[1], "input": {"at": "Oslo"}})
        elif kind == "server":
            call = {"type": "server_tool_use", "id": f"srvtoolu_{turn}{number}", "name": "web_search", "input": {}}
            found = {"type": "web_search_result", "url": "https://e.org", "title": "", "encrypted_content": mark}
            result = {"type": "web_search_tool_result", "tool_use_id": call["id"], "content": [found]}
            blocks += [call, result]
    calls = any(kind == "call" for kind, _ in pieces)
    return {"type": "message", "content": blocks, "stop_reason": "tool_use" if calls else "end_turn"}


def make_gemini_answer(pieces: Sequence[Piece], turn: str) -> Json:
    parts: list[Json] = []
    for number, (kind, value) in enumerate(pieces):
        signed = {"thoughtSignature": f"{MARK}{turn}{number}"}
        if kind == "text":
            parts.append({"text": value, **(signed if number % 2 else {})})
        elif kind == "thought":
            parts.append({"text": value, "thought": True, **(signed if number % 2 else {})})
        elif kind == "call":
            parts.append({"functionCall": {"name": value[1], "args": {"at": "Oslo"}, "id": value[0]}, **signed})
        elif kind == "server":
            parts.append({"executableCode": {"language": "PYTHON", "code": "1"}, **signed})
        else:
            parts.append({"inlineData": {"mimeType": "image/png", "data": "iVBORw=="}, **signed})
    return {"candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": "STOP"}]}


def make_gpt_answer(pieces: Sequence[Piece], turn: str) -> Json:
    items: list[Json] = []
    for number, (kind, value) in enumerate(pieces):
        mark = f"{turn}{number}"
        if kind == "text":
            content = [{"type": "output_text", "text": value, "annotations": []}]
            items.append({"type": "message", "id": f"msg_{mark}", "role": "assistant", "content": content})
            items[-1]["status"] = "completed"
        elif kind == "thought":
            summary = [{"type": "summary_text", "text": value}] if value else []
            items.append({"type": "reasoning", "id": f"rs_{mark}", "summary": summary})
            items[-1]["encrypted_content"] = f"{MARK}{turn}{number}"
        elif kind == "call":
            items.append({"type": "function_call", "id": f"fc_{mark}", "call_id": value[0] or mark, "name": value[1]})
            items[-1] |= {"arguments": '{"at": "Oslo"}', "status": "completed"}
        elif kind == "server":
            action = {"type": "search", "query": MARK, "queries": []}
            items.append({"type": "web_search_call", "id": f"ws_{mark}", "status": "completed", "action": action})
        else:
            items.append({"type": "image_generation_call", "id": f"ig_{mark}", "status": "completed"})
            items[-1]["result"] = "iVBORw=="
    return {"id": f"resp_{turn}", "status": "completed", "output": items}


def make_chat_answer(pieces: Sequence[Piece], turn: str) -> Json:
    message: Json = {"role": "assistant", "content": "".join(value for kind, value in pieces if kind == "text")}
    message["reasoning_content"] = "".join(value for kind, value in pieces if kind == "thought")
    message["reasoning_details"] = [{"type": "reasoning.encrypted", "data": f"{MARK}-{turn}"}]
    calls = [value for kind, value in pieces if kind == "call"]
    message["tool_calls"] = [
        {
            "id": call_id,
            "type": "function",
            "function": {"name": name, "arguments": '{"at": "Oslo"}'},
            "extra_content": {"google": {"thought_signature": f"{MARK}{turn}{number}"}},
        }
        for number, (call_id, name) in enumerate(calls)
    ]
    return {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}]}


SAYS: dict[str, Callable[[Sequence[Piece], str], Json]] = {
    name: make_claude_answer
    if "claude" in name
    else make_gemini_answer
    if "gemini" in name
    else make_gpt_answer
    if "gpt" in name
    else make_chat_answer
    for name in OTHER_VENDORS
}


def read_message(wire: Codec, answer: Json) -> Message:
    events: list[Event] = []
    reader = wire.make_reader(MessageDraft(events.append, "1", Endpoint("m", "http://x")))
    reader.read_body(orjson.dumps(answer))
    reader.complete()
    assert isinstance(events[-1], ContentCompleteEvent)
    for event in events:
        # Clients may see queries of vendor tools, but models do not.
        assert event.kind == "server-tool" or MARK.encode() not in event.to_json(public=True)
    return to_message(events[-1])


TURNS = st.lists(
    st.tuples(
        st.sampled_from(sorted(OTHER_VENDORS)), PIECES, st.booleans(), st.lists(FILES, max_size=2), st.booleans()
    ),
    min_size=1,
    max_size=6,
)


KEYS = {
    "claude": "anthropic",
    "another behind claude's protocol": "anthropic:MiniMax-M2",
    "gemini 3": "google_gemini",
    "gemini on vertex": "vertex_gemini",
    "gpt": "responses@",
}
"""Provider state keys by vendor."""


def extend_history(
    history: list[Message], message: Message, files: Sequence[Any], *, drops: bool, speaks: bool
) -> None:
    """Add an answer, tool results, and the next user message."""
    history.append(message)
    for place, call in enumerate(message.tool_calls):
        if not (drops and place == 0):
            history.append(Message.tool(call.id, [TextPart(text="It is blue."), *files]))
    if speaks or history[-1].role != "tool":
        history.append(Message.user([TextPart(text="And?"), *files]))


def find_marks(value: Any) -> set[str]:
    return set(re.findall(MARK + r"\d\d", orjson.dumps(value).decode()))


@settings(max_examples=40, deadline=None)
@given(TURNS)
def test_conversation_with_other_vendors_is_valid_for_each_vendor(turns: list[Any]) -> None:
    wires = {name: other.make_codec() for name, other in OTHER_VENDORS.items()}
    history = [Message.user("Where?")]
    for number, (name, pieces, drops, files, speaks) in enumerate(turns):
        message = read_message(wires[name], SAYS[name](pieces, str(number)))
        extend_history(history, message, files, drops=drops, speaks=speaks)
        for other, wire in wires.items():
            OTHER_VENDORS[other].check(encode_request(wire, history, tools=(LOOK,)))


@settings(max_examples=60, deadline=None)
@given(TURNS)
def test_each_vendor_gets_only_its_own_signed_parts(turns: list[Any]) -> None:
    wires = {name: OTHER_VENDORS[name].make_codec() for name in KEYS}
    history = [Message.user("Where?")]
    for number, (name, pieces, drops, files, speaks) in enumerate(turns):
        name = name if name in KEYS else "claude"
        message = read_message(wires[name], SAYS[name](pieces, str(number)))
        extend_history(history, message, files, drops=drops, speaks=speaks)
    # Load the messages as from a log.
    history = [Message.model_validate_json(each.model_dump_json()) for each in history]
    for name, key in KEYS.items():
        own = [
            find_marks(state)
            for message in history
            for of, state in (message.provider_state or {}).items()
            if of == key or (key.endswith("@") and of.startswith(key))
        ]
        found = find_marks(encode_request(wires[name], history, tools=(LOOK,)))
        assert found <= set().union(*own)
        # OpenAI reasoning without a following answer is omitted along with its message.
        assert name == "gpt" or found == set().union(*own)


@settings(max_examples=60, deadline=None)
@given(TURNS)
def test_omitted_parts_are_reported_once_per_message(turns: list[Any]) -> None:
    wires = {name: OTHER_VENDORS[name].make_codec() for name in ("claude", "gemini 3", "gpt")}
    told: dict[str, list[str]] = {name: [] for name in wires}
    history = [Message.user("Where?")]
    for number, (name, pieces, _, files, speaks) in enumerate(turns):
        name = name if name in wires else "claude"
        message = read_message(wires[name], SAYS[name](pieces, str(number)))
        extend_history(history, message, files, drops=False, speaks=speaks)
        for other, wire in wires.items():
            encode_request(wire, history, told[other])
    for name, notices in told.items():
        again: list[str] = []
        encode_request(OTHER_VENDORS[name].make_codec(), [each.model_copy() for each in history], again)
        assert sorted(notices) == sorted(again)
