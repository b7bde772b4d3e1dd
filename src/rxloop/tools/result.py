"""Tool results for the stream and for the model."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from pydantic_core import PydanticSerializationError, from_json, to_json, to_jsonable_python

from rxloop.errors import ToolError
from rxloop.protocol.json_data import freeze_json, freeze_model, replace_surrogates
from rxloop.protocol.messages import FilePart, ImagePart, Message, TextPart
from rxloop.protocol.model import FrozenList
from rxloop.protocol.parts import add_placeholders
from rxloop.tools.result_parts import (
    BYTES,
    LESS,
    PART_BYTES,
    PARTS,
    VALUES,
    PartExtractor,
    TooLarge,
    check_size,
    describe_part,
    too_long,
)

if TYPE_CHECKING:
    from rxloop.pipeline.ask import Asked

log = logging.getLogger("rxloop")

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


class Encoded(NamedTuple):
    """The result of a tool, encoded."""

    data: Any
    """The value as JSON data."""
    text: str
    """The text for the model."""
    parts: Sequence[ImagePart | FilePart] = ()
    """The images and files."""


def encode_result(value: Any) -> tuple[Any, str]:
    """Give the value as JSON data, and the text that the model reads: that of a `ToolResult`, if it is one.

    A string is its own text; everything else is written as JSON, so that 0, false, [] and null reach the model as they
    are. The data is what a reader of that JSON gets: no tuples, no models, and "NaN" for a float that is not a number.

    Of an image or a file, at any depth, the data tells what it is, and a word in brackets stands for it in the text;
    `encode_with_parts` also returns the images and files.

    Raises:
        ToolError: The value cannot be written as JSON, and the text names its type; or it is too large.
    """
    encoded = encode_with_parts(value)
    return encoded.data, encoded.text


def encode_with_parts(value: Any) -> Encoded:
    """Encode a value like `encode_result`, and return its images and files too.

    Raises:
        ToolError: The value cannot be written as JSON, or something else is among the parts of a `ToolResult`.
    """
    if isinstance(value, ToolResult):
        content: Any = value.content
        if not isinstance(content, str):
            raise ToolError(f"The tool ran, but the content of its ToolResult is not a text: {content!r}")
        if len(content) > BYTES:
            raise too_long()
        inner = encode_with_parts(value.value)
        parts = [*inner.parts, *_check_parts(value.parts)]
        return Encoded(inner.data, add_placeholders(replace_surrogates(content), parts), parts)
    if isinstance(value, str):
        if len(value) > BYTES:
            raise too_long()
        text = replace_surrogates(str.__str__(value))  # An enum that is a string is its value.
        return Encoded(text, text)
    value = gathered(value)
    try:
        if check_size(value):
            return _encode_parts(value)
        encoded = _encode_checked(value)
        return Encoded(from_json(encoded), encoded.decode())
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ToolError(
            f"The tool ran, but what it returned (of type {type(value).__qualname__}) cannot be written as JSON: "
            f"{error}"
        ) from error


def gathered(value: Any) -> Any:
    """Make a list of what can be read only once, with one more value than is allowed; anything else is itself."""
    return list(islice(cast("Iterator[Any]", value), VALUES + 1)) if isinstance(value, Iterator) else value


def _encode_parts(value: Any) -> Encoded:
    """Encode a value with images or files: a part itself, a list that alternates with texts, or any other value."""
    if isinstance(value, ImagePart | FilePart):
        return Encoded(describe_part(value), value.placeholder, [value])
    if isinstance(value, list | tuple) and any(
        isinstance(item, ImagePart | FilePart) for item in cast("Sequence[Any]", value)
    ):
        items = cast("Sequence[Any]", value)
        all_encoded = [encode_with_parts(item.text if isinstance(item, TextPart) else item) for item in items]
        parts = [part for encoded in all_encoded for part in encoded.parts]
        return Encoded([each.data for each in all_encoded], "\n".join(each.text for each in all_encoded), parts)
    extractor = PartExtractor()
    marked = extractor.extract(value)
    _check_part_limits(extractor.found)
    # The encoded value has the bytes of the parts in base64.
    room = BYTES + sum(len(part.data or b"") * 4 // 3 + 4 for part in extractor.found)
    data = from_json(_encode_checked(marked, room))
    text = to_json(extractor.refer(data)).decode()
    return Encoded(extractor.describe(data), add_placeholders(text, extractor.found), extractor.found)


def _check_parts(given: Any) -> Sequence[ImagePart | FilePart]:
    """Return the parts of a `ToolResult` or of a `ToolError`.

    Raises:
        ToolError: Something else is among them.
    """
    # One more than is allowed: a generator may have no end.
    parts: list[Any] = list(islice(given, PARTS + 1))
    for part in parts:
        if not isinstance(part, ImagePart | FilePart):
            raise ToolError(f"The tool ran, but {part!r} among the parts of its result is no image or file.")
    return parts


def parts_with(parts: Sequence[ImagePart | FilePart]) -> dict[str, Any]:
    """Give the images and files of what a tool returned as a field of its event; nothing if there are none.

    Raises:
        ToolError: There are too many, or they are too large.
    """
    if not parts:
        return {}
    _check_part_limits(parts)
    return {"parts": FrozenList([freeze_model(part, "the parts of the result") for part in parts])}


def _check_part_limits(parts: Sequence[ImagePart | FilePart]) -> None:
    if len(parts) > PARTS:
        raise TooLarge(f"The tool ran, but its result has more than {PARTS} images and files. {LESS}")
    if sum(len(part.data or part.url or "") for part in parts) > PART_BYTES:
        raise TooLarge(
            f"The tool ran, but the images and files of its result are larger than {PART_BYTES // 1_000_000} MB. {LESS}"
        )


def failure_fields(error: ToolError, limit: int | None = MAX_RESULT) -> dict[str, Any]:
    """Return the fields of the event of a failed call, with the value and the parts of the error.

    A value or parts that cannot be sent never hide the text of the failure.

    Args:
        error: The failure.
        limit: Characters of the value that the model reads; None for all.
    """
    text = shortened(replace_surrogates(str(error)), MAX_RESULT)
    fields: dict[str, Any] = {"success": False, "error": text}
    content = text
    try:
        value = gathered(error.value)
        parts: Sequence[ImagePart | FilePart] = ()
        if value is not None:
            result, written, parts = encode_with_parts(value)
            fields |= {"result": freeze_json(result, "the value of the failure"), **messages_with(value)}
            if written and not _is_in(written, result, text):
                written = shortened(written, limit)
                content = f"{text}\n{written}" if text else written
        parts = [*parts, *_check_parts(error.parts or ())]
        fields |= parts_with(parts)
        content = add_placeholders(content, parts)
    except Exception as problem:
        # A generator may raise anything.
        content += f"\n[The value or the parts of this failure are left out: {replace_surrogates(str(problem))}]"
    return {**fields, "content": content}


def make_failure(text: str) -> dict[str, Any]:
    """Return the fields of a failed result."""
    text = shortened(replace_surrogates(text), MAX_RESULT)
    return {"success": False, "error": text, "content": text}


def explain_error(error: BaseException) -> str:
    """Return the type and message of an exception, for the model."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def report_unawaited(questions: Sequence[Asked[Any]], name: str, public_name: str) -> str:
    """Log that a tool continued without the answers to its questions, and return the text of its failure.

    Args:
        questions: Questions that were not awaited.
        name: Name of the tool, for the model.
        public_name: Name of the tool, for the log.
    """
    for question in questions:
        question.reported = True
    method = questions[0].method
    log.error("the tool %s did not wait for an answer: write `await %s(...)`", public_name, method)
    return (
        f"{name} asked {questions[0].prompt!r} and did not wait for the answer (`{method}` without `await`), so that "
        "nobody was asked. What it did, it did without an answer."
    )


def _is_in(written: str, value: Any, text: str) -> bool:
    """True if a text already contains a value, possibly in another layout."""
    if written in text:
        return True
    try:
        return from_json(text) == value
    except ValueError:
        return False


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
        made.append(freeze_model(message, "the messages of the ToolResult"))
    return {"messages": FrozenList(made)}


def _encode_checked(value: Any, limit: int = BYTES) -> bytes:
    encoded = _encode(value)
    if len(encoded) > limit:
        raise too_long()
    return encoded


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
        return replace_surrogates(data)
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


def text_of(data: bytes, *, first: bool, whole: bool) -> tuple[int, str] | None:
    """Decode a range of a text that may begin and end inside a character, which is then left out.

    Args:
        data: The range.
        first: It begins where the text begins.
        whole: It ends where the text ends.

    Returns:
        How many bytes are left out at the beginning, and the text; None if it is not text.
    """
    begin = 0
    # A character of UTF-8 has up to three bytes after its first.
    while not first and begin < min(3, len(data)) and data[begin] & 0xC0 == 0x80:
        begin += 1
    for end in range(len(data), max(begin, len(data) - 4) - 1, -1):
        try:
            text = data[begin:end].decode()
        except UnicodeDecodeError:
            if whole:
                break
            continue
        return None if "\0" in text else (begin, text)
    return None
