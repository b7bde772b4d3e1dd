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
    """The wire of one model at an endpoint that speaks OpenAI's Responses."""

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
        """Make it.

        Args:
            model: The vendor's name of the model.
            preset: The vendor.
            stream: Whether answers are streamed.
            store: Whether the vendor stores them.
            chain: Whether a request goes on from the newest answer that is stored.
            summary: How the vendor is to sum up reasoning.
        """
        self._model = model
        self._preset = preset
        self._key = ""
        self._chain = Chain() if chain else None
        settings = SettingsEncoder(model, preset, stream=stream, store=store or chain, summary=summary)
        self._encoder = RequestEncoder(settings, self._chain)

    @property
    def keeps_to_schema(self) -> bool:
        """Whether the endpoint makes the model keep to a schema."""
        return self._preset.response_format == "json_schema" and self._preset.response_format_with_tools

    def url(self, base: str) -> str:
        """The address of a request; it says whose encrypted reasoning may go there."""
        host = urlsplit(base).netloc
        # No endpoint can read what another one has encrypted, nor can the makers behind one gateway.
        maker = self._model.rpartition("/")[0]
        self._key = "/".join(filter(None, (f"responses@{host.rpartition('@')[2].lower()}", maker)))
        return responses_url(self._preset, base)

    def encode(self, request: ModelRequest, notice: Notice) -> bytes:
        """The body of a request."""
        return self._encoder.encode(request, self._key, notice)

    def reader(self, draft: MessageDraft) -> ResponsesReader:
        """What reads one answer."""
        draft.restore(self._encoder.tools)
        return ResponsesReader(draft, self._key, self._forget)

    def _forget(self) -> None:
        if self._chain is not None:
            self._chain.forget()
