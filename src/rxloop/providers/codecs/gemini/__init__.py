"""Codec of Gemini's `generateContent`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from urllib.parse import quote, urlsplit, urlunsplit

from rxloop.pipeline.requests import ModelRequest
from rxloop.providers.codecs import Notice
from rxloop.providers.codecs.draft import MessageDraft
from rxloop.providers.codecs.gemini.model_rules import find_rules
from rxloop.providers.codecs.gemini.request import RequestEncoder
from rxloop.providers.codecs.gemini.response import GeminiReader
from rxloop.providers.vendors import Preset

_NONE: Mapping[str, str] = MappingProxyType({})


class GeminiCodec:
    """Codec for one Gemini model."""

    headers = _NONE

    def __init__(self, model: str, preset: Preset, *, stream: bool) -> None:
        self._model = model
        self._stream = stream
        self._rules = find_rules(model)
        # Signatures cannot be shared between Google's own API and Vertex.
        self._key = f"{preset.name}_gemini"
        self._encoder = RequestEncoder(self._rules, preset, self._key)

    @property
    def enforces_schema(self) -> bool:
        """True if the model accepts a schema in every request, with or without tools."""
        return self._rules.schema_with_tools

    def url(self, base: str) -> str:
        """Return the URL of a request. The API version is added to a `base` without a path."""
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
        """Encode the request body."""
        return self._encoder.encode(request, notice)

    def make_reader(self, draft: MessageDraft) -> GeminiReader:
        """Create a response reader."""
        draft.restore(self._encoder.tools)
        return GeminiReader(draft, self._key)
