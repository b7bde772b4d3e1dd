"""Commands that other processes send to a run."""

# The models are frozen, which the type checker does not see: a `kind` may be narrower than the `str` of the base.
# pyright: reportIncompatibleVariableOverride=false

import logging
from functools import cache, lru_cache
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError, field_validator

from rxloop.errors import ConfigurationError
from rxloop.protocol.json_data import storable
from rxloop.protocol.messages import Message, Wire
from rxloop.protocol.model import absent

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
