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
from google.protobuf.struct_pb2 import NULL_VALUE, Struct

from rxloop.protocol.events import ArtifactUpdateEvent, PendingInput
from rxloop.protocol.media import make_part
from rxloop.protocol.messages import Message, Part, TextPart
from rxloop.protocol.refusals import REFUSAL_WORDS
from rxloop.server.core.bodies import parse_text

_MAX_PARTS = 64
_MAX_CHARACTERS = 100_000
_MAX_DEPTH = 24
"""Maximum nesting depth of data. Protobuf allows 100 message levels, and each level of data needs up to three."""
_URL = re.compile(r"https?://[!-~]{1,2000}", re.IGNORECASE)
_CONFIRMATIONS = ("yes", "y", "true", "ok", "approve", "approved")


# -- input


def check_part_count(count: int) -> None:
    """Check the number of parts of a message.

    Raises:
        InvalidParamsError: If the number is invalid.
    """
    if not 0 < count <= _MAX_PARTS:
        raise InvalidParamsError(f"a message must have 1 to {_MAX_PARTS} parts, got {count}")


def convert_content(message: pb.Message) -> str | list[Part]:
    """Convert an A2A message to model input. Data parts are converted to JSON text.

    Raises:
        InvalidParamsError: If a part is empty, too long, or has an unsupported URL.
    """
    check_part_count(len(message.parts))
    parts = [_convert_part(part, index) for index, part in enumerate(message.parts)]
    if len(parts) == 1 and isinstance(parts[0], TextPart):
        return parts[0].text
    return parts


def _convert_part(part: pb.Part, index: int) -> Part:
    kind = part.WhichOneof("content")
    if kind in ("text", "data"):
        text = part.text if kind == "text" else orjson.dumps(read_data(part)).decode()
        if not 0 < len(text) <= _MAX_CHARACTERS:
            raise InvalidParamsError(f"the text of a part must have 1 to {_MAX_CHARACTERS} characters, got {len(text)}")
        return TextPart(text=text)
    if kind not in ("url", "raw"):
        raise InvalidParamsError("a part must have text, raw, url or data")
    if kind == "url" and not _URL.fullmatch(part.url) and part.url.lstrip()[:5].lower() != "data:":
        raise InvalidParamsError("the url of a part must start with http:// or https://")
    media_type = part.media_type or None
    if kind == "raw" and media_type is None:
        raise InvalidParamsError("a raw part must have a mediaType")
    image = (media_type or "").lower().startswith("image/")
    source: dict[str, Any] = {"url": part.url} if kind == "url" else {"data": part.raw}
    try:
        return make_part(**source, media_type=media_type, name=part.filename or None, image=image)
    except ValueError as error:
        raise InvalidParamsError(f"parts[{index}] of the message is invalid: {error}") from None


def remove_data(params: pb.SendMessageRequest) -> pb.SendMessageRequest:
    """Return the parameters without free-form JSON, because the SDK needs 20 microseconds to validate each value."""
    copy = pb.SendMessageRequest()
    copy.CopyFrom(params)
    copy.ClearField("metadata")
    if copy.HasField("message"):
        copy.message.ClearField("metadata")
    for part in copy.message.parts:
        part.ClearField("metadata")
        if part.HasField("data"):
            part.data.null_value = NULL_VALUE
    return copy


def read_data(part: pb.Part) -> Any:
    """Return a part's data as JSON."""
    return _convert_integers(MessageToDict(part.data))


def read_metadata(struct: Struct) -> dict[str, Any]:
    """Return client metadata as JSON."""
    return cast("dict[str, Any]", _convert_integers(MessageToDict(struct)))


def _convert_integers(value: Any) -> Any:
    # A2A numbers are floats, but tools with integer parameters need integers.
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, dict):
        return {key: _convert_integers(each) for key, each in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_convert_integers(each) for each in cast("list[Any]", value)]
    return value


def read_inputs(message: pb.Message) -> dict[str, Any]:
    """Return the values of all `{"inputs": {id: value}}` data parts."""
    inputs: dict[str, Any] = {}
    for each in _read_data_parts(message):
        if isinstance(each, dict) and isinstance(values := cast("dict[str, Any]", each).get("inputs"), dict):
            inputs |= cast("dict[str, Any]", values)
    return inputs


def _read_data_parts(message: pb.Message) -> list[Any]:
    return [read_data(part) for part in message.parts if part.HasField("data")]


def read_answers(message: pb.Message, pending: Sequence[PendingInput]) -> dict[str, Any]:
    """Return the answers in a message.

    Answers are `{"inputs": {id: value}}` data parts. If there is only one question, they may also be plain data or
    text.

    Raises:
        InvalidParamsError: If the message does not identify the question that it answers.
    """
    answers = read_inputs(message)
    if answers:
        return answers
    if len(pending) != 1:
        ids = ", ".join(question.input_id for question in pending)
        raise InvalidParamsError(f'the answer must be a data part {{"inputs": {{id: value}}}} with the ids {ids}')
    [question] = pending
    data = _read_data_parts(message)
    if data:
        return {question.input_id: data[0]}
    text = "\n".join(part.text for part in message.parts if part.HasField("text")).strip()
    if not text:
        raise InvalidParamsError("the answer must have a text part or a data part")
    return {question.input_id: _parse_text(question, text)}


def _parse_text(question: PendingInput, text: str) -> Any:
    match question.input_kind:
        case "text" | "credential":
            return text
        case "confirmation" if text.lower() in _CONFIRMATIONS:
            return True
        case "confirmation" if text.lower() in REFUSAL_WORDS:
            return False
        case "selection" if question.options is not None:
            return next((option for option in question.options if str(option) == text), text)
        case _:
            return parse_text(text)


# -- output


def to_struct(value: dict[str, Any]) -> Struct:
    """Convert metadata to a protobuf struct. Values that are nested too deeply are converted to JSON text."""
    return ParseDict(_limit_depth(value), Struct())


def to_data_part(value: Any) -> pb.Part:
    """Create a data part. Values that are nested too deeply are converted to JSON text."""
    return ParseDict({"data": _limit_depth(value)}, pb.Part())


def _limit_depth(value: Any, depth: int = 0) -> Any:
    if not isinstance(value, Mapping | list | tuple):
        return value
    if depth == _MAX_DEPTH:
        return orjson.dumps(value, default=_to_plain).decode()
    if isinstance(value, Mapping):
        return {key: _limit_depth(each, depth + 1) for key, each in cast("Mapping[str, Any]", value).items()}
    return [_limit_depth(each, depth + 1) for each in cast("Sequence[Any]", value)]


def _to_plain(value: Any) -> Any:
    return dict(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else list(value)


def to_a2a_message(message: Message, message_id: str, task_id: str, context_id: str) -> pb.Message:
    """Convert a message to the A2A format."""
    content = [TextPart(text=message.content)] if isinstance(message.content, str) else message.content
    return pb.Message(
        message_id=message.message_id or message_id,
        task_id=task_id,
        context_id=context_id,
        role=pb.ROLE_USER if message.role == "user" else pb.ROLE_AGENT,
        parts=[to_a2a_part(part) for part in content],
    )


def to_a2a_part(part: Part) -> pb.Part:
    """Convert a message part to the A2A format."""
    if isinstance(part, TextPart):
        return pb.Part(text=part.text)
    converted = pb.Part(media_type=part.media_type or "", filename=getattr(part, "filename", None) or "")
    if part.url is not None:
        converted.url = part.url
    else:
        converted.raw = part.data or b""
    return converted


def to_artifact_part(event: ArtifactUpdateEvent) -> pb.Part:
    """Convert an artifact chunk to a part: raw bytes, text, data, or the URL of a link."""
    part = pb.Part(filename=event.name or "", media_type=event.media_type or "")
    data: Any = event.data
    if event.url is not None:
        part.url = event.url
        return part
    match data:
        case str() if event.encoding == "base64":
            part.raw = b64decode(data)
        case None | str():
            part.text = data or ""
        case _:
            part.MergeFrom(to_data_part(data))
    return part
