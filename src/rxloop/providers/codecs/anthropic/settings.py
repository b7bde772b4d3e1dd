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

_LOW = ("low", "medium", "high")

_STRICT_WINDOW_OUTPUT = 16_384
"""Default output limit of models that reject a request if its input and `max_tokens` together exceed the window."""

_WHOLE_OUTPUT = 21_000
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

    def output_for(self, stream: bool) -> int:
        """Return the default output limit in tokens."""
        return self.output if stream else min(self.output, _WHOLE_OUTPUT)


def abilities_of(model: str) -> Abilities:
    """Look up model features by name, including Bedrock, Vertex and gateway names."""
    found = _NAME.search(model.lower())
    version = None if found is None else _version(found)
    if found is None or version is None:
        return Abilities()
    family = found["family"]
    legend = family in ("fable", "mythos")
    preview = found["preview"] is not None
    always = legend or version > (5, 0)
    known = find_model(f"anthropic:{found[0]}") or find_model(f"anthropic:{model}")
    limit = None if known is None else known.output
    return Abilities(
        thinking=_thinking(version),
        always_thinks=always,
        hides_thinking=version >= (4, 7),
        binds_thinking=version > (5, 0),
        efforts=_efforts(family, version),
        sampling="none" if version >= (4, 7) else "one" if version >= (4, 1) else "both",
        # Documented for Fable 5 itself, but unclear for its successors.
        forced_tools=not (preview or version > (5, 0)),
        schemas=version >= ((4, 1) if family == "opus" else (4, 5)),
        late_system=not preview and ((family == "opus" and version >= (4, 8)) or legend),
        prefill=version < (4, 6),
        limit=limit,
        output=_output(version, limit),
    )


def _version(found: re.Match[str]) -> tuple[int, int] | None:
    if found["preview"]:
        return (5, 0)
    major, minor = (found["old"], found["old_minor"]) if found["old"] else (found["major"], found["minor"])
    return None if major is None else (int(major), int(minor or 0))


def _thinking(version: tuple[int, int]) -> Thinking:
    if version < (4, 6):
        return "none" if version < (3, 7) else "budget"
    return "both" if version < (4, 7) else "adaptive"


def _efforts(family: str, version: tuple[int, int]) -> tuple[str, ...]:
    if version >= (4, 7):
        return (*_LOW, "xhigh", "max")
    if version >= (4, 6):
        return (*_LOW, "max")
    return _LOW if family == "opus" and version >= (4, 5) else ()


def _output(version: tuple[int, int], limit: int | None) -> int:
    if limit is None:
        return 4096 if version < (3, 5) else 8192
    return limit if version >= (4, 5) else min(limit, _STRICT_WINDOW_OUTPUT)


Tell = Callable[[str], None]
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

_LEAST = 1024
"""Minimum thinking budget in tokens."""

_ANSWER = 4096
"""Tokens reserved for the answer in addition to its thinking."""

_LEVELS = ("minimal", "low", "medium", "high", "xhigh", "max")

_CANDIDATES = ("n", "candidate_count", "candidateCount")


def check(settings: ModelSettings) -> None:
    """Check settings that must not be dropped.

    Raises:
        BadRequest: Multiple answers were requested.
    """
    for name in _CANDIDATES:
        several = settings.extra_body.get(name)
        if isinstance(several, int) and several > 1:
            raise BadRequest(f"{name} must be 1, got {several}; remove it from extra_body")


def plain_fields(
    settings: ModelSettings, able: Abilities, thinking: dict[str, Any] | None, tell: Tell
) -> dict[str, Any]:
    """Return the fields for sampling, stop sequences and service tier."""
    fields: dict[str, Any] = {}
    thinks = thinking is not None and thinking.get("type") not in (None, "disabled")
    temperature, top_p = settings.temperature, settings.top_p
    if able.sampling == "none":
        if temperature is not None or top_p is not None:
            tell("temperature and top_p")
        temperature = top_p = None
    if temperature is not None and temperature > 1:
        tell(f"a temperature of {temperature}; the maximum is 1")
        temperature = 1.0
    if thinks and temperature not in (None, 1):
        tell(f"a temperature of {temperature} with thinking")
        temperature = None
    if thinks and top_p is not None and not 0.95 <= top_p <= 1:
        tell(f"a top_p of {top_p} with thinking")
        top_p = None
    if temperature is not None and top_p is not None and able.sampling == "one":
        tell("top_p with a temperature")
        top_p = None
    if temperature is not None:
        fields["temperature"] = temperature
    if top_p is not None:
        fields["top_p"] = top_p
    if settings.stop is not None:
        fields["stop_sequences"] = [text for text in settings.stop if text.strip()]
        if len(fields["stop_sequences"]) < len(settings.stop):
            tell("a stop sequence of white space")
    if settings.service_tier in ("auto", "standard_only"):
        fields["service_tier"] = settings.service_tier
    elif settings.service_tier is not None:
        tell(f"the service tier {settings.service_tier!r}; use 'auto' or 'standard_only'")
    if settings.seed is not None:
        tell("a seed")
    return fields


def thinking_of(settings: ModelSettings, able: Abilities, tell: Tell) -> tuple[dict[str, Any] | None, str | None]:
    """Return the thinking settings and the effort level, with None for the vendor's default."""
    effort, budget = settings.reasoning_effort, settings.thinking_budget
    if effort is None and budget is None:
        return None, None
    if effort == "none" or (effort is None and budget == 0):
        if able.always_thinks:
            tell("disabled thinking; low effort is used")
            return None, "low"
        return (None if able.thinking == "none" else {"type": "disabled"}), None
    if able.thinking == "none":
        tell("reasoning_effort and thinking_budget, since it cannot think")
        return None, None
    level = None if effort is None else _level(effort, able, tell)
    if able.thinking == "budget" or (able.thinking == "both" and budget is not None):
        tokens = _BUDGETS[effort or "medium"] if budget is None else max(_LEAST, budget)
        return {"type": "enabled", "budget_tokens": tokens}, level
    if budget is not None:
        instead = _effort_of(budget)
        level = level or _level(instead, able, tell)
        tell(f"a thinking_budget; the effort {level!r} is used")
    adaptive = {"type": "adaptive"}
    return (adaptive | {"display": "summarized"} if able.hides_thinking else adaptive), level


def with_room(
    asked: int | None, thinking: dict[str, Any] | None, able: Abilities, *, stream: bool, shared: bool, tell: Tell
) -> tuple[int, dict[str, Any] | None]:
    """Return the output limit in tokens, and the thinking settings that fit into it.

    Args:
        asked: Requested output limit, or None for the default.
        thinking: Thinking settings.
        able: Abilities of the model.
        stream: True if the answer is streamed.
        shared: True if several turns share the budget, so that it may exceed the limit.
        tell: Called for omitted settings.
    """
    limit = able.limit
    most = able.output_for(stream) if asked is None else asked
    if asked is not None and limit is not None and asked > limit:
        tell(f"max_tokens above {limit}")
        most = limit
    budget = thinking.get("budget_tokens") if thinking else None
    if thinking is None or not isinstance(budget, int) or shared:
        return most, thinking
    if asked is None:
        most = max(most, budget + _ANSWER if limit is None else min(limit, budget + _ANSWER))
    if budget < most:
        return most, thinking
    if most <= _LEAST:
        tell(f"thinking, for which max_tokens={most} is too small")
        return most, None
    smaller = max(_LEAST, most - max(1, min(_ANSWER, most // 4)))
    tell(f"a thinking budget of {budget} tokens; {smaller} fit into max_tokens={most}")
    return most, {**thinking, "budget_tokens": smaller}


def tool_choice(
    settings: ModelSettings,
    able: Abilities,
    thinking: dict[str, Any] | None,
    tell: Tell,
    sent_name: Callable[[str], str],
) -> dict[str, Any] | None:
    """Return which tools the model may or must call, and whether in parallel.

    Args:
        settings: Settings of the request.
        able: Abilities of the model.
        thinking: Thinking settings.
        tell: Called for omitted settings.
        sent_name: Returns the vendor's name of a tool.
    """
    choice, several = settings.tool_choice, settings.parallel_tool_calls
    if choice == "none":
        return {"type": "none"}
    made: dict[str, Any] | None = None
    if choice == "auto":
        made = {"type": "auto"}
    elif choice is not None:
        if not able.forced_tools:
            tell("a forced tool call")
        elif thinking is not None and thinking.get("type") == "enabled":
            tell("a forced tool call with a thinking budget")
        else:
            made = {"type": "any"} if choice == "required" else {"type": "tool", "name": sent_name(choice)}
    if several is not None:
        made = {**(made or {"type": "auto"}), "disable_parallel_tool_use": not several}
    return made


def _level(effort: ReasoningEffort, able: Abilities, tell: Tell) -> str | None:
    """Return the nearest accepted effort level, preferably a lower one."""
    if not able.efforts:
        return None
    below = [each for each in able.efforts if _LEVELS.index(each) <= _LEVELS.index(effort)]
    level = below[-1] if below else able.efforts[0]
    if level != effort and effort != "minimal":
        tell(f"the effort {effort!r}; {level!r} is used")
    return level


def _effort_of(budget: int) -> ReasoningEffort:
    for effort, tokens in _BUDGETS.items():
        if budget <= tokens:
            return effort
    return "max"
