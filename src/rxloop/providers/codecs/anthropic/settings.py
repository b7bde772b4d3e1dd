"""Claude settings, and supported features per model."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from rxloop.errors import BadRequest
from rxloop.protocol.settings import ModelSettings, ReasoningEffort
from rxloop.providers.catalog import find_model

Thinking = Literal["none", "budget", "both", "adaptive"]

_NAME = re.compile(
    r"claude-(?:(?P<old>\d)(?:[-.](?P<old_minor>\d))?-)?(?P<family>opus|sonnet|haiku|fable|mythos)"
    r"(?:-(?P<major>\d{1,2})(?!\d)(?:[-.](?P<minor>\d{1,2})(?!\d))?)?(?P<preview>-preview)?"
)

_LOW_EFFORTS = ("low", "medium", "high")

_STRICT_WINDOW_OUTPUT = 16_384
"""Default output limit of models that reject a request if its input and `max_tokens` together exceed the window."""

_MAX_UNSTREAMED_OUTPUT = 21_000
"""Maximum output limit of answers that are not streamed, because long responses break connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """Supported model features."""

    thinking: Thinking = "budget"
    """Supported thinking configuration: token budget, adaptive, both, or none."""
    always_thinks: bool = False
    """True if thinking cannot be disabled."""
    hides_thinking: bool = False
    """True if the model returns its thinking only on request."""
    binds_thinking: bool = False
    """True if the model rejects thinking whose context has changed, unless it may be dropped."""
    efforts: tuple[str, ...] = ()
    """Accepted effort levels, lowest first."""
    sampling: Literal["both", "one", "none"] = "both"
    """Supported sampling parameters: `temperature` and `top_p`, only one, or none."""
    forced_tools: bool = True
    """True if the model can be forced to call a tool."""
    schemas: bool = False
    """True if a JSON Schema can be enforced."""
    late_system: bool = False
    """True if system messages are accepted in the middle of a conversation."""
    prefill: bool = False
    """True if the model continues an assistant message at the end."""
    limit: int | None = None
    """Maximum number of output tokens, or None if it is unknown."""
    output: int = 8192
    """Default output limit in tokens."""

    def default_output(self, stream: bool) -> int:
        """Return the default output limit in tokens."""
        return self.output if stream else min(self.output, _MAX_UNSTREAMED_OUTPUT)


def find_abilities(model: str) -> Abilities:
    """Look up model features by name, including Bedrock, Vertex and gateway names."""
    match = _NAME.search(model.lower())
    version = None if match is None else _parse_version(match)
    if match is None or version is None:
        return Abilities()
    family = match["family"]
    is_fable = family in ("fable", "mythos")
    is_preview = match["preview"] is not None
    always_thinks = is_fable or version > (5, 0)
    known_model = find_model(f"anthropic:{match[0]}") or find_model(f"anthropic:{model}")
    limit = None if known_model is None else known_model.output
    return Abilities(
        thinking=_find_thinking(version),
        always_thinks=always_thinks,
        hides_thinking=version >= (4, 7),
        binds_thinking=version > (5, 0),
        efforts=_find_efforts(family, version),
        sampling="none" if version >= (4, 7) else "one" if version >= (4, 1) else "both",
        # Documented for Fable 5 itself, but unclear for its successors.
        forced_tools=not (is_preview or version > (5, 0)),
        schemas=version >= ((4, 1) if family == "opus" else (4, 5)),
        late_system=not is_preview and ((family == "opus" and version >= (4, 8)) or is_fable),
        prefill=version < (4, 6),
        limit=limit,
        output=_find_output(version, limit),
    )


def _parse_version(match: re.Match[str]) -> tuple[int, int] | None:
    if match["preview"]:
        return (5, 0)
    major, minor = (match["old"], match["old_minor"]) if match["old"] else (match["major"], match["minor"])
    return None if major is None else (int(major), int(minor or 0))


def _find_thinking(version: tuple[int, int]) -> Thinking:
    if version < (4, 6):
        return "none" if version < (3, 7) else "budget"
    return "both" if version < (4, 7) else "adaptive"


def _find_efforts(family: str, version: tuple[int, int]) -> tuple[str, ...]:
    if version >= (4, 7):
        return (*_LOW_EFFORTS, "xhigh", "max")
    if version >= (4, 6):
        return (*_LOW_EFFORTS, "max")
    return _LOW_EFFORTS if family == "opus" and version >= (4, 5) else ()


def _find_output(version: tuple[int, int], limit: int | None) -> int:
    if limit is None:
        return 4096 if version < (3, 5) else 8192
    return limit if version >= (4, 5) else min(limit, _STRICT_WINDOW_OUTPUT)


Warn = Callable[[str], None]
"""Reports an unsupported setting, once per model."""

_BUDGETS: dict[ReasoningEffort, int] = {
    "minimal": 1024,
    "low": 2048,
    "medium": 8192,
    "high": 16_384,
    "xhigh": 32_768,
    "max": 49_152,
}
"""Thinking budgets in tokens for models without effort levels."""

_MIN_BUDGET = 1024
"""Minimum thinking budget in tokens."""

_ANSWER_TOKENS = 4096
"""Tokens reserved for the answer in addition to its thinking."""

_LEVELS = ("minimal", "low", "medium", "high", "xhigh", "max")

_CANDIDATES = ("n", "candidate_count", "candidateCount")


def check_settings(settings: ModelSettings) -> None:
    """Check settings that must not be dropped.

    Raises:
        BadRequest: Multiple answers were requested.
    """
    for name in _CANDIDATES:
        several = settings.extra_body.get(name)
        if isinstance(several, int) and several > 1:
            raise BadRequest(f"{name} must be 1, got {several}; remove it from extra_body")


def make_plain_fields(
    settings: ModelSettings, abilities: Abilities, thinking: dict[str, Any] | None, warn: Warn
) -> dict[str, Any]:
    """Return the fields for sampling, stop sequences and service tier."""
    fields: dict[str, Any] = {}
    thinks = thinking is not None and thinking.get("type") not in (None, "disabled")
    temperature, top_p = settings.temperature, settings.top_p
    if abilities.sampling == "none":
        if temperature is not None or top_p is not None:
            warn("temperature and top_p")
        temperature = top_p = None
    if temperature is not None and temperature > 1:
        warn(f"a temperature of {temperature}; the maximum is 1")
        temperature = 1.0
    if thinks and temperature not in (None, 1):
        warn(f"a temperature of {temperature} with thinking")
        temperature = None
    if thinks and top_p is not None and not 0.95 <= top_p <= 1:
        warn(f"a top_p of {top_p} with thinking")
        top_p = None
    if temperature is not None and top_p is not None and abilities.sampling == "one":
        warn("top_p with a temperature")
        top_p = None
    if temperature is not None:
        fields["temperature"] = temperature
    if top_p is not None:
        fields["top_p"] = top_p
    if settings.stop is not None:
        fields["stop_sequences"] = [text for text in settings.stop if text.strip()]
        if len(fields["stop_sequences"]) < len(settings.stop):
            warn("a stop sequence of white space")
    if settings.service_tier in ("auto", "standard_only"):
        fields["service_tier"] = settings.service_tier
    elif settings.service_tier is not None:
        warn(f"the service tier {settings.service_tier!r}; use 'auto' or 'standard_only'")
    if settings.seed is not None:
        warn("a seed")
    return fields


def make_thinking(
    settings: ModelSettings, abilities: Abilities, warn: Warn
) -> tuple[dict[str, Any] | None, str | None]:
    """Return the thinking settings and the effort level, with None for the vendor's default."""
    effort, budget = settings.reasoning_effort, settings.thinking_budget
    if effort is None and budget is None:
        return None, None
    if effort == "none" or (effort is None and budget == 0):
        if abilities.always_thinks:
            warn("disabled thinking; low effort is used")
            return None, "low"
        return (None if abilities.thinking == "none" else {"type": "disabled"}), None
    if abilities.thinking == "none":
        warn("reasoning_effort and thinking_budget, since it cannot think")
        return None, None
    level = None if effort is None else _find_level(effort, abilities, warn)
    if abilities.thinking == "budget" or (abilities.thinking == "both" and budget is not None):
        tokens = _BUDGETS[effort or "medium"] if budget is None else max(_MIN_BUDGET, budget)
        return {"type": "enabled", "budget_tokens": tokens}, level
    if budget is not None:
        replacement = _find_effort(budget)
        level = level or _find_level(replacement, abilities, warn)
        warn(f"a thinking_budget; the effort {level!r} is used")
    adaptive = {"type": "adaptive"}
    return (adaptive | {"display": "summarized"} if abilities.hides_thinking else adaptive), level


def fit_limit(
    target: int | None, thinking: dict[str, Any] | None, abilities: Abilities, *, stream: bool, shared: bool, warn: Warn
) -> tuple[int, dict[str, Any] | None]:
    """Return the output limit in tokens, and the thinking settings that fit into it.

    Args:
        target: Requested output limit, or None for the default.
        thinking: Thinking settings.
        abilities: Abilities of the model.
        stream: True if the answer is streamed.
        shared: True if several turns share the budget, so that it may exceed the limit.
        warn: Called for omitted settings.
    """
    limit = abilities.limit
    max_tokens = abilities.default_output(stream) if target is None else target
    if target is not None and limit is not None and target > limit:
        warn(f"max_tokens above {limit}")
        max_tokens = limit
    budget = thinking.get("budget_tokens") if thinking else None
    if thinking is None or not isinstance(budget, int) or shared:
        return max_tokens, thinking
    if target is None:
        max_tokens = max(max_tokens, budget + _ANSWER_TOKENS if limit is None else min(limit, budget + _ANSWER_TOKENS))
    if budget < max_tokens:
        return max_tokens, thinking
    if max_tokens <= _MIN_BUDGET:
        warn(f"thinking, for which max_tokens={max_tokens} is too small")
        return max_tokens, None
    smaller = max(_MIN_BUDGET, max_tokens - max(1, min(_ANSWER_TOKENS, max_tokens // 4)))
    warn(f"a thinking budget of {budget} tokens; {smaller} fit into max_tokens={max_tokens}")
    return max_tokens, {**thinking, "budget_tokens": smaller}


def find_choice(
    settings: ModelSettings,
    abilities: Abilities,
    thinking: dict[str, Any] | None,
    warn: Warn,
    to_name: Callable[[str], str],
) -> dict[str, Any] | None:
    """Return which tools the model may or must call, and whether in parallel.

    Args:
        settings: Settings of the request.
        abilities: Abilities of the model.
        thinking: Thinking settings.
        warn: Called for omitted settings.
        to_name: Returns the vendor's name of a tool.
    """
    choice, several = settings.tool_choice, settings.parallel_tool_calls
    if choice == "none":
        return {"type": "none"}
    fields: dict[str, Any] | None = None
    if choice == "auto":
        fields = {"type": "auto"}
    elif choice is not None:
        if not abilities.forced_tools:
            warn("a forced tool call")
        elif thinking is not None and thinking.get("type") == "enabled":
            warn("a forced tool call with a thinking budget")
        else:
            fields = {"type": "any"} if choice == "required" else {"type": "tool", "name": to_name(choice)}
    if several is not None:
        fields = {**(fields or {"type": "auto"}), "disable_parallel_tool_use": not several}
    return fields


def _find_level(effort: ReasoningEffort, abilities: Abilities, warn: Warn) -> str | None:
    """Return the nearest accepted effort level, preferably a lower one."""
    if not abilities.efforts:
        return None
    below = [each for each in abilities.efforts if _LEVELS.index(each) <= _LEVELS.index(effort)]
    level = below[-1] if below else abilities.efforts[0]
    if level != effort and effort != "minimal":
        warn(f"the effort {effort!r}; {level!r} is used")
    return level


def _find_effort(budget: int) -> ReasoningEffort:
    for effort, tokens in _BUDGETS.items():
        if budget <= tokens:
            return effort
    return "max"
