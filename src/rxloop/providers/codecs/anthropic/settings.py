"""Settings of a request, and which of them each Claude model accepts."""

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
"""The most tokens asked for where a request is refused whose input and `max_tokens` do not fit the window together."""

_WHOLE_OUTPUT = 21_000
"""The most tokens asked for where the answer is not streamed: longer ones take so long that connections break."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """What one model takes and refuses."""

    thinking: Thinking = "budget"
    """How it is told to think: by a budget of tokens, by leaving it to the model, either way, or not at all."""
    always_thinks: bool = False
    """It refuses to be told not to think."""
    hides_thinking: bool = False
    """It shows its thinking only where that is asked for."""
    binds_thinking: bool = False
    """It refuses thinking that comes back after something before it has changed, unless it may drop it."""
    efforts: tuple[str, ...] = ()
    """The words for the effort that it takes, the least first."""
    sampling: Literal["both", "one", "none"] = "both"
    """Whether it takes `temperature` and `top_p`: both, one of them, none."""
    forced_tools: bool = True
    """It can be made to call a tool."""
    schemas: bool = False
    """It can be held to a JSON Schema."""
    late_system: bool = False
    """It takes system messages in the middle of a conversation."""
    prefill: bool = False
    """It goes on with an assistant message at the end."""
    limit: int | None = None
    """The most tokens of an answer, where that is known."""
    output: int = 8192
    """The tokens of an answer that are asked for where nobody says how many."""

    def output_for(self, stream: bool) -> int:
        """The tokens of an answer to ask for."""
        return self.output if stream else min(self.output, _WHOLE_OUTPUT)


def abilities_of(model: str) -> Abilities:
    """What a model takes, by its name at Anthropic, Bedrock, Vertex or a gateway."""
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
        # Fable 5 itself takes it; whether its successors of other families do is not said everywhere.
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
"""Tells that a setting was left out, once for each model."""

_BUDGETS: dict[ReasoningEffort, int] = {
    "minimal": 1024,
    "low": 2048,
    "medium": 8192,
    "high": 16_384,
    "xhigh": 32_768,
    "max": 49_152,
}
"""Tokens of thinking for models that know no effort."""

_LEAST = 1024
"""The smallest budget that is taken."""

_ANSWER = 4096
"""Tokens that an answer is left beside its thinking."""

_LEVELS = ("minimal", "low", "medium", "high", "xhigh", "max")

_CANDIDATES = ("n", "candidate_count", "candidateCount")


def check(settings: ModelSettings) -> None:
    """Check what cannot be left out.

    Raises:
        BadRequest: Several answers are asked for.
    """
    for name in _CANDIDATES:
        several = settings.extra_body.get(name)
        if isinstance(several, int) and several > 1:
            raise BadRequest(f"Claude gives one answer to a request: take {name}={several} out of extra_body")


def plain_fields(
    settings: ModelSettings, able: Abilities, thinking: dict[str, Any] | None, tell: Tell
) -> dict[str, Any]:
    """What has a field of its own: how the answer is sampled, where it stops, its class of service."""
    fields: dict[str, Any] = {}
    thinks = thinking is not None and thinking.get("type") not in (None, "disabled")
    temperature, top_p = settings.temperature, settings.top_p
    if able.sampling == "none":
        if temperature is not None or top_p is not None:
            tell("temperature and top_p")
        temperature = top_p = None
    if temperature is not None and temperature > 1:
        tell(f"a temperature of {temperature}: 1 is the highest")
        temperature = 1.0
    if thinks and temperature not in (None, 1):
        tell(f"a temperature of {temperature} beside thinking")
        temperature = None
    if thinks and top_p is not None and not 0.95 <= top_p <= 1:
        tell(f"a top_p of {top_p} beside thinking")
        top_p = None
    if temperature is not None and top_p is not None and able.sampling == "one":
        tell("top_p beside a temperature")
        top_p = None
    if temperature is not None:
        fields["temperature"] = temperature
    if top_p is not None:
        fields["top_p"] = top_p
    if settings.stop is not None:
        fields["stop_sequences"] = [text for text in settings.stop if text.strip()]
        if len(fields["stop_sequences"]) < len(settings.stop):
            tell("a stop that is nothing but white space")
    if settings.service_tier in ("auto", "standard_only"):
        fields["service_tier"] = settings.service_tier
    elif settings.service_tier is not None:
        tell(f"the service tier {settings.service_tier!r}: it knows 'auto' and 'standard_only'")
    if settings.seed is not None:
        tell("a seed")
    return fields


def thinking_of(settings: ModelSettings, able: Abilities, tell: Tell) -> tuple[dict[str, Any] | None, str | None]:
    """How the model is to think, and with which effort; None for what is left to it."""
    effort, budget = settings.reasoning_effort, settings.thinking_budget
    if effort is None and budget is None:
        return None, None
    if effort == "none" or (effort is None and budget == 0):
        if able.always_thinks:
            tell("that it is not to think: it always does, here with low effort")
            return None, "low"
        return (None if able.thinking == "none" else {"type": "disabled"}), None
    if able.thinking == "none":
        tell("reasoning_effort and thinking_budget, since it does not think")
        return None, None
    level = None if effort is None else _level(effort, able, tell)
    if able.thinking == "budget" or (able.thinking == "both" and budget is not None):
        tokens = _BUDGETS[effort or "medium"] if budget is None else max(_LEAST, budget)
        return {"type": "enabled", "budget_tokens": tokens}, level
    if budget is not None:
        instead = _effort_of(budget)
        level = level or _level(instead, able, tell)
        tell(f"a thinking_budget, in whose place it has the effort {level!r}")
    adaptive = {"type": "adaptive"}
    return (adaptive | {"display": "summarized"} if able.hides_thinking else adaptive), level


def with_room(
    asked: int | None, thinking: dict[str, Any] | None, able: Abilities, *, stream: bool, shared: bool, tell: Tell
) -> tuple[int, dict[str, Any] | None]:
    """The most tokens of the answer, and the thinking that fits in them.

    Args:
        asked: What was asked for.
        thinking: How the model is to think.
        able: What the model takes.
        stream: Whether the answer is streamed.
        shared: Whether the budget may be larger, since several turns share it.
        tell: Is told what is left out.
    """
    limit = able.limit
    most = able.output_for(stream) if asked is None else asked
    if asked is not None and limit is not None and asked > limit:
        tell(f"max_tokens beyond {limit}")
        most = limit
    budget = thinking.get("budget_tokens") if thinking else None
    if thinking is None or not isinstance(budget, int) or shared:
        return most, thinking
    if asked is None:
        most = max(most, budget + _ANSWER if limit is None else min(limit, budget + _ANSWER))
    if budget < most:
        return most, thinking
    if most <= _LEAST:
        tell(f"thinking, for which max_tokens={most} leaves no room")
        return most, None
    smaller = max(_LEAST, most - max(1, min(_ANSWER, most // 4)))
    tell(f"a thinking budget of {budget} tokens: {smaller} fit in max_tokens={most}")
    return most, {**thinking, "budget_tokens": smaller}


def tool_choice(
    settings: ModelSettings,
    able: Abilities,
    thinking: dict[str, Any] | None,
    tell: Tell,
    sent_name: Callable[[str], str],
) -> dict[str, Any] | None:
    """Which tools the model is to call, and whether several at once.

    Args:
        settings: The settings of the request.
        able: What the model can do.
        thinking: Its thinking.
        tell: Is told what is left out.
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
            tell("that a tool has to be called")
        elif thinking is not None and thinking.get("type") == "enabled":
            tell("that a tool has to be called, beside a thinking budget")
        else:
            made = {"type": "any"} if choice == "required" else {"type": "tool", "name": sent_name(choice)}
    if several is not None:
        made = {**(made or {"type": "auto"}), "disable_parallel_tool_use": not several}
    return made


def _level(effort: ReasoningEffort, able: Abilities, tell: Tell) -> str | None:
    """The nearest word for the effort that the model knows, downwards where there is one."""
    if not able.efforts:
        return None
    below = [each for each in able.efforts if _LEVELS.index(each) <= _LEVELS.index(effort)]
    level = below[-1] if below else able.efforts[0]
    if level != effort and effort != "minimal":
        tell(f"the effort {effort!r}, in whose place it has {level!r}")
    return level


def _effort_of(budget: int) -> ReasoningEffort:
    for effort, tokens in _BUDGETS.items():
        if budget <= tokens:
            return effort
    return "max"
