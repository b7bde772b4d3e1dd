"""Vendor differences as data."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

from rxloop.errors import ConfigurationError
from rxloop.providers.credentials import KeySource
from rxloop.support.redaction import check_url, display_url, redact_secrets

THOUGHT_TAGS = ("think", "thinking", "thought", "thoughts", "reasoning", "reflection")
"""Tag names that models use for thoughts."""

TEMPLATE_TOKENS = (
    # ChatML
    "<|im_end|>",
    "<|im_start|>",
    "<|im_sep|>",
    "<|endoftext|>",
    # Llama
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|python_tag|>",
    "</s>",
    "[/INST]",
    "[INST]",
    "<</SYS>>",
    # Harmony
    "<|start|>",
    "<|channel|>",
    "<|message|>",
    "<|constrain|>",
    "<|call|>",
    "<|return|>",
    "<|end|>",
    # GLM, Phi, Command, Gemma, DeepSeek
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
    "<|END_OF_TURN_TOKEN|>",
    "<end_of_turn>",
    "<start_of_turn>",
    "<｜end▁of▁sentence｜>",  # noqa: RUF001
)
"""Chat-template tokens that local servers and gateways leak into text."""

CodecName = Literal[
    "openai_chat",
    "openai_responses",
    "openai",
    "anthropic_messages",
    "anthropic_vertex",
    "anthropic_bedrock",
    "google_gemini",
]

Effort = Literal["reasoning_effort", "reasoning", "thinking"]

ResponseFormat = Literal["json_schema", "json_object"]

FilePartType = Literal["file", "file_with_type", "document_url"]


def _no_headers() -> Mapping[str, str]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Preset:
    """Settings of one vendor's endpoint.

    A new vendor needs only a new preset. The defaults describe an endpoint that implements OpenAI's chat completions
    completely.

    Example:
        >>> openai_chat("m", preset=Preset(name="mine", base_url="https://mine.example/v1", key_env="MINE_KEY"))
    """

    name: str
    """Name before the colon in a model string."""
    base_url: str | None
    """Endpoint URL without codec-specific paths such as `/chat/completions`. None requires configuration."""
    url_env: str | None = None
    """Environment variable overriding the URL. Missing parts are taken from `base_url`."""
    find_url: Callable[[], str] | None = None
    """Function that reads the URL from several environment variables, used instead of `base_url`."""
    api_version: str | None = None
    """Azure API version, sent in the query. Each model then uses its deployment URL."""
    version_env: str | None = None
    """Environment variable that overrides `api_version`."""
    key_env: str | None = None
    """Environment variable containing the key, if needed."""
    other_key_env: str | None = None
    """Environment variable that is read if the first one is not set."""
    key_header: str = "authorization"
    """Key header. `authorization` uses bearer tokens."""
    key_source: Callable[[], KeySource] | None = None
    """Factory for a key source, used if no environment variable is set."""
    token_source: bool = False
    """True if a function passed as `api_key=` returns a token of the vendor's accounts, which is sent as a bearer
    token.
    """
    key_hint: str = ""
    """Alternative to setting a key, for error messages."""
    key_optional: bool = False
    """True if the endpoint may work without a key."""
    default_model: str | None = None
    """Model of a model string that contains only the name of the preset. None if no model is always available."""
    headers: Mapping[str, str] = field(default_factory=_no_headers)
    """Headers of every request."""
    max_tokens_field: str = "max_tokens"
    """Endpoint-specific name for `ModelSettings.max_tokens`."""
    seed_field: str = "seed"
    """Endpoint-specific name for `ModelSettings.seed`."""
    effort: Effort | None = "reasoning_effort"
    """Form of `reasoning_effort`: unchanged, as OpenRouter's `reasoning` object, or as a `thinking` switch."""
    reasoning_field: str | None = None
    """Field used to send reasoning back, if required.

    When receiving, all known fields are read: `reasoning_content`, `reasoning`, `reasoning_details`, or content lists.
    """
    reasoning_details: bool = False
    """True if signed or encrypted `reasoning_details` are sent back with assistant messages."""
    extra_content: bool = False
    """True if `extra_content` of tool calls is sent back, for example Google's thought signatures."""
    response_format: ResponseFormat | None = "json_schema"
    """Supported form of typed answers: JSON Schema, any JSON, or none."""
    response_format_with_tools: bool = True
    """True if `response_format` is accepted together with tools. Otherwise such a request omits it."""
    stream_options: bool = True
    """True if `stream_options` can be used to request usage."""
    parallel_tool_calls: bool = True
    """True if `parallel_tool_calls` is accepted."""
    strict: bool = True
    """True if `strict` is accepted in the definition of a tool."""
    longest_description: int | None = 1024
    """Maximum tool description length, if any. The remainder is added to the system prompt."""
    assistant_after_tool: bool = False
    """True if only an assistant message may follow tool results, and system messages only the start or a user message.
    A short message is then inserted, and other system messages are sent as user messages.
    """
    short_call_ids: bool = False
    """True if call ids must consist of nine letters and digits. Other ids are replaced."""
    longest_call_id: int | None = None
    """Maximum length of a call id in characters. Longer ids of other vendors are replaced."""
    file_part: FilePartType = "file"
    """File format: OpenAI's, base64 with media type, or a document URL, including data URLs."""
    file_urls: bool = False
    """True if files are fetched by their URL; otherwise only bytes are accepted."""
    files: tuple[str, ...] = ("application/pdf",)
    """Media types that are accepted as files. Text files are sent as text. Others are replaced by a placeholder, with a
    notice.
    """
    file_store: Literal["openai"] | None = None
    """File store for ids such as `file-abc123`, used instead of URLs."""
    image_urls: bool = True
    """True if images are fetched by their URL; otherwise only bytes are accepted."""
    audio_models: str | None = None
    """Pattern matching models with audio support. WAV and MP3 are sent as `input_audio`."""
    thought_tags: tuple[str, ...] = THOUGHT_TAGS
    """Thought tag names; empty disables parsing."""
    thinks_first: bool = False
    """True if answers begin inside a thought because the prompt contains the opening tag. Text before the closing tag
    of the first name in `thought_tags` is then a thought.
    """
    strip: tuple[str, ...] = ()
    """Control tokens of chat templates that are removed from the end of a message and from tool names."""
    wire: CodecName = "openai_chat"
    """Codec of the endpoint. `openai` selects Responses or chat completions by the model. The fields above about
    request formats only apply to chat completions.
    """
    nameless: bool = False
    """True if models are named by URL instead of preset."""
    hint: str = ""
    """Advice for a failed connection."""

    def __repr__(self) -> str:
        # Headers and URLs can contain keys.
        return f"<Preset {self.name} at {display_url(self.base_url or 'a custom URL')}>"

    def url(self) -> str:
        """Return the endpoint URL, preferring the environment.

        Raises:
            ConfigurationError: The URL is missing or invalid.
        """
        if self.find_url is not None:
            return check_url(self.find_url())
        override = os.environ.get(self.url_env, "").strip() if self.url_env else ""
        try:
            url = _completed(override, self.base_url or "") if override else self.base_url
        except ValueError as error:
            public_url, why = redact_secrets(override.partition("?")[0]), redact_secrets(str(error))
            raise ConfigurationError(f"{self.url_env} must be a URL, got {public_url!r}: {why}") from None
        if url is None:
            variable = f"set {self.url_env}, or " if self.url_env else ""
            raise ConfigurationError(f"missing URL for {self.name!r}; {variable}pass base_url=")
        return check_url(url)

    def key(self) -> str | None:
        """Return the key from the environment, or None."""
        names = [name for name in (self.key_env, self.other_key_env) if name]
        return next((key for name in names if (key := os.environ.get(name, "").strip())), None)


def _completed(partial_url: str, default: str) -> str:
    """Complete partial URLs such as `myhost` or `0.0.0.0:11434`."""
    base = urlsplit(default)
    if "://" in partial_url:
        parts = urlsplit(partial_url)
        return urlunsplit(parts._replace(path=parts.path.rstrip("/") or base.path))
    parts = urlsplit("//" + partial_url)
    host = parts.netloc if parts.port or not base.port else f"{parts.netloc}:{base.port}"
    return urlunsplit((base.scheme or "https", host, parts.path.rstrip("/") or base.path, "", ""))
