"""Gemini requests and responses, checked against Google's types."""

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
    """Body of `generateContent`, built from Google's types, which reject unknown fields."""

    contents: list[types.Content]
    system_instruction: types.Content | None = None
    tools: list[types.Tool] | None = None
    tool_config: types.ToolConfig | None = None
    generation_config: types.GenerationConfig | None = None
    safety_settings: list[types.SafetySetting] | None = None
    cached_content: str | None = None
    labels: dict[str, str] | None = None
    service_tier: types.ServiceTier | None = None


class NoticeRecorder:
    """Recorder of notices about omitted content."""

    def __init__(self) -> None:
        self.notices: list[str] = []

    def __call__(self, code: str, message: str) -> None:
        assert code in ("left_out", "changed")
        self.notices.append(message)


def make_codec(model: str = THREE, preset: Preset | None = None, *, stream: bool = True) -> GeminiCodec:
    return GeminiCodec(model, preset or PRESETS["google"], stream=stream)


def encode_body(
    messages: Sequence[Message] = (Message.user("hi"),),
    *,
    model: str = THREE,
    codec: GeminiCodec | None = None,
    notices: NoticeRecorder | None = None,
    tools: tuple[ToolDefinition, ...] = (),
    request: dict[str, Any] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Encode a request and validate its body with Google's types."""
    model_request = ModelRequest(messages=messages, tools=tools, settings=ModelSettings(**settings), **(request or {}))
    encoded = (codec or make_codec(model)).encode(model_request, notices or NoticeRecorder())
    if not settings.get("extra_body"):
        Body.model_validate_json(encoded)
    return orjson.loads(encoded)


def encode_contents(
    *messages: Message, model: str = THREE, notices: NoticeRecorder | None = None
) -> list[dict[str, Any]]:
    return encode_body(messages, model=model, notices=notices)["contents"]


def read_events(*chunks: Any, end: bool = True) -> list[Event]:
    """Parse response chunks."""
    pushed: list[Event] = []
    reader = GeminiReader(MessageDraft(pushed.append, "1", WHERE), "google_gemini")
    reader.feed([orjson.dumps(chunk) for chunk in chunks])
    if end:
        reader.complete()
    return pushed


def read_message(*chunks: Any) -> ContentCompleteEvent:
    last = read_events(*chunks)[-1]
    assert isinstance(last, ContentCompleteEvent)
    return last


def chunk(*parts: Any, finish: str | None = None, **candidate: Any) -> dict[str, Any]:
    """Return a chunk with these parts."""
    fields = {"content": {"role": "model", "parts": list(parts)}, "index": 0, **candidate}
    return {"candidates": [fields if finish is None else {**fields, "finishReason": finish}]}
