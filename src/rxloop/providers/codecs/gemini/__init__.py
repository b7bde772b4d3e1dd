"""Codec of Gemini's `generateContent`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from urllib.parse import quote, urlsplit, urlunsplit

from rxloop.pipeline.requests import ModelRequest
from rxloop.providers.codecs import Notice
from rxloop.providers.codecs.draft import MessageDraft
from rxloop.providers.codecs.gemini.model_rules import rules_of
from rxloop.providers.codecs.gemini.request import RequestEncoder
from rxloop.providers.codecs.gemini.response import GeminiReader
from rxloop.providers.vendors import Preset

_NONE: Mapping[str, str] = MappingProxyType({})


class GeminiCodec:
    """The wire of one of Gemini's models."""

    headers = _NONE

    def __init__(self, model: str, preset: Preset, *, stream: bool) -> None:
        self._model = model
        self._stream = stream
        self._rules = rules_of(model)
        # A signature of Google's own API is none on Vertex, and the other way round.
        self._key = f"{preset.name}_gemini"
        self._encoder = RequestEncoder(self._rules, preset, self._key)

    @property
    def keeps_to_schema(self) -> bool:
        """Whether the model takes a schema in every request, tools or not."""
        return self._rules.schema_with_tools

    def url(self, base: str) -> str:
        """The address of a request: that of the model below `base`, where the version is filled in if it has none."""
        scheme, host, path, query, _ = urlsplit(base)
        model = self._model if "/" in self._model else f"models/{self._model}"
        path = f"{path.rstrip('/') or '/v1beta'}/{quote(model)}"
        if self._stream:
            path += ":streamGenerateContent"
            query = query if "alt=" in query else "&".join(filter(None, (query, "alt=sse")))
        else:
            path += ":generateContent"
        return urlunsplit((scheme, host, path, query, ""))

    def encode(self, request: ModelRequest, notice: Notice) -> bytes:
        """The body of a request."""
        return self._encoder.encode(request, notice)

    def reader(self, draft: MessageDraft) -> GeminiReader:
        """What reads one answer."""
        draft.restore(self._encoder.tools)
        return GeminiReader(draft, self._key)
