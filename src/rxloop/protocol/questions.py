"""Questions that wait for an answer: of a person, or of the client that carries a tool out."""

from collections.abc import Iterable
from operator import not_
from typing import Any, Literal, cast

from pydantic import Field

from rxloop.protocol.frozen import EMPTY_DICT
from rxloop.protocol.messages import ToolCall, Wire

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
