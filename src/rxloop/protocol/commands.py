"""Commands that other processes send to a run."""

import logging
from functools import cache, lru_cache
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, Field, TypeAdapter, ValidationError, field_validator

from rxloop.errors import ConfigurationError
from rxloop.protocol.json_data import freeze_json
from rxloop.protocol.messages import Message, Wire
from rxloop.protocol.model import is_empty
from rxloop.protocol.tool_events import GoalChange

log = logging.getLogger("rxloop")


class _Command(Wire):
    def to_json(self) -> bytes:
        """Encode the command as JSON for `read_command`."""
        return self.model_dump_json().encode()


class CancelCommand(_Command):
    """Command to cancel the run."""

    kind: Literal["cancel"] = "cancel"
    reason: str | None = None
    """Reason for the final event of the run."""


class AnswerCommand(_Command):
    """Command that answers pending questions."""

    kind: Literal["answer"] = "answer"
    inputs: dict[str, Any]
    """Answers by question id."""
    messages: list[Message] = Field(default_factory=list[Message], exclude_if=lambda messages: not messages)
    """Messages sent with the answers. They are only added to the history if all answers are accepted."""

    @field_validator("inputs", mode="after")
    @classmethod
    def _freeze_inputs(cls, inputs: dict[str, Any]) -> dict[str, Any]:
        return freeze_json(inputs, "the answers")


class MessageCommand(_Command):
    """Command that adds messages to the history."""

    kind: Literal["message"] = "message"
    messages: list[Message]
    interrupt: bool = False
    """True to stop the answer that is being generated."""
    # Commands of earlier versions have `letsGo`.
    superseding_task_id: str | None = Field(
        default=None, validation_alias=AliasChoices("supersedingTaskId", "letsGo"), exclude_if=is_empty
    )
    """Next run id, set if starting the next run drops pending questions. Later answers are ignored. The id is not sent
    to the model."""


class GoalsCommand(_Command):
    """Command that changes goals."""

    kind: Literal["goals"] = "goals"
    changes: list[GoalChange]


Command = Annotated[CancelCommand | AnswerCommand | MessageCommand | GoalsCommand, Field(discriminator="kind")]
"""Any command to a run."""


def read_command(data: bytes | str) -> Command | None:
    """Parse a command written by `to_json`, possibly by another version of rxloop. Unknown fields are ignored.

    Returns:
        None if this version does not know the kind. The caller must skip the command to process the following ones. It
        stays in the inbox for a process that knows it until one of those is applied. Each kind is only logged once.

    Raises:
        ConfigurationError: The data is not a command.
    """
    try:
        return _command_adapter().validate_json(data, extra="ignore")
    except ValidationError as error:
        [first, *_] = error.errors(include_url=False)
        if first["type"] != "union_tag_invalid":
            raise ConfigurationError(f"data must be a command to a run: {error}") from error
    _warn_once(first.get("ctx", {}).get("tag"))
    return None


@lru_cache(maxsize=64)
def _warn_once(kind: str | None) -> None:
    """Warn about an unknown kind. The cache suppresses repeated warnings."""
    log.warning("Skipping commands of unknown kind %r, update rxloop to process them", kind)


@cache
def _command_adapter() -> TypeAdapter[Command]:
    return TypeAdapter(Command)
