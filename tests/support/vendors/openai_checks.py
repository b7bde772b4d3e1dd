"""What OpenAI's own client has to say of our streams: its types, read strictly, and what it puts together of them."""

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
_OURS = {"reasoning_content", "annotations"}
"""What other vendors have added to chat completions, and their clients read; and what OpenAI itself streams of a
search, which the types of its client have only in a whole message."""


def check(model: type[BaseModel], data: Json) -> Any:
    """See that JSON fits a type of the client: no field is missing, wrong, or unknown."""
    read = model.model_validate(data)
    _known(read, data.get("type", model.__name__))
    return read


def _known(value: Any, place: str) -> None:
    if isinstance(value, BaseModel):
        unknown = {*(value.model_extra or {})} - _OURS
        assert not unknown, f"{place}: {type(value).__name__} has no {unknown}"
        for name in type(value).model_fields:
            _known(getattr(value, name), f"{place}.{name}")
    elif isinstance(value, list):
        for each in value:
            _known(each, place)


def check_event(event: Json) -> Any:
    """See that an event of a response fits its type."""
    return check(_EVENTS[event["type"]], event)


def check_response(response: Json) -> Response:
    """See that a response fits its type."""
    read: Response = check(Response, response)
    ids = [item["id"] for item in response["output"]]
    assert len(ids) == len(set(ids))
    return read


def check_stream(events: Sequence[Json]) -> Json:
    """See that the events of one response are a whole stream, and give the response that it comes to."""
    state: Any = ResponseStreamState(input_tools=omit, text_format=omit)
    begun: dict[int, str] = {}
    for number, event in enumerate(events):
        assert event["sequence_number"] == number
        state.handle_event(check_event(event))
        index: Any = event.get("output_index")
        if event["type"] == "response.output_item.added":
            assert index not in begun
            begun[index] = event["item"]["id"]
        elif event["type"] == "response.output_item.done":
            assert begun.pop(index) == event["item"]["id"]
        elif index is not None:
            assert begun[index] == event["item_id"]
        assert (event["type"] in _ENDS) == (number == len(events) - 1), event
    assert not begun, "what has begun has to end"
    assert events[0]["type"] == "response.created"
    check_response(events[-1]["response"])
    return events[-1]["response"]


def text_of(response: Json) -> str:
    """The text of a response, as `output_text` has it."""
    parts = [part for item in response["output"] if item["type"] == "message" for part in item["content"]]
    return "".join(part["text"] for part in parts)


def check_chunks(chunks: Iterable[Json]) -> str:
    """See that chunks fit their type, and give the text that they come to."""
    text = ""
    for chunk in chunks:
        if "error" in chunk:
            continue
        read: ChatCompletionChunk = check(ChatCompletionChunk, chunk)
        text += "".join(choice.delta.content or "" for choice in read.choices)
    return text


def check_completion(completion: Json) -> ChatCompletion:
    """See that a chat completion fits its type."""
    return check(ChatCompletion, completion)
