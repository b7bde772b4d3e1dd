"""OpenAI chat completion chunks and the events read from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from rxloop.pipeline.requests import ToolDefinition
from rxloop.protocol.events import (
    ContentCompleteEvent,
    Event,
)
from rxloop.providers.codecs.chat.response import ChatReader
from rxloop.providers.codecs.draft import MessageDraft
from rxloop.providers.failures import Endpoint
from support.http_server import delta

WHERE = Endpoint("zai:glm-4.7", "http://vendor/v1/chat/completions", "ZAI_API_KEY")


def read_chunks(*chunks: Any, done: bool = True, step: str = "1", tools: Sequence[ToolDefinition] = ()) -> list[Event]:
    events: list[Event] = []
    answer = ChatReader(MessageDraft(events.append, step, WHERE, tools))
    answer.feed([orjson.dumps(chunk) for chunk in chunks])
    if done:
        answer.feed([b"[DONE]"])
    answer.complete()
    return events


def read_message(*chunks: Any) -> ContentCompleteEvent:
    last = read_chunks(*chunks)[-1]
    assert isinstance(last, ContentCompleteEvent)
    return last


def call_delta(
    index: int | None = None, id: str | None = None, name: str | None = None, args: Any = None
) -> dict[str, Any]:
    call: dict[str, Any] = {"function": {"name": name, "arguments": args}}
    if id is not None:
        call["id"] = id
    return call if index is None else {**call, "index": index}


def call_deltas(*pieces: dict[str, Any]) -> dict[str, Any]:
    return delta(tool_calls=list(pieces))


def read_whole(body: Any) -> list[Event]:
    events: list[Event] = []
    answer = ChatReader(MessageDraft(events.append, "1", WHERE))
    answer.read_body(body if isinstance(body, bytes) else orjson.dumps(body))
    answer.complete()
    return events
