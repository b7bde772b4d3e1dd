"""Offline requests and responses of the Responses API."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, cast

import orjson
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming
from pydantic import TypeAdapter

from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol.events import Event
from rxloop.protocol.messages import Message
from rxloop.providers import PRESETS, Preset
from rxloop.providers.bounds import DEFAULT_BOUNDS, Bounds
from rxloop.providers.codecs.draft import MessageDraft
from rxloop.providers.codecs.responses import ResponsesCodec
from rxloop.providers.codecs.responses.response import ResponsesReader
from rxloop.providers.codecs.tool_calls import encode_json
from rxloop.providers.failures import Endpoint
from support.vendors import messages

OPENAI = "https://api.openai.com/v1"
ACCEPTED: TypeAdapter[Any] = TypeAdapter(ResponseCreateParamsStreaming)
WHERE = Endpoint("m", OPENAI + "/responses", "OPENAI_API_KEY", "")


def make_codec(
    model: str = "gpt-5", base: str = OPENAI, preset: Preset | None = None, **options: Any
) -> ResponsesCodec:
    """Return a codec with a base URL."""
    codec = ResponsesCodec(model, preset or PRESETS["openai_responses"], stream=True, **options)
    codec.url(base)
    return codec


def read_events(
    answer: bytes | list[dict[str, Any]], codec: ResponsesCodec | None = None, bounds: Bounds = DEFAULT_BOUNDS
) -> list[Event]:
    """Parse a JSON response or stream."""
    events: list[Event] = []
    reader = (codec or make_codec()).make_reader(MessageDraft(events.append, "1", WHERE, bounds=bounds))
    assert isinstance(reader, ResponsesReader)
    if isinstance(answer, bytes):
        reader.read_body(answer)
    else:
        reader.feed([encode_json(event) for event in answer])
    reader.complete()
    return events


def last_message(events: list[Event]) -> Message:
    """Return the message that a response adds to the history."""
    return messages.to_message(events[-1])


def encode(
    request: ModelRequest | list[Message], codec: ResponsesCodec | None = None, notices: list[str] | None = None
) -> dict[str, Any]:
    """Return the body of a request. Notices about omitted content are added to the list."""
    if isinstance(request, list):
        request = ModelRequest(messages=request)
    reported = [] if notices is None else notices
    return cast(
        "dict[str, Any]", json.loads((codec or make_codec()).encode(request, lambda code, what: reported.append(what)))
    )


def response(*output: dict[str, Any], **fields: Any) -> bytes:
    """Return a whole response with these items."""
    return orjson.dumps({"id": "resp_1", "status": "completed", "output": output, **fields})


def completed_event(*output: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Create a stream's final event."""
    return {"type": "response.completed", "response": orjson.loads(response(*output, **fields))}


def check_request(body: dict[str, Any]) -> dict[str, Any]:
    """Validate a body with the SDK's types and return it."""
    _validate_lazy_values(ACCEPTED.validate_python(body))
    return body


def _validate_lazy_values(value: Any) -> None:
    """Iterate over all values, because pydantic validates iterables lazily."""
    if isinstance(value, dict):
        for each in value.values():
            _validate_lazy_values(each)
    elif not isinstance(value, str | bytes) and isinstance(value, Iterable):
        for each in value:
            _validate_lazy_values(each)


def text(words: str, number: int = 1, **fields: Any) -> dict[str, Any]:
    """Return a text item."""
    content = [{"type": "output_text", "text": words, "annotations": []}]
    item = {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed", "content": content}
    return {**item, **fields}


def reasoning(*summary: str, number: int = 1, **fields: Any) -> dict[str, Any]:
    """Return a reasoning item."""
    parts = [{"type": "summary_text", "text": part} for part in summary]
    return {"type": "reasoning", "id": f"rs_{number}", "summary": parts, "encrypted_content": "secret", **fields}


def call(name: str, arguments: str, number: int = 1, **fields: Any) -> dict[str, Any]:
    """Create a call item for a test tool."""
    item = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}", "status": "completed"}
    return {**item, "name": name, "arguments": arguments, **fields}


def item_added(item: dict[str, Any], index: int = 0) -> dict[str, Any]:
    """Create an item's start event."""
    empty = {"content": [], "summary": [], "arguments": ""}
    started_item = {name: empty.get(name, value) for name, value in item.items()} | {"status": "in_progress"}
    return {"type": "response.output_item.added", "output_index": index, "item": started_item}


def item_done(item: dict[str, Any], index: int = 0) -> dict[str, Any]:
    """Create an item's completion event."""
    return {"type": "response.output_item.done", "output_index": index, "item": item}


def item_delta(kind: str, delta: str, item: dict[str, Any], index: int = 0, part: int = 0) -> dict[str, Any]:
    """Create a delta event."""
    number = {"summary_index": part} if "summary" in kind else {"content_index": part}
    event = {"type": f"response.{kind}.delta", "item_id": item["id"], "output_index": index, "delta": delta}
    return {**event, **number}
