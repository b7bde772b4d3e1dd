"""Codec of OpenAI's chat completions and of compatible APIs."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from rxloop.pipeline.requests import ModelRequest
from rxloop.providers.codecs import Notice
from rxloop.providers.codecs.chat.request import RequestEncoder
from rxloop.providers.codecs.chat.response import ChatReader
from rxloop.providers.codecs.draft import MessageDraft
from rxloop.providers.vendors import Preset
from rxloop.providers.vendors.urls import chat_url

_NONE: Mapping[str, str] = MappingProxyType({})


class ChatCodec:
    """Codec for OpenAI-compatible chat completions."""

    headers = _NONE

    def __init__(self, model: str, preset: Preset, *, stream: bool) -> None:
        self._model = model
        self._preset = preset
        self._encoder = RequestEncoder(model, preset, stream)

    @property
    def enforces_schema(self) -> bool:
        """True if the endpoint forces the model to follow a schema, also when tools are offered."""
        return self._preset.response_format == "json_schema" and self._preset.response_format_with_tools

    def url(self, base: str) -> str:
        """Return the request URL."""
        return chat_url(self._preset, base, self._model)

    def encode(self, request: ModelRequest, notice: Notice) -> bytes:
        """Encode the request body."""
        return self._encoder.encode(request, notice)

    def make_reader(self, draft: MessageDraft) -> ChatReader:
        """Create a response reader."""
        draft.restore(self._encoder.tools)
        return ChatReader(draft)
