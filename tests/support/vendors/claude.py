"""Claude in tests: requests as its SDK's types judge them, answers as they stream."""

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
from support.http_server import Answer, Server, collect
from support.vendors.messages import message_of as last_message
from support.vendors.typed_dicts import misfit

Json = dict[str, Any]
_SAMPLING = ("temperature", "top_p", "top_k")
"""What the models before Claude Opus 4.7 take, and the SDK has no words for any more."""
MODEL = "claude-sonnet-4-5"


class Asked:
    """The body of a request, and what was left out of it."""

    def __init__(self, body: Json, notices: list[str]) -> None:
        self.body = body
        self.notices = notices

    @property
    def messages(self) -> list[Json]:
        """The messages without the places of the cache."""
        return without_cache(self.body["messages"])

    def __getitem__(self, name: str) -> Any:
        return self.body[name]


def wire(model: str = MODEL, *, stream: bool = True, **options: Any) -> AnthropicCodec:
    """The wire of a model."""
    return AnthropicCodec(model, PRESETS["anthropic"], stream=stream, **options)


def ask(request: ModelRequest | Sequence[Message], by: AnthropicCodec | None = None, model: str = MODEL) -> Asked:
    """Encode a request, and see that it is one by the SDK's types and by the rules of the vendor."""
    if not isinstance(request, ModelRequest):
        request = ModelRequest(messages=request)
    notices: list[str] = []
    encoded = (by or wire(model)).encode(request, lambda code, text: notices.append(text))
    body = orjson.loads(encoded)
    judge(body)
    return Asked(body, notices)


def judge(body: Json) -> None:
    """See that a body is a request by the SDK's types, and keeps the rules that those do not know."""
    params = MessageCreateParamsStreaming if body["stream"] else MessageCreateParamsNonStreaming
    assert misfit({name: value for name, value in body.items() if name not in _SAMPLING}, params) is None
    messages = body["messages"]
    assert messages
    assert messages[0]["role"] == "user"
    marks = _marks(body)
    assert len(marks) <= 4
    used: set[str] = set()
    waiting: list[str] = []
    for before, message in zip([None, *messages], messages, strict=False):
        assert before is None or before["role"] != message["role"], "two turns of one side"
        assert message["content"]
        answers = [block["tool_use_id"] for block in message["content"] if block["type"] == "tool_result"]
        if message["role"] == "user":
            assert [block["type"] for block in message["content"][: len(answers)]] == ["tool_result"] * len(answers)
        assert sorted(answers) == sorted(waiting), "each call is answered in the next turn"
        waiting = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
        assert used.isdisjoint(waiting)
        assert len(set(waiting)) == len(waiting)
        used.update(waiting)
        for block in message["content"]:
            if block["type"] == "text":
                assert block["text"].strip()
            if "thinking" in block["type"]:
                assert "cache_control" not in block
    assert not waiting
    if used:
        assert body["tools"]


def _marks(value: Any) -> list[Any]:
    if isinstance(value, list):
        return [mark for each in value for mark in _marks(each)]
    if not isinstance(value, dict):
        return []
    own = [value["cache_control"]] if "cache_control" in value else []
    return own + [mark for each in value.values() for mark in _marks(each)]


def without_cache(value: Any) -> Any:
    """A value without the places of the cache in it."""
    if isinstance(value, list):
        return [without_cache(each) for each in value]
    if isinstance(value, dict):
        return {name: without_cache(each) for name, each in value.items() if name != "cache_control"}
    return value


def read(*events: Json | bytes, whole: bool = False) -> Answer:
    """What the wire makes of an answer."""
    pushed: list[Event] = []
    draft = MessageDraft(pushed.append, "1", Endpoint("claude", "http://x"))
    reader = wire(stream=not whole).reader(draft)
    payloads = [event if isinstance(event, bytes) else orjson.dumps(event) for event in events]
    try:
        if whole:
            reader.whole(payloads[0])
        else:
            reader.feed(payloads)
        reader.complete()
    except Exception as error:
        return Answer(pushed, error)
    return Answer(pushed, None)


def start(**usage: int) -> Json:
    """The first event of an answer."""
    return {"type": "message_start", "message": {"role": "assistant", "content": [], "usage": usage}}


def block(index: int, content: Json, *deltas: Json, stop: bool = True) -> list[Json]:
    """The events of a block."""
    events: list[Json] = [{"type": "content_block_start", "index": index, "content_block": content}]
    events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
    return [*events, {"type": "content_block_stop", "index": index}] if stop else events


def text(index: int, *pieces: str, **content: Any) -> list[Json]:
    """The events of a block of text."""
    deltas = [{"type": "text_delta", "text": piece} for piece in pieces]
    return block(index, {"type": "text", "text": "", **content}, *deltas)


def call(index: int, call_id: str, name: str, *fragments: str, **content: Any) -> list[Json]:
    """The events of a call of a tool."""
    deltas = [{"type": "input_json_delta", "partial_json": fragment} for fragment in fragments]
    return block(index, {"type": "tool_use", "id": call_id, "name": name, "input": {}, **content}, *deltas)


def end(reason: str = "end_turn", **usage: Any) -> list[Json]:
    """The last events of an answer."""
    delta = {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage}
    return [delta, {"type": "message_stop"}]


def message_of(answer: Answer) -> Message:
    """The message that an answer becomes in the history."""
    return last_message(answer.events[-1])


async def over_http(server: Server, request: ModelRequest, **options: Any) -> Answer:
    """Ask a server in place of Claude."""
    provider = anthropic_messages(MODEL, base_url=server.base_url, api_key="a-key", **options)
    try:
        return await collect(provider.call(request))
    finally:
        await provider.aclose()
