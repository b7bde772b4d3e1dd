"""Codec of OpenAI's Responses API."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from urllib.parse import urlsplit

from rxloop.pipeline.requests import ModelRequest
from rxloop.providers.codecs import Notice
from rxloop.providers.codecs.draft import MessageDraft
from rxloop.providers.codecs.responses.conversation import Chain
from rxloop.providers.codecs.responses.request import RequestEncoder, SettingsEncoder
from rxloop.providers.codecs.responses.response import ResponsesReader
from rxloop.providers.vendors import Preset
from rxloop.providers.vendors.urls import responses_url

_NONE: Mapping[str, str] = MappingProxyType({})


class ResponsesCodec:
    """Codec for OpenAI's Responses API."""

    headers = _NONE

    def __init__(
        self,
        model: str,
        preset: Preset,
        *,
        stream: bool,
        store: bool = False,
        chain: bool = False,
        summary: str | None = None,
    ) -> None:
        """Create the codec.

        Args:
            model: The vendor's name of the model.
            preset: Settings of the vendor.
            stream: True if answers are streamed.
            store: True if the vendor stores answers.
            chain: True if a request refers to the newest stored answer instead of repeating it.
            summary: How the vendor summarises reasoning.
        """
        self._model = model
        self._preset = preset
        self._key = ""
        self._chain = Chain() if chain else None
        settings = SettingsEncoder(model, preset, stream=stream, store=store or chain, summary=summary)
        self._encoder = RequestEncoder(settings, self._chain)

    @property
    def enforces_schema(self) -> bool:
        """True if the endpoint forces the model to follow a schema, also when tools are offered."""
        return self._preset.response_format == "json_schema" and self._preset.response_format_with_tools

    def url(self, base: str) -> str:
        """Return the request URL. Also determines which encrypted reasoning can be sent."""
        host = urlsplit(base).netloc
        # Encrypted reasoning can only be read by the same vendor and endpoint.
        maker = self._model.rpartition("/")[0]
        self._key = "/".join(filter(None, (f"responses@{host.rpartition('@')[2].lower()}", maker)))
        return responses_url(self._preset, base)

    def encode(self, request: ModelRequest, notice: Notice) -> bytes:
        """Encode the request body."""
        return self._encoder.encode(request, self._key, notice)

    def make_reader(self, draft: MessageDraft) -> ResponsesReader:
        """Create a response reader."""
        draft.restore(self._encoder.tools)
        return ResponsesReader(draft, self._key, self._forget)

    def _forget(self) -> None:
        if self._chain is not None:
            self._chain.forget()
