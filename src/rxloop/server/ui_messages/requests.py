"""Parsing of posted messages and answers."""

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
    """Base class for client data, which may contain unknown fields."""

    model_config = ConfigDict(extra="ignore")


class Post(_Sent):
    """Request body sent by `DefaultChatTransport`."""

    id: Id
    """Chat id."""
    messages: Annotated[list[Any], Field(max_length=10_000)] = Field(default_factory=list[Any])
    """All page messages or only the last one. Known messages are ignored."""
    trigger: Literal["submit-message", "regenerate-message"] = "submit-message"
    message_id: Annotated[str, Field(max_length=200)] | None = None
    agent: str | None = None
    tools: Annotated[list[ToolSpec], Field(max_length=128)] = Field(default_factory=list[ToolSpec])
    """Tools executed by the page, in addition to the client tools of the agent."""
    metadata: Annotated[dict[str, Any], Field(max_length=64)] = Field(default_factory=dict[str, Any])
    inputs: Annotated[dict[str, Any], Field(max_length=64)] = Field(default_factory=dict[str, Any])
    """Answers to `data-input-required` parts, by part id or `inputId`."""


class _TextSent(_Sent):
    type: Literal["text"]
    text: Text


class _FileSent(_Sent):
    type: Literal["file"]
    media_type: Annotated[str, Field(min_length=1, max_length=200)]
    url: Annotated[str, Field(pattern=r"^([hH][tT][tT][pP][sS]?://[!-~]{1,2000}|[dD][aA][tT][aA]:[ -~\s]*)$")]
    filename: Annotated[str, Field(max_length=500)] | None = None


class Asked(_Sent):
    """A user message."""

    id: Id
    role: Literal["user"]
    parts: Annotated[
        list[Annotated[_TextSent | _FileSent, Field(discriminator="type")]], Field(min_length=1, max_length=64)
    ]

    def written(self) -> bytes:
        """Return the content for comparison, because a repeated message may have been edited."""
        return self.model_dump_json().encode()

    def message(self) -> Message:
        """Convert to a run message.

        Raises:
            Refused: If a file is invalid.
        """
        parts = [
            TextPart(text=part.text) if isinstance(part, _TextSent) else _file(part, place)
            for place, part in enumerate(self.parts)
        ]
        only = parts[0] if len(parts) == 1 else None
        return Message.user(only.text if isinstance(only, TextPart) else parts, message_id=self.id)


class _Approval(_Sent):
    id: Annotated[str, Field(max_length=400)]
    # Only true counts as approval.
    approved: Annotated[bool, Field(strict=True)]
    reason: Text | None = None


class _Answered(_Sent):
    """Message part with a potential answer."""

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
    """Answers found in a posted run message."""

    task_id: str
    seen: int
    """Sequence number reported by the page for its last event."""
    approvals: dict[str, bool] = field(default_factory=dict[str, bool])
    """Decisions by approval id."""
    reasons: dict[str, str] = field(default_factory=dict[str, str])
    """Reasons for decisions by approval id, if any."""
    results: dict[str, Any] = field(default_factory=dict[str, Any])
    """Page tool results by call id."""


def new_of(post: Post) -> list[Asked] | Answers:
    """Return new user messages, or answers within the last agent message.

    Raises:
        Refused: If the messages are invalid, or contain nothing new.
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
    """Return a field of a possibly untyped value."""
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
    """Convert user messages to run messages."""
    return [each.message() for each in asked]
