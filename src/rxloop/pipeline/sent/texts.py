"""JSON data of the texts in records of model requests."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from hashlib import blake2b
from typing import Any, Literal, cast

import orjson

from rxloop.protocol.json_data import freeze_json
from rxloop.protocol.messages import Message
from rxloop.protocol.model import FrozenDict, thaw
from rxloop.protocol.parts import FilePart, ImagePart
from rxloop.protocol.step_events import PartOrigin

PARTS: tuple[Literal["system", "tools", "task", "summary", "history", "workspace", "memory", "note"], ...] = (
    *("system", "tools", "task", "summary", "history", "workspace", "memory", "note"),
)
"""Fields of `PartTokens` in order."""

_MAX_INLINE = 2_000
"""Size in bytes from which images and files of changed messages are stored by their fingerprint."""


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
    if not isinstance(data, dict):
        raise ValueError(f"a message must be a JSON object, got {type(data).__name__}")
    fields = cast("dict[str, Any]", thaw(data))
    content = fields.get("content")
    if isinstance(content, list):
        parts = cast("list[dict[str, Any]]", content)
        fields["content"] = [media.get(part["fingerprint"]) if "fingerprint" in part else part for part in parts]
        if None in fields["content"]:
            return None
    # Validate in JSON mode, because binary data is base64-encoded.
    return Message.model_validate_json(orjson.dumps(fields))
