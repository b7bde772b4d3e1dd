"""Conversion of A2A message and artifact parts."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any, cast

import orjson
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import InvalidParamsError
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.struct_pb2 import Struct

from rxloop.protocol.events import ArtifactUpdateEvent, PendingInput
from rxloop.protocol.media import make_part
from rxloop.protocol.messages import Message, Part, TextPart
from rxloop.protocol.refusals import REFUSAL_WORDS

_PARTS = 64
_TEXT = 100_000
_DEEPEST = 24
"""Maximum nesting depth of data. Protobuf allows 100 message levels, and each level of data needs up to three."""
_ADDRESS = re.compile(r"https?://[!-~]{1,2000}", re.IGNORECASE)
_YES = ("yes", "y", "true", "ok", "approve", "approved")


# -- input


def content_of(message: pb.Message) -> str | list[Part]:
    """Convert an A2A message to model input. Data parts are converted to JSON text.

    Raises:
        InvalidParamsError: If a part is empty, too long, or has an unsupported URL.
    """
    if not 0 < len(message.parts) <= _PARTS:
        raise InvalidParamsError(f"a message has 1 to {_PARTS} parts")
    parts = [_part(part, place) for place, part in enumerate(message.parts)]
    if len(parts) == 1 and isinstance(parts[0], TextPart):
        return parts[0].text
    return parts


def _part(part: pb.Part, place: int) -> Part:
    kind = part.WhichOneof("content")
    if kind in ("text", "data"):
        text = part.text if kind == "text" else orjson.dumps(data_of(part)).decode()
        if not 0 < len(text) <= _TEXT:
            raise InvalidParamsError(f"the text of a part has 1 to {_TEXT} characters")
        return TextPart(text=text)
    if kind not in ("url", "raw"):
        raise InvalidParamsError("a part has a text, raw bytes, a url or data")
    if kind == "url" and not _ADDRESS.fullmatch(part.url) and part.url.lstrip()[:5].lower() != "data:":
        raise InvalidParamsError("the url of a part is an address that begins with http:// or https://")
    media_type = part.media_type or None
    if kind == "raw" and media_type is None:
        raise InvalidParamsError("a raw part needs its mediaType")
    image = (media_type or "").lower().startswith("image/")
    source: dict[str, Any] = {"url": part.url} if kind == "url" else {"data": part.raw}
    try:
        return make_part(**source, media_type=media_type, name=part.filename or None, image=image)
    except ValueError as error:
        raise InvalidParamsError(f"parts[{place}] of the message cannot be used: {error}") from None


def data_of(part: pb.Part) -> Any:
    """Return a part's data as JSON."""
    return _whole_numbers(MessageToDict(part.data))


def metadata_of(struct: Struct) -> dict[str, Any]:
    """Return client metadata as JSON."""
    return cast("dict[str, Any]", _whole_numbers(MessageToDict(struct)))


def _whole_numbers(value: Any) -> Any:
    # A2A numbers are floats, but tools with integer parameters need integers.
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, dict):
        return {key: _whole_numbers(each) for key, each in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_whole_numbers(each) for each in cast("list[Any]", value)]
    return value


def inputs_of(message: pb.Message) -> dict[str, Any]:
    """Return the values of all `{"inputs": {id: value}}` data parts."""
    inputs: dict[str, Any] = {}
    for each in _data_of_parts(message):
        if isinstance(each, dict) and isinstance(given := cast("dict[str, Any]", each).get("inputs"), dict):
            inputs |= cast("dict[str, Any]", given)
    return inputs


def _data_of_parts(message: pb.Message) -> list[Any]:
    return [data_of(part) for part in message.parts if part.HasField("data")]


def answers_of(message: pb.Message, pending: Sequence[PendingInput]) -> dict[str, Any]:
    """Return the answers in a message.

    Answers are `{"inputs": {id: value}}` data parts. If there is only one question, they may also be plain data or
    text.

    Raises:
        InvalidParamsError: If the message does not identify the question that it answers.
    """
    answers = inputs_of(message)
    if answers:
        return answers
    if len(pending) != 1:
        known = ", ".join(question.input_id for question in pending)
        raise InvalidParamsError(f'answer by a data part {{"inputs": {{id: value}}}}; the task waits for {known}')
    [question] = pending
    data = _data_of_parts(message)
    if data:
        return {question.input_id: data[0]}
    text = "\n".join(part.text for part in message.parts if part.HasField("text")).strip()
    if not text:
        raise InvalidParamsError("answer by a text or a data part")
    return {question.input_id: _spoken(question, text)}


def _spoken(question: PendingInput, text: str) -> Any:
    match question.input_kind:
        case "text" | "credential":
            return text
        case "confirmation" if text.lower() in _YES:
            return True
        case "confirmation" if text.lower() in REFUSAL_WORDS:
            return False
        case "selection" if question.options is not None:
            return next((option for option in question.options if str(option) == text), text)
        case _:
            try:
                return orjson.loads(text)
            except orjson.JSONDecodeError:
                return text


# -- output


def struct_of(value: dict[str, Any]) -> Struct:
    """Convert metadata to a protobuf struct. Values that are nested too deeply are converted to JSON text."""
    return ParseDict(_shallow(value), Struct())


def data_part(value: Any) -> pb.Part:
    """Create a data part. Values that are nested too deeply are converted to JSON text."""
    return ParseDict({"data": _shallow(value)}, pb.Part())


def _shallow(value: Any, depth: int = 0) -> Any:
    if not isinstance(value, Mapping | list | tuple):
        return value
    if depth == _DEEPEST:
        return orjson.dumps(value, default=_plain).decode()
    if isinstance(value, Mapping):
        return {key: _shallow(each, depth + 1) for key, each in cast("Mapping[str, Any]", value).items()}
    return [_shallow(each, depth + 1) for each in cast("Sequence[Any]", value)]


def _plain(value: Any) -> Any:
    return dict(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else list(value)


def said(message: Message, message_id: str, task_id: str, context_id: str) -> pb.Message:
    """Convert a message to the A2A format."""
    content = [TextPart(text=message.content)] if isinstance(message.content, str) else message.content
    return pb.Message(
        message_id=message.message_id or message_id,
        task_id=task_id,
        context_id=context_id,
        role=pb.ROLE_USER if message.role == "user" else pb.ROLE_AGENT,
        parts=[shown(part) for part in content],
    )


def shown(part: Part) -> pb.Part:
    """Convert a message part to the A2A format."""
    if isinstance(part, TextPart):
        return pb.Part(text=part.text)
    made = pb.Part(media_type=part.media_type or "", filename=getattr(part, "filename", None) or "")
    if part.url is not None:
        made.url = part.url
    else:
        made.raw = part.data or b""
    return made


def piece_of(event: ArtifactUpdateEvent) -> pb.Part:
    """Convert an artifact chunk to a part: raw bytes, text, data, or a URL for `{"url": ...}`."""
    part = pb.Part(filename=event.name or "", media_type=event.media_type or "")
    data: Any = event.data
    match data:
        case str() if event.encoding == "base64":
            part.raw = b64decode(data)
        case None | str():
            part.text = data or ""
        case {"url": str(url), **others} if not others:
            part.url = url
        case _:
            part.MergeFrom(data_part(data))
    return part
