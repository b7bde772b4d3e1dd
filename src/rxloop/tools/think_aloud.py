"""The `think_aloud` tool for publishing thoughts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, create_model, field_validator

from rxloop.errors import ConfigurationError, ToolError
from rxloop.pipeline.requests import ToolDefinition
from rxloop.pipeline.run_context import RunContext
from rxloop.protocol.events import THOUGHT_TYPES, ThoughtStreamEvent, ThoughtType, Verbosity
from rxloop.support.misuse import check_minimum
from rxloop.support.text import to_one_line

if TYPE_CHECKING:
    from rxloop.state.run_state import RunState

NAME = "think_aloud"

_MAX_COMPARED_IDS = 100
"""Number of recent ids that an unknown id is compared with."""

_MAX_SHOWN = 100
"""Maximum number of characters of an unknown id in a warning."""

_MAX_ALTERNATIVES = 50

_DESCRIPTION = (
    "Publish a short thought while you work. Call it in the same message as other tools, never instead of the answer."
)

DuplicatePolicy = Literal["suffix", "keep", "refuse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Thoughts:
    """Options for the `think_aloud` tool."""

    types: tuple[str, ...] = THOUGHT_TYPES
    """Allowed types of thoughts."""
    verbosity: Verbosity = "normal"
    """Default verbosity of thoughts."""
    limit: int = 3
    """Maximum number of consecutive iterations that only think aloud."""
    duplicates: DuplicatePolicy = "suffix"
    """Duplicate id handling: append a number, reuse the id or reject the thought."""
    hidden: bool = False
    """True to hide the calls from clients. The thoughts stay visible."""
    max_length: int = 20_000
    """Maximum thought length in characters."""

    def __post_init__(self) -> None:
        unknown = [name for name in self.types if name not in THOUGHT_TYPES]
        if unknown or not self.types:
            names = ", ".join(map(repr, unknown)) or "nothing"
            raise ConfigurationError(f"Thoughts(types=...) must be some of {', '.join(THOUGHT_TYPES)}, got {names}")
        if self.verbosity not in get_args(Verbosity):
            raise ConfigurationError(f"Thoughts(verbosity=...) must be one of {', '.join(get_args(Verbosity))}")
        if self.duplicates not in get_args(DuplicatePolicy):
            raise ConfigurationError(f"Thoughts(duplicates=...) must be one of {', '.join(get_args(DuplicatePolicy))}")
        check_minimum(1, limit=self.limit, max_length=self.max_length)


class _Arguments(BaseModel):
    # Some models number their thoughts, so accept numbers as ids. They also send null for omitted arguments. Unknown
    # arguments are ignored rather than rejecting the thought.
    model_config = ConfigDict(extra="ignore", coerce_numbers_to_str=True, defer_build=True)

    thought: str
    thought_type: ThoughtType
    thought_id: Annotated[str | None, Field(max_length=200)] = None
    related_to: str | None = None
    confidence: Annotated[float | None, Field(ge=0, le=1, allow_inf_nan=False)] = None
    alternatives: Annotated[list[str] | None, Field(max_length=_MAX_ALTERNATIVES)] = None
    verbosity: Verbosity | None = None
    metadata: dict[str, Any] | None = None

    @field_validator("thought_type", "verbosity", mode="before")
    @classmethod
    def _to_lowercase(cls, value: Any) -> Any:
        return value.strip().lower() if isinstance(value, str) else value


class ThinkAloud:
    """The `think_aloud` tool. Each call publishes a thought and returns its id to the model."""

    timeout: float | None = None
    idempotent = True  # Repeated calls are detected, see `_find_published`.
    approve = False

    def __init__(self, config: Thoughts | None = None) -> None:
        # Imported lazily to speed up the import of rxloop.
        from rxloop.tools.signature import validate

        self.config = config or Thoughts()
        self._validate = validate
        fields: dict[str, Any] = {
            "thought": (str, Field(min_length=1, max_length=self.config.max_length)),
            "thought_type": (Literal[self.config.types], ...),
        }
        self._arguments: type[_Arguments] = create_model(NAME, __base__=_Arguments, **fields)
        self.definition = ToolDefinition(
            name=NAME,
            description=_DESCRIPTION,
            parameters=_make_schema(self.config.types),
            hidden=self.config.hidden,
        )

    def enabled(self, ctx: RunContext[Any]) -> bool:
        """Return True."""
        return True

    async def call(self, arguments: dict[str, Any], ctx: RunContext[Any]) -> dict[str, Any]:
        """Publish a thought.

        Raises:
            ToolError: Invalid argument or too many consecutive thinking iterations.
        """
        state = ctx.state
        if state.thought_only and state.thought_streak >= self.config.limit:
            raise ToolError(
                f"You have thought aloud {state.thought_streak} times in a row and done nothing else. Act now: call "
                "another tool, or give your answer."
            )
        if isinstance(kind := arguments.get("thought_type"), str):
            arguments = {**arguments, "thought_type": kind.strip().lower()}
        values: _Arguments = self._validate(self._arguments, arguments, NAME, self._arguments.model_fields)
        if not values.thought.strip():
            raise ToolError("thought: required, but it is blank. Say what you think.")
        # No await from here to the event, because parallel calls could otherwise choose the same id.
        published = self._find_published(values, ctx)
        if published is not None:
            return _make_answer(published.thought_id, values, None)
        thought_id = self._choose_id(_clean_id(values.thought_id), state)
        related_to = _clean_id(values.related_to)
        warning = _make_warning(related_to, state)
        ctx.emit(
            ThoughtStreamEvent(
                thought_id=thought_id,
                thought_type=values.thought_type,
                content=values.thought,
                verbosity=values.verbosity or self.config.verbosity,
                confidence=values.confidence,
                related_to=related_to,
                alternatives=values.alternatives or [],
                source="tool",
                tool_call_id=ctx.call.id if ctx.call is not None else None,
                metadata=values.metadata or {},
            )
        )
        return _make_answer(thought_id, values, warning)

    def _choose_id(self, requested: str | None, state: RunState) -> str:
        """Choose the id of a new thought. Deterministic, so that a resumed run chooses the same id."""
        if requested is None:
            return state.make_thought_id()
        if self.config.duplicates == "keep" or not _is_known(requested, state):
            return requested
        if self.config.duplicates == "refuse":
            raise ToolError(f"thought_id: {requested!r} is taken. Choose another one, or leave it out.")
        numbered = (f"{requested}-{n}" for n in itertools.count(2))
        return next(thought_id for thought_id in numbered if not _is_known(thought_id, state))

    def _find_published(self, values: _Arguments, ctx: RunContext[Any]) -> ThoughtStreamEvent | None:
        """Find the thought published by the same call in an earlier attempt."""
        if ctx.call is None or ctx.attempt <= 1:
            return None
        for thought in ctx.state.thoughts.values():
            if (thought.step, thought.tool_call_id, thought.content) == (ctx.step, ctx.call.id, values.thought):
                return thought
        return None


def _make_schema(types: Sequence[str]) -> dict[str, Any]:
    """Return the JSON Schema of the arguments.

    Every request contains it, so it is shorter than the schema of `_Arguments`: it omits `metadata`, null and limits.
    """
    related_to = "thought_id or tool call id this thought follows from"
    return {
        "type": "object",
        "properties": {
            "thought": {"type": "string"},
            "thought_type": {"type": "string", "enum": list(types)},
            "thought_id": {"type": "string", "description": "Short name, for related_to"},
            "related_to": {"type": "string", "description": related_to},
            "confidence": {"type": "number", "description": "0 to 1"},
            "alternatives": {"type": "array", "items": {"type": "string"}},
            "verbosity": {"type": "string", "enum": list(get_args(Verbosity))},
        },
        "required": ["thought", "thought_type"],
    }


def think_aloud(config: Thoughts | None = None) -> ThinkAloud:
    """Return the tool that lets a model think aloud. `Agent(thoughts=...)` adds it automatically."""
    return ThinkAloud(config)


def _clean_id(text: str | None) -> str | None:
    """Convert an id to one line without control characters."""
    return to_one_line(text, len(text)) or None if text is not None else None


def _is_known(id: str, state: RunState) -> bool:
    return id in state.thoughts or id in state.calls or id in state.earlier


def _make_warning(related_to: str | None, state: RunState) -> str | None:
    """Return a warning if `related_to` refers to an unknown id."""
    if related_to is None or _is_known(related_to, state):
        return None
    from difflib import get_close_matches

    ids = list(dict.fromkeys([*state.earlier, *state.thoughts, *state.calls]))[-_MAX_COMPARED_IDS:]
    closest = get_close_matches(related_to[:_MAX_SHOWN], ids, n=3, cutoff=0.4) or ids[-3:]
    hint = f"the nearest ids are {', '.join(closest)}" if closest else "there is no earlier thought or tool call"
    return (
        f"related_to: no thought or tool call has the id {_quote(related_to)}; {hint}. The thought was kept as it is."
    )


def _quote(text: str) -> str:
    return repr(text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…")


def _make_answer(thought_id: str, values: _Arguments, warning: str | None) -> dict[str, Any]:
    requested = _clean_id(values.thought_id)
    if requested is None or requested == thought_id:
        message = f"Noted as {thought_id!r}."
    else:
        message = f"Noted as {thought_id!r}, because {requested!r} was taken: refer to it by {thought_id!r}."
    answer = {"acknowledged": True, "thoughtId": thought_id, "message": message}
    return answer | {"warning": warning} if warning is not None else answer
