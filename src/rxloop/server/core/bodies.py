"""Bodies and queries of requests, read within the limits of the adapter."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from rxloop.server.core.account import DEFAULT_VALUES, ServerLimits
from rxloop.server.core.errors import Refused, make_invalid_data_error
from rxloop.support.json_limits import find_excess

M = TypeVar("M", bound=BaseModel)

JSON = "application/json"

_FIRST_CHECK = 2**16
"""Number of received bytes at which an incomplete body is checked first. Each next check doubles this number."""

MAX_DEPTH = 64
"""Maximum nesting depth of JSON from clients. Protobuf and pydantic fail above 100 levels, and events add levels."""

SDK_VALUES = 5_000
"""Maximum number of JSON values in bodies that the SDK of a protocol validates, in up to ten microseconds per value."""


class NestedTooDeeply(Refused):
    """Raised for JSON that is nested too deeply. A2A answers it like invalid JSON."""


def parse_body(model: type[M], data: bytes, request: Request, limits: ServerLimits) -> M:
    """Parse and validate the JSON body of a request.

    Raises:
        Refused: If the body is not JSON, too complex, or invalid.
    """
    if data and get_media_type(request) != JSON:
        raise Refused(415, "media_type", "the content-type of the body must be application/json")
    return parse_json(model, data or b"{}", "body", limits)


def parse_json(model: type[M], data: bytes | str, subject: str, limits: ServerLimits | None = None) -> M:
    """Parse and validate JSON sent by a client.

    Args:
        model: Pydantic model of the data.
        data: JSON to parse.
        subject: Name of the data in error messages, such as `body`.
        limits: Limits of the adapter. The default is `ServerLimits()`.

    Raises:
        Refused: If the data is too large, not valid JSON, or does not match the model.
    """
    check_json(data, subject, limits or ServerLimits())
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        raise make_invalid_data_error(error, subject) from None


def check_json(
    data: bytes | str, subject: str, limits: ServerLimits, depth: int = MAX_DEPTH, values: int | None = None
) -> None:
    """Check the number of values and the nesting depth of JSON before parsing, because parsing blocks the event loop.

    Args:
        data: JSON to check. Invalid JSON may pass, because the parser rejects it.
        subject: Name of the data in error messages.
        limits: Limits of the adapter.
        depth: Maximum nesting depth.
        values: Maximum number of values, if it is less than that of the adapter.

    Raises:
        Refused: If the data has too many values, or is nested too deeply.
    """
    values = min(limits.values, values or limits.values)
    excess = find_excess(_encode(data), values=values, depth=depth)
    if excess == "values":
        raise Refused(413, "too_large", f"the {subject} must have at most {values} JSON values")
    if excess == "depth":
        raise NestedTooDeeply(400, "bad_request", f"the {subject} must have at most {depth} nested JSON levels")


def parse_text(text: str) -> Any:
    """Return the JSON value of a text, or the text itself if it is not JSON or exceeds the limits of `check_json`."""
    with suppress(orjson.JSONDecodeError):
        if find_excess(_encode(text), values=DEFAULT_VALUES, depth=MAX_DEPTH) is None:
            return orjson.loads(text)
    return text


def get_media_type(request: Request) -> str:
    """Return the media type of the body without parameters, or an empty string."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _encode(data: bytes | str) -> bytes:
    return data if isinstance(data, bytes) else data.encode(errors="surrogatepass")


async def read_bytes(
    request: Request, limits: ServerLimits, *, pace: Callable[[int], Awaitable[None]] | None = None
) -> bytes:
    """Read a raw body.

    The size limit applies to the bytes received, not to the `content-length` header. JSON with too many values is
    refused without storing the rest of the body. The rest is read, so that the client receives the response.

    Args:
        request: Request with the body.
        limits: Limits of the adapter.
        pace: Called with the size of each received part; waits before the next part is read.

    Raises:
        Refused: If the body is too large, too complex or too slow.
    """
    data = bytearray()
    size, next_check = 0, _FIRST_CHECK if get_media_type(request).endswith("json") else limits.body
    refused: Refused | None = None
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for chunk in request.stream():
                size += len(chunk)
                if pace is not None:
                    await pace(len(chunk))
                if size > limits.body:
                    raise Refused(413, "too_large", f"the body must have at most {limits.body} bytes", headers=_CLOSE)
                if refused is not None:
                    continue
                data += chunk
                if size >= next_check:
                    next_check = 2 * size
                    try:
                        check_json(bytes(data), "body", limits)
                    except Refused as error:
                        refused = error
    except TimeoutError:
        raise Refused(408, "too_slow", f"the body took longer than {limits.body_seconds:g} s", headers=_CLOSE) from None
    except ClientDisconnect:
        raise Refused(400, "bad_request", "the client disconnected while sending the body", headers=_CLOSE) from None
    if refused is not None:
        raise refused
    return bytes(data)


_CLOSE = {"connection": "close"}
"""Close the connection instead of reading the rest of the body."""


def read_query(model: type[M], request: Request) -> M:
    """Parse and validate the query string of a request.

    Raises:
        Refused: If a field is invalid or unknown.
    """
    try:
        return model.model_validate(dict(request.query_params))
    except ValidationError as error:
        raise make_invalid_data_error(error, "query") from None
