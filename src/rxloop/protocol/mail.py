"""Mail: what somebody wants of a run that another process drives, or nobody at the moment."""

# The models are frozen, which the type checker does not see: a `kind` may be narrower than the `str` of the base.
# pyright: reportIncompatibleVariableOverride=false

from functools import cache
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError, field_validator

from rxloop.errors import ConfigurationError
from rxloop.protocol.messages import Message, Wire
from rxloop.protocol.storable import storable


class _Letter(Wire):
    def to_json(self) -> bytes:
        """Write the letter as JSON, for `read_mail`."""
        return self.model_dump_json().encode()


class CancelMail(_Letter):
    """The run is to be cancelled."""

    kind: Literal["cancel"] = "cancel"
    reason: str | None = None
    """What the final event of the run says."""


class AnswerMail(_Letter):
    """Answers to questions of the run."""

    kind: Literal["answer"] = "answer"
    inputs: dict[str, Any]
    """The answers, by the ids of the questions."""

    @field_validator("inputs", mode="after")
    @classmethod
    def _storable(cls, inputs: dict[str, Any]) -> dict[str, Any]:
        return storable(inputs, "the answers")


class SayMail(_Letter):
    """Messages that enter the history of the run."""

    kind: Literal["say"] = "say"
    messages: list[Message]
    interrupt: bool = False
    """Cut off the answer that is being written."""


Mail = Annotated[CancelMail | AnswerMail | SayMail, Field(discriminator="kind")]
"""A letter to a run."""


def read_mail(data: bytes | str) -> Mail:
    """Read a letter that `to_json` wrote.

    Raises:
        ConfigurationError: It is none, or one of a kind that this version of rxloop does not know.
    """
    try:
        return _mail().validate_json(data)
    except ValidationError as error:
        raise ConfigurationError(f"not a letter to a run: {error}") from error


@cache
def _mail() -> TypeAdapter[Mail]:
    return TypeAdapter(Mail)
