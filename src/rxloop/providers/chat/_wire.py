"""OpenAI's chat completions, and what its many followers make of them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from rxloop.pipeline.requests import ModelRequest
from rxloop.providers.chat._chunks import ChatReader
from rxloop.providers.chat._encode import RequestEncoder
from rxloop.providers.presets import Preset
from rxloop.providers.reading._draft import Draft
from rxloop.providers.vendors._openai_urls import chat_url
from rxloop.providers.wire import Notice

_NONE: Mapping[str, str] = MappingProxyType({})


class ChatWire:
    """The wire of one model at an endpoint that is compatible with OpenAI's chat completions."""

    headers = _NONE

    def __init__(self, model: str, preset: Preset, *, stream: bool) -> None:
        self._model = model
        self._preset = preset
        self._encoder = RequestEncoder(model, preset, stream)

    @property
    def keeps_to_schema(self) -> bool:
        """Whether the endpoint makes the model keep to a schema."""
        return self._preset.response_format == "json_schema" and self._preset.response_format_with_tools

    def url(self, base: str) -> str:
        """The address of a request."""
        return chat_url(self._preset, base, self._model)

    def encode(self, request: ModelRequest, notice: Notice) -> bytes:
        """The body of a request."""
        return self._encoder.encode(request, notice)

    def reader(self, draft: Draft) -> ChatReader:
        """What reads one answer."""
        return ChatReader(draft)
