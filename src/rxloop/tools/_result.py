"""The result of a tool, as JSON for the stream and as text for the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

from pydantic_core import PydanticSerializationError, from_json, to_json, to_jsonable_python

from rxloop.errors import ToolError
from rxloop.protocol.frozen import FrozenList
from rxloop.protocol.messages import FilePart, ImagePart, Message, TextPart
from rxloop.protocol.parts import with_placeholders
from rxloop.protocol.storable import readable, settled_model
from rxloop.tools._size import BYTES, LESS, PART_BYTES, PARTS, VALUES, TooLarge, check_size, too_long

MAX_RESULT = 100_000
"""Characters of a result that the model reads, unless the tool has a limit of its own."""
_CUT = "\n[... {n} characters of this result are left out here: {where} ...]\n"
_ASK = "ask for less at once, or for a part of it"


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool may return: a value for programs, and another text than its JSON for the model."""

    value: Any
    """What subscribers and the log get, as JSON."""
    content: str
    """What the model reads."""
    messages: Sequence[str | Message] = ()
    """System messages for the model alone, which follow the results of all calls of the message."""
    parts: Sequence[ImagePart | FilePart] = ()
    """Images and files, which the model sees after the text, where its provider takes them."""


def encode_result(value: Any) -> tuple[Any, str]:
    """Give the value as JSON data, and the text that the model reads: that of a `ToolResult`, if it is one.

    A string is its own text; everything else is written as JSON, so that 0, false, [] and null reach the model as they
    are. The data is what a reader of that JSON gets: no tuples, no models, and "NaN" for a float that is not a number.

    Of an image or a file, be it in a list, the data tells what it is, and a word in brackets stands for it in the text;
    `parts_with` gives it.

    Raises:
        ToolError: The value cannot be written as JSON, and the text names its type; or it is too large.
    """
    if isinstance(value, ToolResult):
        content: Any = value.content
        if not isinstance(content, str):
            raise ToolError(f"The tool ran, but the content of its ToolResult is not a text: {content!r}")
        if len(content) > BYTES:
            raise too_long()
        return encode_result(value.value)[0], with_placeholders(readable(content), parts_of(value))
    if isinstance(value, str):
        if len(value) > BYTES:
            raise too_long()
        text = readable(str.__str__(value))  # An enum that is a string is its value.
        return text, text
    value = gathered(value)
    try:
        check_size(value)
        if parts_of(value):
            return _encode_parts(value)
        encoded = _encode(value)
        if len(encoded) > BYTES:
            raise too_long()
        return from_json(encoded), encoded.decode()
    except (ValueError, TypeError, RecursionError) as error:
        raise ToolError(
            f"The tool ran, but what it returned (of type {type(value).__qualname__}) cannot be written as JSON: "
            f"{error}"
        ) from error


def gathered(value: Any) -> Any:
    """Make a list of what can be read only once, with one more value than is allowed; anything else is itself."""
    return list(islice(cast("Iterator[Any]", value), VALUES + 1)) if isinstance(value, Iterator) else value


def _encode_parts(value: Any) -> tuple[Any, str]:
    """Encode an image or a file, or a list in which some are."""
    if isinstance(value, ImagePart | FilePart):
        fields = value.model_dump(mode="json", exclude={"data"}, exclude_none=True)
        return fields if value.data is None else {**fields, "size": len(value.data)}, value.placeholder
    encoded = [encode_result(item.text if isinstance(item, TextPart) else item) for item in value]
    return [data for data, _ in encoded], "\n".join(text for _, text in encoded)


def parts_of(value: Any) -> Sequence[ImagePart | FilePart]:
    """Find the images and files of what a tool returned: itself, some in a list, or those of a `ToolResult`.

    Raises:
        ToolError: Something else is among the parts of a `ToolResult`.
    """
    if isinstance(value, ToolResult):
        # One more than is allowed: a generator may have no end.
        given: list[Any] = list(islice(cast("Any", value.parts), PARTS + 1))
        for part in given:
            if not isinstance(part, ImagePart | FilePart):
                raise ToolError(f"The tool ran, but {part!r} among the parts of its ToolResult is no image or file.")
        return [*parts_of(value.value), *given]
    if isinstance(value, ImagePart | FilePart):
        return [value]
    if not isinstance(value, list | tuple):
        return ()
    return [item for item in cast("Sequence[Any]", value) if isinstance(item, ImagePart | FilePart)]


def parts_with(value: Any) -> dict[str, Any]:
    """Give the images and files of what a tool returned as a field of its event; nothing if there are none.

    Raises:
        ToolError: There are too many, they are too large, or something else is among them.
    """
    parts = parts_of(value)
    if not parts:
        return {}
    if len(parts) > PARTS:
        raise TooLarge(f"The tool ran, but its result has more than {PARTS} images and files. {LESS}")
    if sum(len(part.data or part.url or "") for part in parts) > PART_BYTES:
        raise TooLarge(
            f"The tool ran, but the images and files of its result are larger than {PART_BYTES // 1_000_000} MB. {LESS}"
        )
    return {"parts": FrozenList([settled_model(part, "the parts of the result") for part in parts])}


def messages_with(value: Any) -> dict[str, Any]:
    """Give the system messages of a `ToolResult` as a field of its event; nothing if there are none.

    Raises:
        ToolError: One of them is not a system message, or they are too long.
    """
    if not isinstance(value, ToolResult) or not value.messages:
        return {}
    given: Any = value.messages
    made: list[Message] = []
    size = 0
    for each in [given] if isinstance(given, str) else given:
        message = Message.system(each) if isinstance(each, str) else each
        if not isinstance(message, Message) or message.role != "system":
            raise ToolError(f"The tool ran, but {each!r} among the messages of its ToolResult is not a system message.")
        # One without a word counts as well: a generator may have no end.
        size += max(1, len(message.text))
        if size > MAX_RESULT:
            words = f"The tool ran, but the messages of its ToolResult are longer than {MAX_RESULT:,} characters."
            raise ToolError(words)
        made.append(settled_model(message, "the messages of the ToolResult"))
    return {"messages": FrozenList(made)}


def _encode(value: Any) -> bytes:
    try:
        return to_json(value, inf_nan_mode="strings")
    except PydanticSerializationError as error:
        if "UnicodeEncodeError" not in str(error):
            raise
        # Twice: keys first, which cannot be made JSON as they are, then what was inside models.
        return to_json(_readable_parts(to_jsonable_python(_readable_parts(value))), inf_nan_mode="strings")


def _readable_parts(data: Any) -> Any:
    if isinstance(data, str):
        return readable(data)
    if isinstance(data, list):
        return [_readable_parts(part) for part in cast("list[Any]", data)]
    if isinstance(data, dict):
        return {_readable_parts(key): _readable_parts(part) for key, part in cast("dict[Any, Any]", data).items()}
    return data


def shortened(text: str, limit: int | None, where: str | None = None) -> str:
    """Shorten a text for the model to its beginning and its end, with a note on what is missing between them.

    Args:
        text: What a tool gave.
        limit: Characters that may stay; None for all.
        where: How the model gets at the rest, if it does.
    """
    if limit is None or len(text) <= limit:
        return text
    front = limit * 2 // 3
    back = limit - front
    return f"{text[:front]}{_CUT.format(n=len(text) - limit, where=where or _ASK)}{text[len(text) - back :]}"
