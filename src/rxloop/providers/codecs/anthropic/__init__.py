"""Codec of Anthropic's Messages API, also on Bedrock and Vertex AI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from urllib.parse import quote, urlsplit, urlunsplit

from rxloop.pipeline.requests import ModelRequest
from rxloop.providers.codecs import Notice
from rxloop.providers.codecs.anthropic.messages import KEY
from rxloop.providers.codecs.anthropic.request import BINDING, Host, MessagesEncoder
from rxloop.providers.codecs.anthropic.response import MessagesReader
from rxloop.providers.codecs.anthropic.settings import abilities_of
from rxloop.providers.codecs.draft import MessageDraft
from rxloop.providers.vendors import Preset

VERSION = "2023-06-01"


class AnthropicCodec:
    """The wire of one model of Claude.

    A subclass for another host, such as Bedrock, has a `host` and a `url` of its own.

    Args:
        model: The vendor's name of the model; after a `#`, the model behind it.
        preset: The vendor.
        stream: Whether answers are streamed.
        betas: What is not for everybody yet and is to be switched on, as the vendor names it.
        citations: The model is to say what in the documents of the conversation its words rest on.
    """

    host = Host()

    def __init__(
        self, model: str, preset: Preset, *, stream: bool, betas: Sequence[str] = (), citations: bool = False
    ) -> None:
        name = model if preset.nameless else f"{preset.name}:{model}"
        model, _, underlying = model.partition("#")
        self.model = model
        self.stream = stream
        able = abilities_of(underlying or model)
        more = (BINDING,) if able.binds_thinking and BINDING not in betas else ()
        self._betas = (*betas, *more)
        # What another maker's model signs behind the same protocol is refused by Claude, and the other way round.
        claude = "claude" in (underlying or model).lower() or self.host.version is not None
        self._key = KEY if claude else f"{KEY}:{model}"
        self._encoder = MessagesEncoder(
            model,
            name,
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

    def reader(self, draft: MessageDraft) -> MessagesReader:
        """What reads one answer."""
        draft.restore(self._encoder.tools)
        return MessagesReader(draft, self._key)


class VertexCodec(AnthropicCodec):
    """The wire of one model of Claude on Vertex AI, whose `base` ends in `/publishers/anthropic`."""

    # Holding an answer to a schema is off there until the policy of an organization lets it.
    host = Host(version="vertex-2023-10-16", named=False, fetches=False, late_system=False, schemas=False)

    def url(self, base: str) -> str:
        """The address of a request."""
        return _below(
            base, f"models/{quote(self.model, safe='@')}:{'streamRawPredict' if self.stream else 'rawPredict'}"
        )


class BedrockCodec(AnthropicCodec):
    """The wire of one model of Claude on Bedrock, by its id or by that of an inference profile."""

    host = Host(
        version="bedrock-2023-05-31",
        named=False,
        says_stream=False,
        betas_in_body=True,
        fetches=False,
        late_system=False,
    )

    @property
    def headers(self) -> Mapping[str, str]:
        """Those of all requests; what is accepted is said of the documents in a stream, and not of its frames."""
        return {**super().headers, "accept": "application/json"}

    def url(self, base: str) -> str:
        """The address of a request."""
        action = "invoke-with-response-stream" if self.stream else "invoke"
        return _below(base, f"model/{quote(self.model, safe=':@')}/{action}")


def _below(base: str, path: str) -> str:
    parts = urlsplit(base)
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{path}"))
