"""Questions that a run asks, and commands sent to it."""

# The models are frozen, which the type checker does not see: a `kind` may be narrower than the `str` of the base.
# pyright: reportIncompatibleVariableOverride=false

import logging
from collections.abc import Iterable
from functools import cache, lru_cache
from operator import not_
from typing import Annotated, Any, Literal, cast

from pydantic import Field, TypeAdapter, ValidationError, field_validator

from rxloop.errors import ConfigurationError
from rxloop.protocol.json_data import storable
from rxloop.protocol.messages import Message, ToolCall, Wire
from rxloop.protocol.model import EMPTY_DICT, absent

HIDDEN_QUESTION = "A decision is needed before the agent can go on."
"""What clients read in place of a question that a hidden tool asks."""


class PendingInput(Wire):
    """A question that waits for an answer."""

    input_id: str
    """The same in every attempt."""
    prompt: str
    input_kind: Literal["confirmation", "text", "selection", "data", "tool", "credential"] = "data"
    """`tool` is a call that the client carries out, `credential` one that only the person has."""
    options: list[Any] | None = None
    answer_schema: dict[str, Any] = Field(default_factory=dict[str, Any])
    """JSON Schema of the answer."""
    call: ToolCall | None = None
    """The tool call that asks, or that the client is to carry out."""
    index: int = 0
    step: str | None = None
    task_id: str | None = Field(default=None, exclude_if=not_)
    """The run that asks, where that is one of a nested agent."""
    agent_path: tuple[str, ...] = Field(default=(), exclude_if=not_)
    """The names of the nested agents down to the one that asks."""
    hidden: bool = Field(default=False, exclude_if=not_)
    """The run that asks is nested in a call that is not for clients."""
    provider: str | None = Field(default=None, exclude_if=lambda value: value is None)
    """Of a credential: where the person signs in."""
    url: str | None = Field(default=None, exclude_if=lambda value: value is None)
    """Of a credential: the page for that."""
    public_key: str | None = Field(default=None, exclude_if=lambda value: value is None)
    """Of a credential: the key that it is to be encrypted with; then the answer is the ciphertext."""

    @property
    def secret(self) -> bool:
        """Whether the answer is a credential, which is on no stream and in no log."""
        return self.input_kind == "credential"

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        shown = public_question(self)
        return super().__repr_args__() if shown is self else shown.__repr_args__()


def failure_of(answer: Any) -> str | None:
    """Return why a client could not carry a tool out: what stands in an answer `{"error": "..."}`; None otherwise."""
    if isinstance(answer, dict) and len(cast("dict[Any, Any]", answer)) == 1:
        error = cast("dict[Any, Any]", answer).get("error")
        return error if isinstance(error, str) else None
    return None


def public_question(question: PendingInput) -> PendingInput:
    """Show a question as clients may see it: of a hidden tool's, or for a credential, what it takes to answer it."""
    changes: dict[str, Any] = {}
    if question.secret:
        changes = {"call": None}
    elif question.hidden or (question.call is not None and question.call.hidden):
        changes = {"prompt": HIDDEN_QUESTION, "options": None, "answer_schema": EMPTY_DICT, "call": None}
    if question.hidden:
        changes |= {"task_id": None, "agent_path": (), "index": 0, "step": None, "hidden": False}
    if changes == {"call": question.call} or not changes:
        return question
    return question.model_copy(update=changes)


log = logging.getLogger("rxloop")


class _Letter(Wire):
    def to_json(self) -> bytes:
        """Write the letter as JSON, for `read_command`."""
        return self.model_dump_json().encode()


class CancelCommand(_Letter):
    """The run is to be cancelled."""

    kind: Literal["cancel"] = "cancel"
    reason: str | None = None
    """What the final event of the run says."""


class AnswerCommand(_Letter):
    """Answers to questions of the run."""

    kind: Literal["answer"] = "answer"
    inputs: dict[str, Any]
    """The answers, by the ids of the questions."""
    messages: list[Message] = Field(default_factory=list[Message], exclude_if=lambda messages: not messages)
    """What the person says with the answers. It enters the history only if every answer counts."""

    @field_validator("inputs", mode="after")
    @classmethod
    def _storable(cls, inputs: dict[str, Any]) -> dict[str, Any]:
        return storable(inputs, "the answers")


class MessageCommand(_Letter):
    """Messages that enter the history of the run."""

    kind: Literal["say"] = "say"
    messages: list[Message]
    interrupt: bool = False
    """Cut off the answer that is being written."""
    lets_go: str | None = Field(default=None, exclude_if=absent)
    """The later run of the conversation that is about to begin, and lets the questions of this one go: an answer behind
    this letter comes too late. It says nothing to the model."""


Command = Annotated[CancelCommand | AnswerCommand | MessageCommand, Field(discriminator="kind")]
"""A letter to a run."""


def read_command(data: bytes | str) -> Command | None:
    """Read a letter that `to_json` wrote, here or in another version of rxloop: unknown fields are left out.

    Returns:
        None for a kind that this version does not know, with one warning for each: it is to be passed over, so that the
        letters behind it are heard, and stays for a process that knows it, as long as none of those is taken.

    Raises:
        ConfigurationError: It is none.
    """
    try:
        return _mail().validate_json(data, extra="ignore")
    except ValidationError as error:
        [first, *_] = error.errors(include_url=False)
        if first["type"] != "union_tag_invalid":
            raise ConfigurationError(f"not a letter to a run: {error}") from error
    _warn(first.get("ctx", {}).get("tag"))
    return None


@lru_cache(maxsize=64)
def _warn(kind: str | None) -> None:
    """Tell of a kind, the first time."""
    log.warning("letters of the kind %r are passed over: this version of rxloop does not know them, update it", kind)


@cache
def _mail() -> TypeAdapter[Command]:
    return TypeAdapter(Command)
