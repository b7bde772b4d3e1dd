"""What the models of Claude take and refuse, by their names, as Anthropic's pages had it in November 2026.

A name that says nothing of a version is one of somebody else's models behind the same protocol: it is sent what most of
them take. A version that is newer than those known is taken for one like the newest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

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
