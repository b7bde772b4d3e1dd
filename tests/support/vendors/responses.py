"""Answers of Responses read, and requests written, without a network."""

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
from rxloop.providers.codecs.tool_calls import dumped
from rxloop.providers.failures import Endpoint
from support.vendors import messages

OPENAI = "https://api.openai.com/v1"
ACCEPTED: TypeAdapter[Any] = TypeAdapter(ResponseCreateParamsStreaming)
WHERE = Endpoint("m", OPENAI + "/responses", "OPENAI_API_KEY", "")


def wire(model: str = "gpt-5", base: str = OPENAI, preset: Preset | None = None, **options: Any) -> ResponsesCodec:
    """A wire that has an address."""
    made = ResponsesCodec(model, preset or PRESETS["openai_responses"], stream=True, **options)
    made.url(base)
    return made


def read(
    answer: bytes | list[dict[str, Any]], of: ResponsesCodec | None = None, bounds: Bounds = DEFAULT_BOUNDS
) -> list[Event]:
    """The events of a whole answer (JSON), or of the events of a stream."""
    events: list[Event] = []
    reader = (of or wire()).reader(MessageDraft(events.append, "1", WHERE, bounds=bounds))
    assert isinstance(reader, ResponsesReader)
    if isinstance(answer, bytes):
        reader.whole(answer)
    else:
        reader.feed([dumped(event) for event in answer])
    reader.complete()
    return events


def message_of(events: list[Event]) -> Message:
    """The message of the model, as the history of a run has it."""
    return messages.message_of(events[-1])


def written(
    request: ModelRequest | list[Message], by: ResponsesCodec | None = None, left_out: list[str] | None = None
) -> dict[str, Any]:
    """The body of a request; what is left out is added to the list."""
    if isinstance(request, list):
        request = ModelRequest(messages=request)
    told = [] if left_out is None else left_out
    return cast("dict[str, Any]", json.loads((by or wire()).encode(request, lambda code, what: told.append(what))))


def response(*output: dict[str, Any], **fields: Any) -> bytes:
    """A whole answer with these items."""
    return orjson.dumps({"id": "resp_1", "status": "completed", "output": output, **fields})


def completed(*output: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The last event of a stream."""
    return {"type": "response.completed", "response": orjson.loads(response(*output, **fields))}


def judged(body: dict[str, Any]) -> dict[str, Any]:
    """The body, if the SDK's types accept all of it."""
    _exhaust(ACCEPTED.validate_python(body))
    return body


def _exhaust(value: Any) -> None:
    """Look at all of a value: pydantic reads what is iterable late."""
    if isinstance(value, dict):
        for each in value.values():
            _exhaust(each)
    elif not isinstance(value, str | bytes) and isinstance(value, Iterable):
        for each in value:
            _exhaust(each)


def text(words: str, number: int = 1, **fields: Any) -> dict[str, Any]:
    """An item with a text."""
    content = [{"type": "output_text", "text": words, "annotations": []}]
    item = {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed", "content": content}
    return {**item, **fields}


def reasoning(*summary: str, number: int = 1, **fields: Any) -> dict[str, Any]:
    """An item with reasoning."""
    parts = [{"type": "summary_text", "text": part} for part in summary]
    return {"type": "reasoning", "id": f"rs_{number}", "summary": parts, "encrypted_content": "secret", **fields}


def call(name: str, arguments: str, number: int = 1, **fields: Any) -> dict[str, Any]:
    """An item that is a call of one of our tools."""
    item = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}", "status": "completed"}
    return {**item, "name": name, "arguments": arguments, **fields}


def added(item: dict[str, Any], index: int = 0) -> dict[str, Any]:
    """The event that an item begins."""
    empty = {"content": [], "summary": [], "arguments": ""}
    began = {name: empty.get(name, value) for name, value in item.items()} | {"status": "in_progress"}
    return {"type": "response.output_item.added", "output_index": index, "item": began}


def done(item: dict[str, Any], index: int = 0) -> dict[str, Any]:
    """The event that an item is there."""
    return {"type": "response.output_item.done", "output_index": index, "item": item}


def piece(kind: str, delta: str, item: dict[str, Any], index: int = 0, part: int = 0) -> dict[str, Any]:
    """The event that a piece of an item comes."""
    number = {"summary_index": part} if "summary" in kind else {"content_index": part}
    event = {"type": f"response.{kind}.delta", "item_id": item["id"], "output_index": index, "delta": delta}
    return {**event, **number}
