"""Anthropic requests checked against the SDK's types, and responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
from anthropic.types.beta.message_create_params import MessageCreateParamsNonStreaming, MessageCreateParamsStreaming

from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol.events import Event
from rxloop.protocol.messages import Message
from rxloop.providers import PRESETS, anthropic_messages
from rxloop.providers.codecs.anthropic import AnthropicCodec
from rxloop.providers.codecs.draft import MessageDraft
from rxloop.providers.failures import Endpoint
from support.http_server import Server, StreamResult, collect
from support.vendors.messages import to_message
from support.vendors.typed_dicts import find_mismatch

Json = dict[str, Any]
_SAMPLING = ("temperature", "top_p", "top_k")
"""Parameters for models before Claude Opus 4.7, which the SDK no longer declares."""
MODEL = "claude-sonnet-4-5"


class EncodedRequest:
    """Request body and the notices about omitted content."""

    def __init__(self, body: Json, notices: list[str]) -> None:
        self.body = body
        self.notices = notices

    @property
    def messages(self) -> list[Json]:
        """Messages without cache markers."""
        return strip_cache_control(self.body["messages"])

    def __getitem__(self, name: str) -> Any:
        return self.body[name]


def make_codec(model: str = MODEL, *, stream: bool = True, **options: Any) -> AnthropicCodec:
    """Return the codec for a model."""
    return AnthropicCodec(model, PRESETS["anthropic"], stream=stream, **options)


def encode(
    request: ModelRequest | Sequence[Message], codec: AnthropicCodec | None = None, model: str = MODEL
) -> EncodedRequest:
    """Encode a request, validating it with the SDK's types and the API rules."""
    if not isinstance(request, ModelRequest):
        request = ModelRequest(messages=request)
    notices: list[str] = []
    encoded = (codec or make_codec(model)).encode(request, lambda code, text: notices.append(text))
    body = orjson.loads(encoded)
    check_request(body)
    return EncodedRequest(body, notices)


def check_request(body: Json) -> None:
    """Validate a request body, including rules not covered by the SDK's types."""
    params = MessageCreateParamsStreaming if body["stream"] else MessageCreateParamsNonStreaming
    assert find_mismatch({name: value for name, value in body.items() if name not in _SAMPLING}, params) is None
    messages = body["messages"]
    assert messages
    assert messages[0]["role"] == "user"
    cache_marks = _marks(body)
    assert len(cache_marks) <= 4
    used_ids: set[str] = set()
    pending_ids: list[str] = []
    for before, message in zip([None, *messages], messages, strict=False):
        assert before is None or before["role"] != message["role"], "two turns of one side"
        assert message["content"]
        answers = [block["tool_use_id"] for block in message["content"] if block["type"] == "tool_result"]
        if message["role"] == "user":
            assert [block["type"] for block in message["content"][: len(answers)]] == ["tool_result"] * len(answers)
        assert sorted(answers) == sorted(pending_ids), "each call is answered in the next turn"
        pending_ids = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
        assert used_ids.isdisjoint(pending_ids)
        assert len(set(pending_ids)) == len(pending_ids)
        used_ids.update(pending_ids)
        for block in message["content"]:
            if block["type"] == "text":
                assert block["text"].strip()
            if "thinking" in block["type"]:
                assert "cache_control" not in block
    assert not pending_ids
    if used_ids:
        assert body["tools"]


def _marks(value: Any) -> list[Any]:
    if isinstance(value, list):
        return [mark for each in value for mark in _marks(each)]
    if not isinstance(value, dict):
        return []
    own = [value["cache_control"]] if "cache_control" in value else []
    return own + [mark for each in value.values() for mark in _marks(each)]


def strip_cache_control(value: Any) -> Any:
    """Remove all cache markers."""
    if isinstance(value, list):
        return [strip_cache_control(each) for each in value]
    if isinstance(value, dict):
        return {name: strip_cache_control(each) for name, each in value.items() if name != "cache_control"}
    return value


def read_answer(*events: Json | bytes, whole: bool = False) -> StreamResult:
    """Read a response and return its events and error."""
    pushed: list[Event] = []
    draft = MessageDraft(pushed.append, "1", Endpoint("claude", "http://x"))
    reader = make_codec(stream=not whole).make_reader(draft)
    payloads = [event if isinstance(event, bytes) else orjson.dumps(event) for event in events]
    try:
        if whole:
            reader.read_body(payloads[0])
        else:
            reader.feed(payloads)
        reader.complete()
    except Exception as error:
        return StreamResult(pushed, error)
    return StreamResult(pushed, None)


def start(**usage: int) -> Json:
    """Create the first event of a response."""
    return {"type": "message_start", "message": {"role": "assistant", "content": [], "usage": usage}}


def block(index: int, content: Json, *deltas: Json, stop: bool = True) -> list[Json]:
    """Create the events of a content block."""
    events: list[Json] = [{"type": "content_block_start", "index": index, "content_block": content}]
    events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
    return [*events, {"type": "content_block_stop", "index": index}] if stop else events


def text(index: int, *pieces: str, **content: Any) -> list[Json]:
    """Create the events of a text block."""
    deltas = [{"type": "text_delta", "text": piece} for piece in pieces]
    return block(index, {"type": "text", "text": "", **content}, *deltas)


def call(index: int, call_id: str, name: str, *fragments: str, **content: Any) -> list[Json]:
    """Create the events of a tool call."""
    deltas = [{"type": "input_json_delta", "partial_json": fragment} for fragment in fragments]
    return block(index, {"type": "tool_use", "id": call_id, "name": name, "input": {}, **content}, *deltas)


def end(reason: str = "end_turn", **usage: Any) -> list[Json]:
    """Create the final events of a response."""
    delta = {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage}
    return [delta, {"type": "message_stop"}]


def last_message(answer: StreamResult) -> Message:
    """Return the message that a response adds to the history."""
    return to_message(answer.events[-1])


async def call_server(server: Server, request: ModelRequest, **options: Any) -> StreamResult:
    """Send a request to a local server instead of Anthropic."""
    provider = anthropic_messages(MODEL, base_url=server.base_url, api_key="a-key", **options)
    try:
        return await collect(provider.call(request))
    finally:
        await provider.aclose()
