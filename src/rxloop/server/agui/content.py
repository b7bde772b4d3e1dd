"""The content of messages, in our words and in those of AG-UI."""

from __future__ import annotations

import base64
import binascii
from typing import Any

import orjson
from ag_ui.core import UserMessage

from rxloop.protocol.messages import Content, FilePart, ImagePart, Message, TextPart
from rxloop.server.agui.frames import Data
from rxloop.server.refusals import Refused

_SCHEMES = ("https://", "http://")
"""What the address of a file may begin with: others name what is on the server, or nothing."""


def text_of(content: Content) -> str:
    """The text of a content, without its files."""
    if isinstance(content, str):
        return content
    return "\n".join(part.text for part in content if isinstance(part, TextPart))


def value_of(text: str) -> Any:
    """What stands in a text: JSON, or the text itself."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def content_of(message: Message) -> str | list[Data]:
    """The content of a message, as AG-UI has it."""
    if isinstance(message.content, str) or message.role != "user":
        return text_of(message.content)
    return [_part_of(part) for part in message.content]


def _part_of(part: TextPart | ImagePart | FilePart) -> Data:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    media = part.media_type or ""
    kind = media.partition("/")[0]
    kind = "image" if isinstance(part, ImagePart) else kind if kind in ("image", "audio", "video") else "document"
    if part.data is not None:
        source: Data = {"type": "data", "value": base64.b64encode(part.data).decode(), "mimeType": media}
    else:
        source = {"type": "url", "value": part.url or "", **({"mimeType": media} if media else {})}
    return {"type": kind, "source": source}


def message_of(message: UserMessage) -> Message:
    """A message that somebody said, in our words.

    Raises:
        Refused: It has a file that cannot be taken.
    """
    given: Any = message.content
    if isinstance(given, str):
        return Message.user(given, message_id=message.id)
    return Message.user([_taken(part) for part in given], message_id=message.id)


def _taken(part: Any) -> TextPart | ImagePart | FilePart:
    if part.type == "text":
        return TextPart(text=part.text)
    source = part.source
    cls = ImagePart if part.type == "image" else FilePart
    match source.type:
        case "data":
            try:
                return cls(data=base64.b64decode(source.value, validate=True), media_type=source.mime_type)
            except (binascii.Error, ValueError):
                raise Refused(422, "invalid", "the data of a file are not base64") from None
        case "url" if source.value.lower().startswith(_SCHEMES):
            return cls(url=source.value, media_type=source.mime_type)
        case _:
            raise Refused(422, "invalid", "a file comes as data, or by an address that begins with https://")
