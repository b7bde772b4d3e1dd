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
"""Whose a model is, by how its name begins."""

_HOSTS: Mapping[str, Collection[str]] = {
    "anthropic": ("anthropic",),
    "azure": ("anthropic", "openai"),
    "bedrock": ("anthropic", "openai"),
    "google": ("google",),
    "openai": ("openai",),
    "vertex": ("anthropic", "google"),
    "zai": ("zai",),
}
"""Who serves the models of whom under their list prices, by the first word of a preset's name: `openai_responses`."""

GATEWAYS = frozenset(("openrouter", "vercel"))
"""Who serves models of many makers, under prices of its own."""

_BEDROCK = re.compile(r"^(?:[a-z-]+\.)?(?:anthropic|google|openai|zai)\.")
"""The region and the maker before the name of a model at Bedrock: `us.anthropic.`"""

_ENDINGS = re.compile(
    r"-v\d+(:\d+)?$"  # Bedrock's version
    r"|[@-]20\d{6}$|-20\d\d-\d\d-\d\d$"  # a date, as Anthropic, Vertex and OpenAI write it
    r"|[@-](latest|default)$"
    r"|-00\d$"  # Google's version
)

_LONGEST = 300
"""Characters of a name that can be another's: names of models come from logs, too, and may be anything."""


def maker_of(model: str) -> str | None:
    """Whose a model is, by how its name begins."""
    return next((maker for begins, maker in _MAKERS if begins.match(model)), None)


def host_of(model: str) -> str:
    """Who serves the model of a model string, or '' where it names nobody."""
    prefix, colon, _ = model.partition(":")
    return prefix if colon else ""


def makers_at(host: str) -> Collection[str]:
    """Whose models somebody serves under the list prices of their makers."""
    return _HOSTS.get(host.partition("_")[0], ())


def names_of(model: str) -> Iterator[str]:
    """The names under which a table may know a model, the most exact first.

    >>> list(names_of("bedrock:us.anthropic.claude-sonnet-5-5-v1:0"))[-1]
    'anthropic:claude-sonnet-5-5'
    """
    yield model
    if len(model) > _LONGEST or "://" in model:
        # Whoever is at an address of one's own, it is none of the hosts.
        return
    host = host_of(model)
    name = model.removeprefix(f"{host}:")
    # The model behind the name of a resource.
    name = name.partition("#")[2] or name
    makers = makers_at(host) if host else [maker for _, maker in _MAKERS]
    if makers:
        # What stands before it is the path of a resource.
        name = _BEDROCK.sub("", name.rpartition("/")[2].lower())
    for each in _undated(name):
        if host:
            yield f"{host}:{each}"
        maker = maker_of(each)
        if maker in makers:
            # Gateways write the version of a Claude with a dot.
            yield f"{maker}:{each.replace('.', '-') if maker == 'anthropic' else each}"


def _undated(name: str) -> Iterator[str]:
    yield name
    while (shorter := _ENDINGS.sub("", name)) != name:
        yield (name := shorter)
    if name.startswith("claude-") and name.endswith("-0"):
        yield name.removesuffix("-0")


_REASONS = re.compile(r"o1(?!-mini|-preview)|o[3-9]|gpt-[5-9](?!.*-chat)|codex|computer-use")

_ANSWERS_AT_ONCE = re.compile(r"gpt-[34]|gpt-[5-9].*-chat|chatgpt")


def wants_responses(model: str) -> bool:
    """Whether one of OpenAI's models does better over Responses, or answers nowhere else: those that reason."""
    return _REASONS.match(_bare(model)) is not None


def never_reasons(model: str) -> bool:
    """Whether it is one of OpenAI's models that answer at once; of what has another name nothing is known."""
    return _ANSWERS_AT_ONCE.match(_bare(model)) is not None


def _bare(model: str) -> str:
    """The name without the gateway's word for its maker, and that of a tuned model without what says so."""
    return model.rpartition("/")[2].removeprefix("ft:")
