"""Differences between vendors, as data."""

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
"""The names that models give to such tags."""

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
"""The tokens that local servers and gateways let slip."""

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
    """What is particular about one vendor's endpoint.

    A new vendor is a new line of data. The defaults are those of an endpoint that follows OpenAI's
    chat protocol in everything.

    Example:
        >>> openai_chat("m", preset=Preset(name="mine", base_url="https://mine.example/v1", key_env="MINE_KEY"))
    """

    name: str
    """What stands before the colon in a model string."""
    base_url: str | None
    """Where the endpoint is, without what the wire adds, such as `/chat/completions`; None where it must be given."""
    url_env: str | None = None
    """The environment variable that puts another address in its place; what it leaves out comes from `base_url`."""
    find_url: Callable[[], str] | None = None
    """Makes the address from the environment, where it depends on more than one variable; in place of `base_url`."""
    api_version: str | None = None
    """As Azure has it: a version in the query, and each model at the address of its deployment."""
    version_env: str | None = None
    """The environment variable that puts another `api_version` in its place."""
    key_env: str | None = None
    """The environment variable with the key; None for an endpoint without keys."""
    other_key_env: str | None = None
    """Another one, which is read where the first is not set."""
    key_header: str = "authorization"
    """The header that the key goes in; in `authorization` it goes as a bearer token."""
    key_source: Callable[[], KeySource] | None = None
    """Makes what gives the key of each request where no variable of the environment has it."""
    token_source: bool = False
    """A function that is passed as `api_key=` gives a token of the vendor's accounts, which goes as a bearer token."""
    key_hint: str = ""
    """What to do in place of setting a key."""
    key_optional: bool = False
    """The endpoint may work without a key."""
    default_model: str | None = None
    """The model of a model string that names the preset alone; None where no model is sure to be there."""
    headers: Mapping[str, str] = field(default_factory=_no_headers)
    """Headers that go with every request."""
    max_tokens_field: str = "max_tokens"
    """What the endpoint calls `ModelSettings.max_tokens`."""
    seed_field: str = "seed"
    """What the endpoint calls `ModelSettings.seed`."""
    effort: Effort | None = "reasoning_effort"
    """How it takes `reasoning_effort`: as that field, as OpenRouter's `reasoning` object, as the switch `thinking`."""
    reasoning_field: str | None = None
    """The field in which it wants the reasoning back with an assistant message; None where it does not.

    Reasoning that comes is read wherever it is: `reasoning_content`, `reasoning`, `reasoning_details`, a list.
    """
    reasoning_details: bool = False
    """It wants `reasoning_details`, signed or encrypted, back with an assistant message."""
    extra_content: bool = False
    """It wants the `extra_content` of a tool call, such as Google's thought signatures, back with the call."""
    response_format: ResponseFormat | None = "json_schema"
    """How it can be held to an answer of a type: by its JSON Schema, by JSON alone, or not at all."""
    response_format_with_tools: bool = True
    """It takes `response_format` in a request that offers tools; otherwise such a request goes without."""
    stream_options: bool = True
    """It takes `stream_options` and then sends the usage of a stream."""
    parallel_tool_calls: bool = True
    """It takes `parallel_tool_calls`."""
    strict: bool = True
    """It takes `strict` in the definition of a tool."""
    longest_description: int | None = 1024
    """The most characters of the description of a tool: the rest of a longer one goes into the system prompt. None for
    any number."""
    assistant_after_tool: bool = False
    """After the answers to tool calls it takes an assistant message alone, and a system message only at the start or
    after one of the user: a short message goes between, and the system message goes as one of the user."""
    short_call_ids: bool = False
    """The ids of tool calls must be nine letters and digits: another vendor's become such."""
    longest_call_id: int | None = None
    """The most characters of the id of a tool call: another vendor's that is longer becomes another one."""
    file_part: FilePartType = "file"
    """How it accepts a file: in OpenAI's format, as base64 with a media type, or as the URL of a document, which may be
    a data URL."""
    file_urls: bool = False
    """It fetches a file by its URL; otherwise it takes the bytes alone."""
    files: tuple[str, ...] = ("application/pdf",)
    """The media types that it accepts as files. Text files go as text. Words stand for the others, and a notice says
    so."""
    file_store: Literal["openai"] | None = None
    """The store of files whose ids, such as `file-abc123`, it accepts in place of a URL."""
    image_urls: bool = True
    """It fetches an image by its URL; otherwise it accepts the bytes alone."""
    audio_models: str | None = None
    """A pattern of the names of its models that hear: WAV and MP3 go to these as `input_audio`."""
    thought_tags: tuple[str, ...] = THOUGHT_TAGS
    """The names of the tags in which its models write thoughts into the text; none where that is left alone."""
    thinks_first: bool = False
    """Its answers begin inside a thought, since the opening tag is a part of its prompt: what stands before the closing
    tag of the first of those names is a thought."""
    strip: tuple[str, ...] = ()
    """The control tokens of chat templates that come off the end of a message, and out of the names of tools."""
    wire: CodecName = "openai_chat"
    """The protocol that it speaks; `openai` is Responses or chat, as the model wants it. What is said above of fields
    and forms is of OpenAI's chat protocol alone."""
    nameless: bool = False
    """A model is named by its address, and not by the preset."""
    hint: str = ""
    """What to do when nobody answers at the address."""

    def __repr__(self) -> str:
        # Neither the headers nor all of the address: there may be keys in them.
        return f"<Preset {self.name} at {display_url(self.base_url or 'an address of your own')}>"

    def url(self) -> str:
        """The address of the endpoint: from the environment where it says so.

        Raises:
            ConfigurationError: No address is known, or it is not an http address.
        """
        if self.find_url is not None:
            return check_url(self.find_url())
        given = os.environ.get(self.url_env, "").strip() if self.url_env else ""
        try:
            url = _completed(given, self.base_url or "") if given else self.base_url
        except ValueError as error:
            shown, why = redact_secrets(given.partition("?")[0]), redact_secrets(str(error))
            raise ConfigurationError(f"{self.url_env} is {shown!r}, which is not an address: {why}") from None
        if url is None:
            variable = f"set {self.url_env}, or " if self.url_env else ""
            raise ConfigurationError(f"the endpoint {self.name!r} has no address: {variable}pass base_url=")
        return check_url(url)

    def key(self) -> str | None:
        """The key from the environment, or None."""
        names = [name for name in (self.key_env, self.other_key_env) if name]
        return next((key for name in names if (key := os.environ.get(name, "").strip())), None)


def _completed(given: str, default: str) -> str:
    """An address such as `myhost` or `0.0.0.0:11434`, completed from another one."""
    base = urlsplit(default)
    if "://" in given:
        parts = urlsplit(given)
        return urlunsplit(parts._replace(path=parts.path.rstrip("/") or base.path))
    parts = urlsplit("//" + given)
    host = parts.netloc if parts.port or not base.port else f"{parts.netloc}:{base.port}"
    return urlunsplit((base.scheme or "https", host, parts.path.rstrip("/") or base.path, "", ""))
