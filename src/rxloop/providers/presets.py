"""The vendors we know, as data: where they are, what the key is called, and what their endpoint cannot do."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

from rxloop.errors import ConfigurationError

Effort = Literal["reasoning_effort", "reasoning", "thinking"]


def _no_headers() -> Mapping[str, str]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """What is particular about one vendor's OpenAI-compatible endpoint.

    A new vendor is a new line of data. The defaults are those of an endpoint that follows OpenAI in everything.
    """

    name: str
    """What stands before the colon in a model string."""
    base_url: str | None
    """Where the endpoint is, without `/chat/completions`; None where the address must be given."""
    url_env: str | None = None
    """The environment variable that puts another address in its place; what it leaves out comes from `base_url`."""
    key_env: str | None = None
    """The environment variable with the key; None for an endpoint without keys."""
    key_optional: bool = False
    """The endpoint may work without a key."""
    default_model: str | None = None
    """The model of a model string that names the preset alone."""
    headers: Mapping[str, str] = field(default_factory=_no_headers)
    """Headers that go with every request."""
    max_tokens_field: str = "max_tokens"
    """What the endpoint calls `ModelSettings.max_tokens`."""
    effort: Effort | None = "reasoning_effort"
    """How it takes `reasoning_effort`: as that field, as OpenRouter's `reasoning` object, as the switch `thinking`."""
    reasoning_field: str | None = None
    """The field in which it wants the reasoning back with an assistant message; None where it does not."""
    reasoning_details: bool = False
    """It wants `reasoning_details`, signed or encrypted, back with an assistant message."""
    stream_options: bool = True
    """It takes `stream_options` and then sends the usage of a stream."""
    parallel_tool_calls: bool = True
    """It takes `parallel_tool_calls`."""
    strict: bool = True
    """It takes `strict` in the definition of a tool."""
    hint: str = ""
    """What to do when nobody answers at the address."""

    def url(self) -> str:
        """The address of the endpoint: from the environment where it says so.

        Raises:
            ConfigurationError: There is none, or it is no http address.
        """
        given = os.environ.get(self.url_env, "").strip() if self.url_env else ""
        url = _completed(given, self.base_url or "") if given else self.base_url
        if url is None:
            raise ConfigurationError(f"the endpoint {self.name!r} has no address: pass base_url=")
        return checked_url(url)

    def key(self) -> str | None:
        """The key from the environment, or None."""
        return (os.environ.get(self.key_env, "").strip() or None) if self.key_env else None


def checked_url(url: str) -> str:
    """The address of an endpoint without a slash at its end.

    Raises:
        ConfigurationError: It is no http address.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError(f"{url!r} is no address of an endpoint: give one like 'http://localhost:8000/v1'")
    return url.rstrip("/")


def _completed(given: str, default: str) -> str:
    """An address such as `myhost` or `0.0.0.0:11434`, completed from another one."""
    base = urlsplit(default)
    if "://" in given:
        parts = urlsplit(given)
        return urlunsplit(parts._replace(path=parts.path.rstrip("/") or base.path))
    parts = urlsplit("//" + given)
    host = parts.netloc if parts.port or not base.port else f"{parts.netloc}:{base.port}"
    return urlunsplit((base.scheme, host, parts.path.rstrip("/") or base.path, "", ""))


_KNOWN = (
    Preset(
        name="zai",
        base_url="https://api.z.ai/api/paas/v4",
        url_env="ZAI_BASE_URL",
        key_env="ZAI_API_KEY",
        default_model="glm-4.7",
        effort="thinking",
        reasoning_field="reasoning_content",
        parallel_tool_calls=False,
        strict=False,
    ),
    Preset(
        name="openai",
        base_url="https://api.openai.com/v1",
        url_env="OPENAI_BASE_URL",
        key_env="OPENAI_API_KEY",
        default_model="gpt-5",
        max_tokens_field="max_completion_tokens",
    ),
    Preset(
        name="ollama",
        base_url="http://localhost:11434/v1",
        url_env="OLLAMA_HOST",
        default_model="qwen3",
        parallel_tool_calls=False,
        strict=False,
        hint="Is Ollama running? Start it with `ollama serve`.",
    ),
)

PRESETS: Mapping[str, Preset] = MappingProxyType({preset.name: preset for preset in _KNOWN})
"""The presets by name."""

CUSTOM = Preset(name="custom", base_url=None, key_env="RXLOOP_API_KEY", key_optional=True)
"""Any other endpoint that speaks the protocol, by its address."""


def find_preset(name: str) -> Preset:
    """The preset of that name.

    Raises:
        ConfigurationError: There is none; the message lists those that there are.
    """
    try:
        return PRESETS[name]
    except KeyError:
        known = ", ".join(PRESETS)
        raise ConfigurationError(
            f"unknown provider {name!r}: known are {known}; any other endpoint goes by its address, as in "
            "'http://localhost:8000/v1#model'"
        ) from None
