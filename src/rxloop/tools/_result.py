"""What a tool returned, as JSON for the stream and as text for the model."""

from __future__ import annotations

from typing import Any, cast

from pydantic_core import PydanticSerializationError, from_json, to_json, to_jsonable_python

from rxloop.errors import ToolError


def encode_result(value: Any) -> tuple[Any, str]:
    """The value as JSON data, and the text that the model reads.

    A string is its own text; everything else is written as JSON, so that 0, false, [] and null reach the model as what
    they are. The data is what a reader of that JSON gets: no tuples, no models, "NaN" for a float that is none.

    Raises:
        ToolError: The value cannot be written as JSON; the text names its type.
    """
    if isinstance(value, str):
        text = readable(str.__str__(value))  # An enum that is a string is its value.
        return text, text
    try:
        encoded = _encode(value)
        return from_json(encoded), encoded.decode()
    except (ValueError, TypeError, RecursionError) as error:
        raise ToolError(
            f"The tool ran, but what it returned (of type {type(value).__qualname__}) cannot be written as JSON: "
            f"{error}"
        ) from error


def readable(text: str) -> str:
    """The text without lone surrogates (a file name that is no UTF-8 has them), which no request can carry."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


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
