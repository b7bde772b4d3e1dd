"""The tool that publishes thoughts."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, create_model, field_validator

from rxloop.errors import ConfigurationError, ToolError
from rxloop.pipeline.requests import ToolDefinition
from rxloop.pipeline.run_context import RunContext
from rxloop.protocol.events import THOUGHT_TYPES, ThoughtStreamEvent, ThoughtType, Verbosity
from rxloop.support.text import to_one_line

if TYPE_CHECKING:
    from rxloop.state.run_state import RunState

NAME = "think_aloud"

_COMPARED = 100
"""How many ids, the newest ones, an unknown id is compared with."""

_SHOWN = 100
"""Characters of an unknown id that the model is shown."""

_ALTERNATIVES = 50

_DESCRIPTION = """\
Think aloud: say what you plan, observe, conclude or doubt while you work. Others can follow your thoughts as they come.

- Call it beside other tools, in the same message: there it costs no time. Do not call it alone again and again, and \
never instead of the answer.
- Choose a short thought_id, such as "plan" or "check-units", so that later thoughts can refer to it.
- Give related_to where a thought follows from an earlier one, or from the result of a tool: the thought_id of that \
thought, or the id of that tool call.
- One thought a call, in a few sentences."""

DuplicatePolicy = Literal["suffix", "keep", "refuse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Thoughts:
    """How a model may think aloud."""

    types: tuple[str, ...] = THOUGHT_TYPES
    """The types of thoughts that are allowed."""
    verbosity: Verbosity = "normal"
    """That of thoughts which say none."""
    limit: int = 3
    """How many iterations in a row may do nothing but think aloud."""
    duplicates: DuplicatePolicy = "suffix"
    """What happens to a thought_id that is taken: it gets a number, stays as it is, or the thought is refused."""
    hidden: bool = False
    """Clients see the thoughts and not the calls."""
    max_length: int = 20_000
    """Characters of a thought."""

    def __post_init__(self) -> None:
        unknown = [name for name in self.types if name not in THOUGHT_TYPES]
        if unknown or not self.types:
            given = ", ".join(map(repr, unknown)) or "nothing"
            raise ConfigurationError(f"Thoughts(types=...) has {given}; the types are {', '.join(THOUGHT_TYPES)}")
        if self.verbosity not in get_args(Verbosity):
            raise ConfigurationError(f"Thoughts(verbosity=...) must be one of {', '.join(get_args(Verbosity))}")
        if self.duplicates not in get_args(DuplicatePolicy):
            raise ConfigurationError(f"Thoughts(duplicates=...) must be one of {', '.join(get_args(DuplicatePolicy))}")
        if self.limit < 1 or self.max_length < 1:
            raise ConfigurationError("Thoughts(limit=..., max_length=...) must be at least 1")


class _Arguments(BaseModel):
    # A number is taken for an id, because some models count their thoughts, and null for an argument that is left out.
    # Unknown arguments are ignored: a thought is worth more than its form.
    model_config = ConfigDict(
        extra="ignore",
        coerce_numbers_to_str=True,
        defer_build=True,
        json_schema_extra={"additionalProperties": False},
    )

    thought: str
    thought_type: ThoughtType
    thought_id: Annotated[
        str | None, Field(max_length=200, description="A short name for this thought; one is made if it is left out.")
    ] = None
    related_to: Annotated[
        str | None, Field(description="The thought_id or tool call id that this thought follows from.")
    ] = None
    confidence: Annotated[
        float | None, Field(ge=0, le=1, allow_inf_nan=False, description="How sure you are, from 0 to 1.")
    ] = None
    alternatives: Annotated[
        list[str] | None, Field(max_length=_ALTERNATIVES, description="What else you considered.")
    ] = None
    verbosity: Verbosity | None = None
    metadata: Annotated[dict[str, Any] | None, Field(description="Anything else, as an object.")] = None

    @field_validator("thought_type", "verbosity", mode="before")
    @classmethod
    def _in_small_letters(cls, value: Any) -> Any:
        return value.strip().lower() if isinstance(value, str) else value


class ThinkAloud:
    """The tool `think_aloud`: each call is one thought on the stream, and its id for the model."""

    timeout: float | None = None
    idempotent = True  # A thought that is already on the stream is not put there again.
    approve = False

    def __init__(self, config: Thoughts | None = None) -> None:
        # Imported here, because importing rxloop is quicker without.
        from rxloop.tools.signature import json_schema, validate

        self.config = config or Thoughts()
        self._validate = validate
        thought = Field(min_length=1, max_length=self.config.max_length, description="The thought, in plain words.")
        fields: dict[str, Any] = {
            "thought": (str, thought),
            "thought_type": (Literal[self.config.types], Field(description="What kind of thought it is.")),
        }
        self._arguments: type[_Arguments] = create_model(NAME, __base__=_Arguments, **fields)
        self.definition = ToolDefinition(
            name=NAME,
            description=_DESCRIPTION,
            parameters=json_schema(self._arguments),
            hidden=self.config.hidden,
        )

    def enabled(self, ctx: RunContext[Any]) -> bool:
        """True."""
        return True

    async def call(self, arguments: dict[str, Any], ctx: RunContext[Any]) -> dict[str, Any]:
        """Put one thought on the stream.

        Raises:
            ToolError: An argument does not fit, or the model has done nothing but think for too long.
        """
        state = ctx.state
        if state.thought_only and state.thought_streak >= self.config.limit:
            raise ToolError(
                f"You have thought aloud {state.thought_streak} times in a row and done nothing else. Act now: call "
                "another tool, or give your answer."
            )
        if isinstance(kind := arguments.get("thought_type"), str):
            arguments = {**arguments, "thought_type": kind.strip().lower()}
        given: _Arguments = self._validate(self._arguments, arguments, NAME, self._arguments.model_fields)
        if not given.thought.strip():
            raise ToolError("thought: required, but it is blank. Say what you think.")
        # Nothing is awaited from here to the event: parallel calls could take the same id otherwise.
        made = self._made_before(given, ctx)
        if made is not None:
            return _answer(made.thought_id, given, None)
        thought_id = self._choose_id(_id(given.thought_id), state)
        related_to = _id(given.related_to)
        warning = _unknown(related_to, state)
        ctx.emit(
            ThoughtStreamEvent(
                thought_id=thought_id,
                thought_type=given.thought_type,
                content=given.thought,
                verbosity=given.verbosity or self.config.verbosity,
                confidence=given.confidence,
                related_to=related_to,
                alternatives=given.alternatives or [],
                source="tool",
                tool_call_id=ctx.call.id if ctx.call is not None else None,
                metadata=given.metadata or {},
            )
        )
        return _answer(thought_id, given, warning)

    def _choose_id(self, wanted: str | None, state: RunState) -> str:
        """Choose the id of a new thought: the wanted one if it is free, or one that a resumed run would choose too."""
        if wanted is None:
            return state.make_thought_id()
        if self.config.duplicates == "keep" or not _known(wanted, state):
            return wanted
        if self.config.duplicates == "refuse":
            raise ToolError(f"thought_id: {wanted!r} is taken. Choose another one, or leave it out.")
        return _first_free((f"{wanted}-{n}" for n in itertools.count(2)), state)

    def _made_before(self, given: _Arguments, ctx: RunContext[Any]) -> ThoughtStreamEvent | None:
        """Find the thought that an earlier attempt has made of this call, if the call was interrupted after it."""
        if ctx.call is None or ctx.attempt <= 1:
            return None
        for thought in ctx.state.thoughts.values():
            if (thought.step, thought.tool_call_id, thought.content) == (ctx.step, ctx.call.id, given.thought):
                return thought
        return None


def think_aloud(config: Thoughts | None = None) -> ThinkAloud:
    """Make the tool by which a model thinks aloud; `Agent(thoughts=...)` adds it by itself."""
    return ThinkAloud(config)


def _id(text: str | None) -> str | None:
    """Clean an id: one line, without control characters."""
    return to_one_line(text, len(text)) or None if text is not None else None


def _known(id: str, state: RunState) -> bool:
    return id in state.thoughts or id in state.calls or id in state.earlier


def _first_free(ids: Iterable[str], state: RunState) -> str:
    return next(thought_id for thought_id in ids if not _known(thought_id, state))


def _unknown(related_to: str | None, state: RunState) -> str | None:
    """Make the warning for a reference to nothing."""
    if related_to is None or _known(related_to, state):
        return None
    from difflib import get_close_matches

    known = list(dict.fromkeys([*state.earlier, *state.thoughts, *state.calls]))[-_COMPARED:]
    near = get_close_matches(related_to[:_SHOWN], known, n=3, cutoff=0.4) or known[-3:]
    hint = f"the nearest ids are {', '.join(near)}" if near else "there is no earlier thought or tool call"
    return (
        f"related_to: no thought or tool call has the id {_shown(related_to)}; {hint}. The thought was kept as it is."
    )


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "…")


def _answer(thought_id: str, given: _Arguments, warning: str | None) -> dict[str, Any]:
    wanted = _id(given.thought_id)
    if wanted is None or wanted == thought_id:
        message = f"Noted as {thought_id!r}."
    else:
        message = f"Noted as {thought_id!r}, because {wanted!r} was taken: refer to it by {thought_id!r}."
    answer = {"acknowledged": True, "thoughtId": thought_id, "message": message}
    return answer | {"warning": warning} if warning is not None else answer
