"""Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from urllib.parse import urlsplit, urlunsplit

from rxloop.pipeline.requests import ModelRequest
from rxloop.providers.anthropic._encode import BINDING, Host, MessagesEncoder
from rxloop.providers.anthropic._messages import KEY
from rxloop.providers.anthropic._models import abilities_of
from rxloop.providers.anthropic._read import MessagesReader
from rxloop.providers.presets import Preset
from rxloop.providers.reading._draft import Draft
from rxloop.providers.wire import Notice

VERSION = "2023-06-01"


class MessagesWire:
    """The wire of one model of Claude.

    A subclass for another host, such as Bedrock, has a `host` and a `url` of its own.

    Args:
        model: The vendor's name of the model.
        preset: The vendor.
        stream: Whether answers are streamed.
        betas: What is not for everybody yet and is to be switched on, as the vendor names it.
        citations: The model is to say what in the documents of the conversation its words rest on.
    """

    host = Host()

    def __init__(
        self, model: str, preset: Preset, *, stream: bool, betas: Sequence[str] = (), citations: bool = False
    ) -> None:
        self.model = model
        self.stream = stream
        able = abilities_of(model)
        more = (BINDING,) if able.binds_thinking and BINDING not in betas else ()
        self._betas = (*betas, *more)
        # What another maker's model signs behind the same protocol is refused by Claude, and the other way round.
        claude = "claude" in model.lower() or self.host.version is not None
        self._key = KEY if claude else f"{KEY}:{model}"
        self._encoder = MessagesEncoder(
            model,
            model if preset.nameless else f"{preset.name}:{model}",
            stream,
            self.host,
            able,
            self._betas,
            citations,
            self._key,
        )

    @property
    def keeps_to_schema(self) -> bool:
        """Whether the model can be held to a schema."""
        return self._encoder.keeps_to_schema

    @property
    def headers(self) -> Mapping[str, str]:
        """The version, and what is switched on."""
        headers = {"anthropic-version": VERSION} if self.host.version is None else {}
        if self._betas and not self.host.betas_in_body:
            headers["anthropic-beta"] = ",".join(self._betas)
        return MappingProxyType(headers)

    def url(self, base: str) -> str:
        """The address of a request; `base` may end in `/v1` or not."""
        scheme, host, path, query, _ = urlsplit(base)
        path = path.rstrip("/")
        path += "/messages" if path.endswith("/v1") else "/v1/messages"
        return urlunsplit((scheme, host, path, query, ""))

    def encode(self, request: ModelRequest, notice: Notice) -> bytes:
        """The body of a request."""
        return self._encoder.encode(request, notice)

    def reader(self, draft: Draft) -> MessagesReader:
        """What reads one answer."""
        return MessagesReader(draft, self._key)
