"""Help for tests of Gemini's wire: bodies of requests, answers read, and Google's own types as the judge of both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
from google.genai import types

from rxloop.pipeline.requests import ModelRequest, ToolDefinition
from rxloop.protocol.events import ContentCompleteEvent, Event
from rxloop.protocol.messages import Message
from rxloop.protocol.settings import ModelSettings
from rxloop.providers import PRESETS
from rxloop.providers.codecs.draft import MessageDraft
from rxloop.providers.codecs.gemini import GeminiCodec
from rxloop.providers.codecs.gemini.response import GeminiReader
from rxloop.providers.failures import Endpoint
from rxloop.providers.vendors import Preset

WHERE = Endpoint("google:m", "http://localhost")
THREE, TWO = "gemini-3-flash-preview", "gemini-2.5-flash"


class Body(types._common.BaseModel):  # pyright: ignore[reportPrivateUsage]
    """The body of `generateContent`, of Google's own types, none of which takes a field that it does not know."""

    contents: list[types.Content]
    system_instruction: types.Content | None = None
    tools: list[types.Tool] | None = None
    tool_config: types.ToolConfig | None = None
    generation_config: types.GenerationConfig | None = None
    safety_settings: list[types.SafetySetting] | None = None
    cached_content: str | None = None
    labels: dict[str, str] | None = None
    service_tier: types.ServiceTier | None = None


class Told:
    """Takes down what a wire tells of what it left out."""

    def __init__(self) -> None:
        self.all: list[str] = []

    def __call__(self, code: str, message: str) -> None:
        assert code in ("left_out", "changed")
        self.all.append(message)


def wire(model: str = THREE, preset: Preset | None = None, *, stream: bool = True) -> GeminiCodec:
    return GeminiCodec(model, preset or PRESETS["google"], stream=stream)


def body(
    messages: Sequence[Message] = (Message.user("hi"),),
    *,
    model: str = THREE,
    to: GeminiCodec | None = None,
    told: Told | None = None,
    tools: tuple[ToolDefinition, ...] = (),
    request: dict[str, Any] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """The body of a request, which Google's own types accept."""
    asked = ModelRequest(messages=messages, tools=tools, settings=ModelSettings(**settings), **(request or {}))
    sent = (to or wire(model)).encode(asked, told or Told())
    if not settings.get("extra_body"):
        Body.model_validate_json(sent)
    return orjson.loads(sent)


def contents(*messages: Message, model: str = THREE, told: Told | None = None) -> list[dict[str, Any]]:
    return body(messages, model=model, told=told)["contents"]


def events_of(*chunks: Any, end: bool = True) -> list[Event]:
    """What a reader pushes of the chunks of an answer."""
    pushed: list[Event] = []
    reader = GeminiReader(MessageDraft(pushed.append, "1", WHERE), "google_gemini")
    reader.feed([orjson.dumps(chunk) for chunk in chunks])
    if end:
        reader.complete()
    return pushed


def complete_of(*chunks: Any) -> ContentCompleteEvent:
    last = events_of(*chunks)[-1]
    assert isinstance(last, ContentCompleteEvent)
    return last


def chunk(*parts: Any, finish: str | None = None, **candidate: Any) -> dict[str, Any]:
    """A chunk with these parts."""
    fields = {"content": {"role": "model", "parts": list(parts)}, "index": 0, **candidate}
    return {"candidates": [fields if finish is None else {**fields, "finishReason": finish}]}
