"""Posted messages and answers of a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rxloop.protocol.http_api import Text, ToolSpec
from rxloop.protocol.ids import Id, read_cursor
from rxloop.protocol.media import make_part
from rxloop.protocol.messages import Message, Part, TextPart, Wire
from rxloop.server.core.errors import Refused, misfit

M = TypeVar("M", bound=BaseModel)


class _Sent(Wire):
    """What a client sends may have more than is read of it."""

    model_config = ConfigDict(extra="ignore")


class Post(_Sent):
    """The body that `DefaultChatTransport` posts."""

    id: Id
    """The chat."""
    messages: Annotated[list[Any], Field(max_length=10_000)] = Field(default_factory=list[Any])
    """All that the page has, or the last of them; only what is new is read."""
    trigger: Literal["submit-message", "regenerate-message"] = "submit-message"
    message_id: Annotated[str, Field(max_length=200)] | None = None
    agent: str | None = None
    tools: Annotated[list[ToolSpec], Field(max_length=128)] = Field(default_factory=list[ToolSpec])
    """What the page carries out beside the tools that the agent has for it."""
    metadata: Annotated[dict[str, Any], Field(max_length=64)] = Field(default_factory=dict[str, Any])
    inputs: Annotated[dict[str, Any], Field(max_length=64)] = Field(default_factory=dict[str, Any])
    """Answers to the questions of `data-input-required` parts, by the id of the part or its `inputId`."""


class _TextSent(_Sent):
    type: Literal["text"]
    text: Text


class _FileSent(_Sent):
    type: Literal["file"]
    media_type: Annotated[str, Field(min_length=1, max_length=200)]
    url: Annotated[str, Field(pattern=r"^([hH][tT][tT][pP][sS]?://[!-~]{1,2000}|[dD][aA][tT][aA]:[ -~\s]*)$")]
    filename: Annotated[str, Field(max_length=500)] | None = None


class Asked(_Sent):
    """One message of the person."""

    id: Id
    role: Literal["user"]
    parts: Annotated[
        list[Annotated[_TextSent | _FileSent, Field(discriminator="type")]], Field(min_length=1, max_length=64)
    ]

    def written(self) -> bytes:
        """What it says: a message that is posted again may say something else."""
        return self.model_dump_json().encode()

    def message(self) -> Message:
        """The message as a run takes it.

        Raises:
            Refused: A file cannot be read.
        """
        parts = [
            TextPart(text=part.text) if isinstance(part, _TextSent) else _file(part, place)
            for place, part in enumerate(self.parts)
        ]
        only = parts[0] if len(parts) == 1 else None
        return Message.user(only.text if isinstance(only, TextPart) else parts, message_id=self.id)


class _Approval(_Sent):
    id: Annotated[str, Field(max_length=400)]
    # No other value counts as a yes.
    approved: Annotated[bool, Field(strict=True)]
    reason: Text | None = None


class _Answered(_Sent):
    """A part of the message of a run: only what may be an answer is read."""

    state: str = ""
    tool_call_id: Annotated[str, Field(max_length=400)] = ""
    provider_executed: bool | None = None
    approval: Any = None
    output: Any = None
    error_text: str | None = None


class _AnswerMessage(_Sent):
    id: Annotated[str, Field(max_length=200)]
    parts: Annotated[list[Any], Field(max_length=10_000)]
    metadata: Any = None


@dataclass(frozen=True, slots=True)
class Answers:
    """What a page has put into the message of a run."""

    task_id: str
    seen: int
    """The `seq` of the last event that the page has, as far as it says."""
    approvals: dict[str, bool] = field(default_factory=dict[str, bool])
    """By the id of the approval."""
    reasons: dict[str, str] = field(default_factory=dict[str, str])
    """Why the person has decided so, where it is said; by the id of the approval."""
    results: dict[str, Any] = field(default_factory=dict[str, Any])
    """What the page's tools gave, by the id of the call."""


def new_of(post: Post) -> list[Asked] | Answers:
    """Find what is new: the messages of the person behind the last one of an agent, or the answers on that one.

    Raises:
        Refused: It does not fit, or there is nothing.
    """
    newest: list[Any] = []
    for message in reversed(post.messages):
        role = _field(message, "role")
        if role == "assistant":
            if not newest or _field(message, "id") == post.message_id:
                return _answers(message)
            break
        if role == "user":
            newest.insert(0, message)
    if not newest:
        raise Refused(422, "invalid", "there is no message of the user, and none of the agent that could be answered")
    return [_read(Asked, each) for each in newest]


def _answers(given: Any) -> Answers:
    message = _read(_AnswerMessage, given)
    said = _field(_field(message.metadata, "rxloop"), "cursor")
    cursor = read_cursor(said[:200] if isinstance(said, str) else "", strict=False)
    answers = Answers(message.id, cursor.seq if cursor.task_id == message.id else 0)
    for sent in message.parts:
        if not isinstance(sent, dict) or "toolCallId" not in sent:
            continue
        part = _read(_Answered, sent)
        if part.state == "approval-responded":
            approval = _read(_Approval, part.approval)
            answers.approvals[approval.id] = approval.approved
            if approval.reason:
                answers.reasons[approval.id] = approval.reason
        elif not part.provider_executed and part.state in ("output-available", "output-error"):
            failed = part.state == "output-error"
            answers.results[part.tool_call_id] = {"error": part.error_text or "It failed."} if failed else part.output
    return answers


def _field(given: Any, name: str) -> Any:
    """A field of what may be anything."""
    return cast("dict[Any, Any]", given).get(name) if isinstance(given, dict) else None


def _read(model: type[M], given: Any) -> M:
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise misfit(error, "message") from None


def _file(part: _FileSent, place: int) -> Part:
    image = part.media_type.lower().startswith("image/")
    try:
        return make_part(url=part.url, media_type=part.media_type, name=part.filename, image=image)
    except ValueError as error:
        raise Refused(422, "invalid", f"parts[{place}] of the message cannot be used: {error}") from None


def messages_of(asked: Sequence[Asked]) -> list[Message]:
    """The messages as a run takes them."""
    return [each.message() for each in asked]
