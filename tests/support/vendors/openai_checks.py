"""Strict checks of OpenAI streams with the types of OpenAI's client."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, get_args

from openai import BaseModel, omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent

Json = dict[str, Any]

_EVENTS: dict[str, type[BaseModel]] = {
    get_args(each.model_fields["type"].annotation)[0]: each for each in get_args(get_args(ResponseStreamEvent)[0])
}
_ENDS = ("response.completed", "response.failed", "response.incomplete")
_EXTENSIONS = {"reasoning_content", "annotations"}
"""Fields that other vendors added to chat completions, and a field that OpenAI streams but its client only declares for
whole messages.
"""


def check(model: type[BaseModel], data: Json) -> Any:
    """Validate JSON against a client type and reject missing, invalid and unknown fields."""
    read = model.model_validate(data)
    _check_fields(read, data.get("type", model.__name__))
    return read


def _check_fields(value: Any, place: str) -> None:
    if isinstance(value, BaseModel):
        unknown = {*(value.model_extra or {})} - _EXTENSIONS
        assert not unknown, f"{place}: {type(value).__name__} has no {unknown}"
        for name in type(value).model_fields:
            _check_fields(getattr(value, name), f"{place}.{name}")
    elif isinstance(value, list):
        for each in value:
            _check_fields(each, place)


def check_event(event: Json) -> Any:
    """Validate a response event."""
    return check(_EVENTS[event["type"]], event)


def check_response(response: Json) -> Response:
    """Validate a response."""
    read: Response = check(Response, response)
    ids = [item["id"] for item in response["output"]]
    assert len(ids) == len(set(ids))
    return read


def check_stream(events: Sequence[Json]) -> Json:
    """Check that the events form a complete stream and return the final response."""
    state: Any = ResponseStreamState(input_tools=omit, text_format=omit)
    open_items: dict[int, str] = {}
    for number, event in enumerate(events):
        assert event["sequence_number"] == number
        state.handle_event(check_event(event))
        index: Any = event.get("output_index")
        if event["type"] == "response.output_item.added":
            assert index not in open_items
            open_items[index] = event["item"]["id"]
        elif event["type"] == "response.output_item.done":
            assert open_items.pop(index) == event["item"]["id"]
        elif index is not None:
            assert open_items[index] == event["item_id"]
        assert (event["type"] in _ENDS) == (number == len(events) - 1), event
    assert not open_items, "all items must be complete"
    assert events[0]["type"] == "response.created"
    check_response(events[-1]["response"])
    return events[-1]["response"]


def response_text(response: Json) -> str:
    """Return a response's text, like `output_text`."""
    parts = [part for item in response["output"] if item["type"] == "message" for part in item["content"]]
    return "".join(part["text"] for part in parts)


def check_chunks(chunks: Iterable[Json]) -> str:
    """Validate chunks and return their text."""
    text = ""
    for chunk in chunks:
        if "error" in chunk:
            continue
        read: ChatCompletionChunk = check(ChatCompletionChunk, chunk)
        text += "".join(choice.delta.content or "" for choice in read.choices)
    return text


def check_completion(completion: Json) -> ChatCompletion:
    """Validate a chat completion."""
    return check(ChatCompletion, completion)
