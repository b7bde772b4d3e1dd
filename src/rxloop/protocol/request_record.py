"""Records of model requests in `llm-call` events. Texts are stored once per run and referenced by digest."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from hashlib import blake2b
from typing import Any, Literal, cast

import orjson
from pydantic import Field

from rxloop.protocol.json_data import freeze_json
from rxloop.protocol.messages import Message
from rxloop.protocol.model import FrozenDict, Wire, is_empty, is_missing, thaw
from rxloop.protocol.parts import FilePart, ImagePart

PartOrigin = Literal["system", "task", "summary", "history", "workspace", "note"]
"""Origin of a message in a model request.

`system`: the system prompt. `task`: the messages that started the run. `summary`: a summary of removed messages.
`history`: other messages of the conversation. `workspace`: the content of a workspace. `note`: another message that
an operator or a strategy added to this request only.
"""

PARTS: tuple[Literal["system", "tools", "task", "summary", "history", "workspace", "note"], ...] = (
    *("system", "tools", "task", "summary", "history", "workspace", "note"),
)
"""Fields of `PartTokens` in order."""

_MAX_INLINE = 2_000
"""Size in bytes from which images and files of changed messages are stored by their fingerprint."""


class PartTokens(Wire):
    """Estimated tokens of the parts of a request. Their sum is the estimate of the request."""

    # As in `ToolCall`.
    __slots__ = ("_normalised",)

    system: int = Field(default=0, exclude_if=is_empty)
    tools: int = Field(default=0, exclude_if=is_empty)
    task: int = Field(default=0, exclude_if=is_empty)
    """Messages that started the run."""
    summary: int = Field(default=0, exclude_if=is_empty)
    """Summary of removed messages."""
    history: int = Field(default=0, exclude_if=is_empty)
    """Other messages of the conversation."""
    workspace: int = Field(default=0, exclude_if=is_empty)
    note: int = Field(default=0, exclude_if=is_empty)
    """Messages that operators and strategies added to this request only."""


class RecordedPart(Wire):
    """Message of a request that is not sent as it is in the history."""

    text: str
    """Digest of the message."""
    index: int | None = Field(default=None, exclude_if=is_missing)
    """Index of the history message that it replaces, if any."""
    origin: PartOrigin | None = Field(
        default=None, validation_alias="from", serialization_alias="from", exclude_if=is_missing
    )
    """Origin, unless it is the system prompt or the history."""


class RequestRecord(Wire):
    """Record of a request, from which the request can be rebuilt exactly.

    Without `base` and `messages`, the request contains the whole history.
    """

    # As in `ToolCall`.
    __slots__ = ("_normalised",)

    base: int | None = Field(default=None, exclude_if=is_missing)
    """The `seq` of an earlier `llm-call` of the same run and branch that starts with the same messages."""
    same: int = Field(default=0, exclude_if=is_empty)
    """Number of messages that are the same as in `base`."""
    messages: list[tuple[int, int] | RecordedPart] | None = Field(default=None, exclude_if=is_missing)
    """First and last indexes in the history, and changed messages. They follow the messages of `base`."""
    system: list[RecordedPart] = Field(default_factory=list[RecordedPart], exclude_if=is_empty)
    """System messages before the history."""
    tail: list[RecordedPart] = Field(default_factory=list[RecordedPart], exclude_if=is_empty)
    """Messages after the history."""
    tools: str | None = Field(default=None, exclude_if=is_missing)
    """Digest of the list of tools, which contains the digests of their definitions."""
    answer_schema: str | None = Field(default=None, exclude_if=is_missing)
    """Digest of the JSON Schema of the answer."""
    settings: dict[str, Any] = Field(default_factory=dict[str, Any], exclude_if=is_empty)
    """Settings that are not in `llm-call.settings`, without those that may contain secrets."""
    texts: dict[str, Any] = Field(default_factory=dict[str, Any], exclude_if=is_empty)
    """Messages, tools and schemas by digest that no earlier `llm-call` of the run contains."""


_origin = vars(Message)["_origin"]


def mark_origin(message: Message, origin: PartOrigin) -> Message:
    """Mark a new message that is only added to requests with its origin. Return the message."""
    _origin.__set__(message, origin)
    return message


def get_origin(message: Message) -> PartOrigin | None:
    """Return the origin of a marked message, or None. Copies are not marked."""
    try:
        return _origin.__get__(message)
    except AttributeError:
        return None


def make_digest(value: Any) -> str:
    """Return the digest of JSON data, 22 characters long."""
    data = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    return urlsafe_b64encode(blake2b(data, digest_size=16).digest())[:22].decode()


def dump_message(message: Message) -> tuple[str, FrozenDict]:
    """Return the digest and the JSON data of a message. Large images and files are replaced by their fingerprints."""
    fields = message.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude={"message_id"})
    fields["role"] = message.role
    if not isinstance(message.content, str):
        # A part's type is a default value, but required to identify it.
        fields["content"] = [
            _reference(part) or part.model_dump(mode="json", by_alias=True, exclude_none=True)
            for part in message.content
        ]
    data = freeze_json(fields, "a message of a request")
    return make_digest(data), data


def _reference(part: Any) -> dict[str, Any] | None:
    if isinstance(part, ImagePart | FilePart) and len(part.data or part.url or "") > _MAX_INLINE:
        # Imported on first use, because most messages have no images.
        from rxloop.protocol.media import fingerprint

        return {"type": part.type, "fingerprint": fingerprint(part)}
    return None


def load_message(data: Any, media: dict[str, Any]) -> Message | None:
    """Return a message from its JSON data, or None if it contains an unknown image or file.

    Args:
        data: JSON data, as returned by `dump_message`.
        media: JSON data of images and files by fingerprint.

    Raises:
        ValueError: The data is not a message.
    """
    fields = cast("dict[str, Any]", thaw(data))
    content = fields.get("content")
    if isinstance(content, list):
        parts = cast("list[dict[str, Any]]", content)
        fields["content"] = [media.get(part["fingerprint"]) if "fingerprint" in part else part for part in parts]
        if None in fields["content"]:
            return None
    # Validate in JSON mode, because binary data is base64-encoded.
    return Message.model_validate_json(orjson.dumps(fields))
