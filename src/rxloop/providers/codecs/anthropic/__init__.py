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
from rxloop.providers.codecs.anthropic.settings import find_abilities
from rxloop.providers.codecs.draft import MessageDraft
from rxloop.providers.vendors import Preset

VERSION = "2023-06-01"


class AnthropicCodec:
    """Codec for one Claude model.

    Subclasses for other hosts, such as Bedrock, override `host` and `url`.

    Args:
        model: The vendor's name of the model, optionally followed by `#` and the name of the underlying model.
        preset: Settings of the vendor.
        stream: True if answers are streamed.
        betas: Beta features to enable, by their names at the vendor.
        citations: True if the model should cite the documents of the conversation.
    """

    host = Host()

    def __init__(
        self, model: str, preset: Preset, *, stream: bool, betas: Sequence[str] = (), citations: bool = False
    ) -> None:
        name = model if preset.nameless else f"{preset.name}:{model}"
        model, _, underlying = model.partition("#")
        self.model = model
        self.stream = stream
        abilities = find_abilities(underlying or model)
        required = (BINDING,) if abilities.binds_thinking and BINDING not in betas else ()
        self._betas = (*betas, *required)
        # Signatures are only valid for models from the same vendor.
        claude = "claude" in (underlying or model).lower() or self.host.version is not None
        self._key = KEY if claude else f"{KEY}:{model}"
        self._encoder = MessagesEncoder(model, name, stream, self.host, abilities, self._betas, citations, self._key)

    @property
    def enforces_schema(self) -> bool:
        """True if the vendor can force the model to follow a schema."""
        return self._encoder.enforces_schema

    @property
    def headers(self) -> Mapping[str, str]:
        """The API version and the enabled beta features."""
        headers = {"anthropic-version": VERSION} if self.host.version is None else {}
        if self._betas and not self.host.betas_in_body:
            headers["anthropic-beta"] = ",".join(self._betas)
        return MappingProxyType(headers)

    def url(self, base: str) -> str:
        """Return the request URL. `base` can end with `/v1`."""
        scheme, host, path, query, _ = urlsplit(base)
        path = path.rstrip("/")
        path += "/messages" if path.endswith("/v1") else "/v1/messages"
        return urlunsplit((scheme, host, path, query, ""))

    def encode(self, request: ModelRequest, notice: Notice) -> bytes:
        """Encode the request body."""
        return self._encoder.encode(request, notice)

    def make_reader(self, draft: MessageDraft) -> MessagesReader:
        """Create a response reader."""
        draft.restore(self._encoder.tools)
        return MessagesReader(draft, self._key)


class VertexCodec(AnthropicCodec):
    """Codec for Claude on Vertex AI. The base URL ends with `/publishers/anthropic`."""

    # Vertex AI disables schema enforcement unless a policy of the organization enables it.
    host = Host(version="vertex-2023-10-16", named=False, fetches=False, late_system=False, schemas=False)

    def url(self, base: str) -> str:
        """Return the request URL."""
        return _join_url(
            base, f"models/{quote(self.model, safe='@')}:{'streamRawPredict' if self.stream else 'rawPredict'}"
        )


class BedrockCodec(AnthropicCodec):
    """Codec for Claude on Bedrock, using a model id or inference profile."""

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
        """HTTP headers, where `accept` refers to documents rather than AWS frames."""
        return {**super().headers, "accept": "application/json"}

    def url(self, base: str) -> str:
        """Return the request URL."""
        action = "invoke-with-response-stream" if self.stream else "invoke"
        return _join_url(base, f"model/{quote(self.model, safe=':@')}/{action}")


def _join_url(base: str, path: str) -> str:
    parts = urlsplit(base)
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{path}"))
