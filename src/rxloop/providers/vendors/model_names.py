"""Parsing and normalisation of model names."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

_MAKERS = (
    (re.compile(r"claude-"), "anthropic"),
    (re.compile(r"gemini-"), "google"),
    (re.compile(r"gpt-|o\d"), "openai"),
    (re.compile(r"glm-"), "zai"),
)
"""Maker by model name prefix."""

_HOSTS: Mapping[str, Collection[str]] = {
    "anthropic": ("anthropic",),
    "azure": ("anthropic", "openai"),
    "bedrock": ("anthropic", "openai"),
    "google": ("google",),
    "openai": ("openai",),
    "vertex": ("anthropic", "google"),
    "zai": ("zai",),
}
"""Hosted makers with list prices, by preset name without suffix (`openai_responses`)."""

GATEWAYS = frozenset(("openrouter", "vercel"))
"""Multi-vendor hosts with their own prices."""

_BEDROCK = re.compile(r"^(?:[a-z-]+\.)?(?:anthropic|google|openai|zai)\.")
"""Region and maker before a model name on Bedrock: `us.anthropic.`"""

_ENDINGS = re.compile(
    r"-v\d+(:\d+)?$"  # Bedrock's version
    r"|[@-]20\d{6}$|-20\d\d-\d\d-\d\d$"  # a date, as Anthropic, Vertex and OpenAI write it
    r"|[@-](latest|default)$"
    r"|-00\d$"  # Google's version
)

_LONGEST = 300
"""Maximum name length for aliases. Logs can contain arbitrary names."""


def find_maker(model: str) -> str | None:
    """Return the maker based on the name prefix."""
    return next((maker for begins, maker in _MAKERS if begins.match(model)), None)


def find_host(model: str) -> str:
    """Return the host in a model string, or an empty string."""
    prefix, colon, _ = model.partition(":")
    return prefix if colon else ""


def find_makers(host: str) -> Collection[str]:
    """Return the model developers whose list prices a host charges."""
    return _HOSTS.get(host.partition("_")[0], ())


def iter_names(model: str) -> Iterator[str]:
    """Yield possible table keys, most specific first.

    >>> list(iter_names("bedrock:us.anthropic.claude-sonnet-5-5-v1:0"))[-1]
    'anthropic:claude-sonnet-5-5'
    """
    yield model
    if len(model) > _LONGEST or "://" in model:
        # A custom URL belongs to none of the hosts.
        return
    host = find_host(model)
    name = model.removeprefix(f"{host}:")
    # Prefer the underlying model name.
    name = name.partition("#")[2] or name
    makers = find_makers(host) if host else [maker for _, maker in _MAKERS]
    if makers:
        # Remove the resource path.
        name = _BEDROCK.sub("", name.rpartition("/")[2].lower())
    for each in _iter_undated(name):
        if host:
            yield f"{host}:{each}"
        maker = find_maker(each)
        if maker in makers:
            # Gateways write the version of Claude models with a dot.
            yield f"{maker}:{each.replace('.', '-') if maker == 'anthropic' else each}"


def _iter_undated(name: str) -> Iterator[str]:
    yield name
    while (shorter := _ENDINGS.sub("", name)) != name:
        yield (name := shorter)
    if name.startswith("claude-") and name.endswith("-0"):
        yield name.removesuffix("-0")


_REASONS = re.compile(r"o1(?!-mini|-preview)|o[3-9]|gpt-[5-9](?!.*-chat)|codex|computer-use")

_ANSWERS_AT_ONCE = re.compile(r"gpt-[34]|gpt-[5-9].*-chat|chatgpt")


def wants_responses(model: str) -> bool:
    """Return True for OpenAI's reasoning models, which work better, or only, with the Responses API."""
    return _REASONS.match(_strip_prefixes(model)) is not None


def never_reasons(model: str) -> bool:
    """Return True for OpenAI's models without reasoning. Models with unknown names are not included."""
    return _ANSWERS_AT_ONCE.match(_strip_prefixes(model)) is not None


def _strip_prefixes(model: str) -> str:
    """Remove the gateway's maker prefix and the prefix of a fine-tuned model."""
    return model.rpartition("/")[2].removeprefix("ft:")
