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
from rxloop.support.foreign_errors import get_message
from rxloop.tools.result_parts import (
    ADVICE,
    MAX_BYTES,
    MAX_PART_BYTES,
    MAX_PARTS,
    MAX_VALUES,
    PartExtractor,
    TooLarge,
    check_size,
    describe_part,
    make_size_error,
)

if TYPE_CHECKING:
    from rxloop.pipeline.ask import Question

log = logging.getLogger("rxloop")

MAX_RESULT_CHARS = 100_000
"""Default maximum result length for models, in characters."""

_MAX_CODE = 64
"""Maximum length of the code of a failure."""

_OMISSION = "\n[... {n} characters of this result are left out here: {hint} ...]\n"

_DEFAULT_HINT = "ask for less at once, or for a part of it"


@dataclass(frozen=True, slots=True)
class ToolResult:
    """Result with a value for programs and a separate text for the model."""

    value: Any
    """Value for subscribers and the log. Published as JSON."""
    content: str
    """Text for the model."""
    messages: Sequence[str | Message] = ()
    """System messages for the model, added after all results from the same message."""
    parts: Sequence[ImagePart | FilePart] = ()
    """Images and files for the model. Sent after the text, if the provider supports them."""


class Encoded(NamedTuple):
    """An encoded result of a tool."""

    data: Any
    """Value as JSON data."""
    text: str
    """Text for the model."""
    parts: Sequence[ImagePart | FilePart] = ()
    """Images and files."""


def encode_result(value: Any) -> tuple[Any, str]:
    """Encode a value as JSON data, and as text for the model.

    The text of a `ToolResult` is its content. Strings are used as they are. Other values are formatted as JSON, so that
    the model can distinguish 0, false, [] and null. In the data, tuples are lists, models are dicts, and NaN is the
    string "NaN".

    Images and files at any depth are described in the data and replaced by placeholders in the text. Use
    `encode_with_parts` to get them as well.

    Raises:
        ToolError: The value is too large, or cannot be converted to JSON.
    """
    encoded = encode_with_parts(value)
    return encoded.data, encoded.text


def encode_with_parts(value: Any) -> Encoded:
    """Encode a value along with its images and files.

    See `encode_result` for the data and text formats.

    Raises:
        ToolError: Unsupported value, exceeded size limit or invalid `ToolResult` parts.
    """
    if isinstance(value, ToolResult):
        content: Any = value.content
        if not isinstance(content, str):
            raise ToolError(f"The tool ran, but the content of its ToolResult is not a string: {content!r}")
        if len(content) > MAX_BYTES:
            raise make_size_error()
        inner = encode_with_parts(value.value)
        parts = [*inner.parts, *_check_parts(value.parts)]
        return Encoded(inner.data, add_placeholders(replace_surrogates(content), parts), parts)
    if isinstance(value, str):
        if len(value) > MAX_BYTES:
            raise make_size_error()
        text = replace_surrogates(str.__str__(value))  # A string enum is converted to its value.
        return Encoded(text, text)
    value = collect_iterator(value)
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


def collect_iterator(value: Any) -> Any:
    """Convert an iterator to a list of at most one value more than allowed. Return any other value unchanged."""
    return list(islice(cast("Iterator[Any]", value), MAX_VALUES + 1)) if isinstance(value, Iterator) else value


def _encode_parts(value: Any) -> Encoded:
    """Encode a value with images or files. List items are encoded one by one to keep the order of strings and parts."""
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
    _check_part_limits(extractor.parts)
    # The encoded value contains the bytes of the parts in base64.
    limit = MAX_BYTES + sum(len(part.data or b"") * 4 // 3 + 4 for part in extractor.parts)
    data = from_json(_encode_checked(marked, limit))
    text = to_json(extractor.refer(data)).decode()
    return Encoded(extractor.describe(data), add_placeholders(text, extractor.parts), extractor.parts)


def _check_parts(value: Any) -> Sequence[ImagePart | FilePart]:
    """List the parts of a `ToolResult` or `ToolError`.

    Raises:
        ToolError: An item is neither an image nor a file.
    """
    # Read one extra part to detect excess items, because generators may be infinite.
    parts: list[Any] = list(islice(value, MAX_PARTS + 1))
    for part in parts:
        if not isinstance(part, ImagePart | FilePart):
            raise ToolError(f"The tool ran, but {part!r} among the parts of its result is not an image or a file.")
    return parts


def make_parts_field(parts: Sequence[ImagePart | FilePart]) -> dict[str, Any]:
    """Create the event field for result images and files. Empty if there are no parts.

    Raises:
        ToolError: Too many or oversized parts.
    """
    if not parts:
        return {}
    _check_part_limits(parts)
    return {"parts": FrozenList([freeze_model(part, "the parts of the result") for part in parts])}


def _check_part_limits(parts: Sequence[ImagePart | FilePart]) -> None:
    if len(parts) > MAX_PARTS:
        raise TooLarge(f"The tool ran, but its result has more than {MAX_PARTS} images and files. {ADVICE}")
    if sum(len(part.data or part.url or "") for part in parts) > MAX_PART_BYTES:
        raise TooLarge(
            f"The tool ran, but the images and files of its result are larger than "
            f"{MAX_PART_BYTES // 1_000_000} MB. {ADVICE}"
        )


def _get_code(error: ToolError) -> str:
    # Subclasses of a program may use the name for another value, such as a number.
    code = cast("object", error.code)
    return replace_surrogates(code)[:_MAX_CODE] if isinstance(code, str) and code else "error"


def failure_fields(error: ToolError, limit: int | None = MAX_RESULT_CHARS) -> dict[str, Any]:
    """Return the event fields of a failed call, with the value and the parts of the error.

    If the value or the parts cannot be encoded, the text of the failure is still returned.

    Args:
        error: The failure.
        limit: Maximum number of characters of the value that the model reads. None for no limit.
    """
    text = truncate_text(replace_surrogates(str(error)), MAX_RESULT_CHARS)
    fields: dict[str, Any] = {"success": False, "error": text, "code": _get_code(error)}
    content = text
    try:
        value = error.value
        parts: Sequence[ImagePart | FilePart] = ()
        if value is not None:
            result, encoded_value, parts = encode_with_parts(value)
            fields |= {"result": freeze_json(result, "the value of the failure"), **make_messages_field(value)}
            if encoded_value and not _contains(encoded_value, result, text):
                encoded_value = truncate_text(encoded_value, limit)
                content = f"{text}\n{encoded_value}" if text else encoded_value
        parts = [*parts, *_check_parts(error.parts or ())]
        fields |= make_parts_field(parts)
        content = add_placeholders(content, parts)
    except Exception as problem:
        # Custom generators may raise arbitrary exceptions.
        content += f"\n[The value or the parts of this failure are left out: {replace_surrogates(str(problem))}]"
    return {**fields, "content": content}


def make_failure(text: str, code: str = "error") -> dict[str, Any]:
    """Create event fields for a failed result."""
    text = truncate_text(replace_surrogates(text), MAX_RESULT_CHARS)
    return {"success": False, "error": text, "code": code, "content": text}


def explain_error(error: BaseException) -> str:
    """Return the type and message of an exception, for the model."""
    message = get_message(error)
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def report_unawaited(questions: Sequence[Question[Any]], name: str, public_name: str) -> str:
    """Log unawaited questions and return the failure text.

    Args:
        questions: Unawaited questions.
        name: Tool name for the model.
        public_name: Tool name for the log.
    """
    for question in questions:
        question.reported = True
    method = questions[0].method
    log.error("Tool %s did not await an answer; use `await %s(...)`", public_name, method)
    return (
        f"{name} asked {questions[0].prompt!r} and did not wait for the answer (`{method}` without `await`), so that "
        "the question was not asked. The tool continued without an answer."
    )


def _contains(encoded_value: str, value: Any, text: str) -> bool:
    """Return True if the string contains a value, possibly with different formatting."""
    if encoded_value in text:
        return True
    try:
        return from_json(text) == value
    except ValueError:
        return False


def make_messages_field(value: Any) -> dict[str, Any]:
    """Create the event field for `ToolResult` messages. Empty if there are no messages.

    Raises:
        ToolError: Invalid message type or exceeded size limit.
    """
    if not isinstance(value, ToolResult) or not value.messages:
        return {}
    messages: Any = value.messages
    frozen: list[Message] = []
    size = 0
    for each in [messages] if isinstance(messages, str) else messages:
        message = Message.system(each) if isinstance(each, str) else each
        if not isinstance(message, Message) or message.role != "system":
            raise ToolError(f"The tool ran, but {each!r} among the messages of its ToolResult is not a system message.")
        # Count empty messages as well, because generators may be infinite.
        size += max(1, len(message.text))
        if size > MAX_RESULT_CHARS:
            words = f"The tool ran, but the messages of its ToolResult are longer than {MAX_RESULT_CHARS:,} characters."
            raise ToolError(words)
        frozen.append(freeze_model(message, "the messages of the ToolResult"))
    return {"messages": FrozenList(frozen)}


def _encode_checked(value: Any, limit: int = MAX_BYTES) -> bytes:
    encoded = _encode(value)
    if len(encoded) > limit:
        raise make_size_error()
    return encoded


def _encode(value: Any) -> bytes:
    try:
        return to_json(value, inf_nan_mode="strings")
    except PydanticSerializationError as error:
        if "UnicodeEncodeError" not in str(error):
            raise
        # Two passes: invalid keys must be replaced before the conversion, and strings inside models after it.
        return to_json(_readable_parts(to_jsonable_python(_readable_parts(value))), inf_nan_mode="strings")


def _readable_parts(data: Any) -> Any:
    if isinstance(data, str):
        return replace_surrogates(data)
    if isinstance(data, list):
        return [_readable_parts(part) for part in cast("list[Any]", data)]
    if isinstance(data, dict):
        return {_readable_parts(key): _readable_parts(part) for key, part in cast("dict[Any, Any]", data).items()}
    return data


def truncate_text(text: str, limit: int | None, hint: str | None = None) -> str:
    """Truncate the middle of a string and insert a note with the number of removed characters.

    Args:
        text: Text of a result.
        limit: Maximum number of characters to keep. None for no limit.
        hint: Hint in the note on how to read the full text. By default the note asks for a smaller result.
    """
    if limit is None or len(text) <= limit:
        return text
    front = limit * 2 // 3
    back = limit - front
    return (
        f"{text[:front]}{_OMISSION.format(n=len(text) - limit, hint=hint or _DEFAULT_HINT)}{text[len(text) - back :]}"
    )


def decode_range(data: bytes, *, first: bool, last: bool) -> tuple[int, str] | None:
    """Decode a range of a UTF-8 text. Incomplete characters at both ends are dropped.

    Args:
        data: Bytes of the range.
        first: True if the range starts at the start of the text.
        last: True if the range ends at the end of the text.

    Returns:
        Number of bytes dropped at the start, and the decoded text. None if the data is not text.
    """
    begin = 0
    # UTF-8 characters have up to three continuation bytes.
    while not first and begin < min(3, len(data)) and data[begin] & 0xC0 == 0x80:
        begin += 1
    for end in range(len(data), max(begin, len(data) - 4) - 1, -1):
        try:
            text = data[begin:end].decode()
        except UnicodeDecodeError:
            if last:
                break
            continue
        return None if "\0" in text else (begin, text)
    return None
