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
from rxloop.server.core.errors import Refused, make_invalid_data_error

M = TypeVar("M", bound=BaseModel)


class _ClientData(Wire):
    """Base class for client data, which may contain unknown fields."""

    model_config = ConfigDict(extra="ignore")


class Post(_ClientData):
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


class _TextPart(_ClientData):
    type: Literal["text"]
    text: Text


class _FilePart(_ClientData):
    type: Literal["file"]
    media_type: Annotated[str, Field(min_length=1, max_length=200)]
    url: Annotated[str, Field(pattern=r"^([hH][tT][tT][pP][sS]?://[!-~]{1,2000}|[dD][aA][tT][aA]:[ -~\s]*)$")]
    filename: Annotated[str, Field(max_length=500)] | None = None


class UserMessage(_ClientData):
    """A user message."""

    id: Id
    role: Literal["user"]
    parts: Annotated[
        list[Annotated[_TextPart | _FilePart, Field(discriminator="type")]], Field(min_length=1, max_length=64)
    ]

    def to_bytes(self) -> bytes:
        """Return the content for comparison, because a repeated message may have been edited."""
        return self.model_dump_json().encode()

    def to_message(self) -> Message:
        """Convert to a run message.

        Raises:
            Refused: If a file is invalid.
        """
        parts = [
            TextPart(text=part.text) if isinstance(part, _TextPart) else _convert_file(part, index)
            for index, part in enumerate(self.parts)
        ]
        only = parts[0] if len(parts) == 1 else None
        return Message.user(only.text if isinstance(only, TextPart) else parts, message_id=self.id)


class _Approval(_ClientData):
    id: Annotated[str, Field(max_length=400)]
    # Only true counts as approval.
    approved: Annotated[bool, Field(strict=True)]
    reason: Text | None = None


class _AnswerPart(_ClientData):
    """Message part with a potential answer."""

    state: str = ""
    tool_call_id: Annotated[str, Field(max_length=400)] = ""
    provider_executed: bool | None = None
    approval: Any = None
    output: Any = None
    error_text: str | None = None


class _AnswerMessage(_ClientData):
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


def parse_new(post: Post) -> list[UserMessage] | Answers:
    """Return new user messages, or answers within the last agent message.

    Raises:
        Refused: If the messages are invalid, or contain nothing new.
    """
    newest: list[Any] = []
    for message in reversed(post.messages):
        role = _get_field(message, "role")
        if role == "assistant":
            if not newest or _get_field(message, "id") == post.message_id:
                return _parse_answers(message)
            break
        if role == "user":
            newest.insert(0, message)
    if not newest:
        raise Refused(422, "invalid", "there is no new user message and no agent message to answer")
    return [_parse(UserMessage, each) for each in newest]


def _parse_answers(data: Any) -> Answers:
    message = _parse(_AnswerMessage, data)
    cursor_text = _get_field(_get_field(message.metadata, "rxloop"), "cursor")
    cursor = read_cursor(cursor_text[:200] if isinstance(cursor_text, str) else "", strict=False)
    answers = Answers(message.id, cursor.seq if cursor.task_id == message.id else 0)
    for raw_part in message.parts:
        if not isinstance(raw_part, dict) or "toolCallId" not in raw_part:
            continue
        part = _parse(_AnswerPart, raw_part)
        if part.state == "approval-responded":
            approval = _parse(_Approval, part.approval)
            answers.approvals[approval.id] = approval.approved
            if approval.reason:
                answers.reasons[approval.id] = approval.reason
        elif not part.provider_executed and part.state in ("output-available", "output-error"):
            failed = part.state == "output-error"
            answers.results[part.tool_call_id] = {"error": part.error_text or "It failed."} if failed else part.output
    return answers


def _get_field(data: Any, name: str) -> Any:
    """Return a field of a possibly untyped value."""
    return cast("dict[Any, Any]", data).get(name) if isinstance(data, dict) else None


def _parse(model: type[M], data: Any) -> M:
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise make_invalid_data_error(error, "message") from None


def _convert_file(part: _FilePart, index: int) -> Part:
    image = part.media_type.lower().startswith("image/")
    try:
        return make_part(url=part.url, media_type=part.media_type, name=part.filename, image=image)
    except ValueError as error:
        raise Refused(422, "invalid", f"parts[{index}] of the message is invalid: {error}") from None


def to_messages(messages: Sequence[UserMessage]) -> list[Message]:
    """Convert user messages to run messages."""
    return [each.to_message() for each in messages]
