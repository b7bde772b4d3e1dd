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

    def reader(self, draft: MessageDraft) -> ChatReader:
        """What reads one answer."""
        draft.restore(self._encoder.tools)
        return ChatReader(draft)
