"""What an endpoint says of a failure, as one of our errors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, cast

import orjson

from rxloop.errors import (
    AuthenticationError,
    BadRequest,
    ContentFiltered,
    ContextLengthExceeded,
    Overloaded,
    PermissionDenied,
    ProviderError,
    ProviderProtocolError,
    ProviderTimeout,
    RateLimited,
    ServerError,
    UnknownModel,
)
from rxloop.protocol.storable import readable
from rxloop.providers._documents import check_document
from rxloop.providers._errors import Endpoint, retry_after
from rxloop.providers.bounds import DEFAULT_BOUNDS, OutOfBounds

_BY_STATUS: dict[int, type[ProviderError]] = {
    401: AuthenticationError,
    402: PermissionDenied,
    403: PermissionDenied,
    404: UnknownModel,
    408: ProviderTimeout,
    429: RateLimited,
    503: Overloaded,
    529: Overloaded,
}
# The vendors' own codes and types, where they say more than the HTTP status. The numbers are z.ai's.
_BY_CODE: dict[str, type[ProviderError]] = {
    "1113": PermissionDenied,
    "1211": UnknownModel,
    "1261": ContextLengthExceeded,
    "1301": ContentFiltered,
    "1302": RateLimited,
    "1303": RateLimited,
    "1305": Overloaded,
    "authentication_error": AuthenticationError,
    "content_filter": ContentFiltered,
    "content_policy_violation": ContentFiltered,
    "context_length_exceeded": ContextLengthExceeded,
    "insufficient_quota": PermissionDenied,
    "invalid_api_key": AuthenticationError,
    "invalid_request_error": BadRequest,
    "model_not_found": UnknownModel,
    "overloaded_error": Overloaded,
    "permission_error": PermissionDenied,
    "rate_limit_error": RateLimited,
    "rate_limit_exceeded": RateLimited,
    "server_error": ServerError,
}
_GENERAL = ("invalid_request_error", "server_error")
_TOO_LONG = re.compile(
    r"context[ _-]?(length|window|size)|maximum context|max(imum)? (input|prompt) length|prompt is too long"
    r"|input is too long|(prompt|input|request) (has|contains) too many tokens|too many input tokens"
    r"|reduce the length of",
    re.IGNORECASE,
)


def from_response(status: int, headers: Mapping[str, str], body: bytes, where: Endpoint) -> ProviderError:
    """The error of an answer whose HTTP status is none of success."""
    if 300 <= status < 400:
        target = readable(headers.get("location", "another address"))
        return ProviderProtocolError(f"{where} redirects to {target}: use that address as base_url", status=status)
    try:
        check_document(body, DEFAULT_BOUNDS)
        found: Any = orjson.loads(body)
    except (orjson.JSONDecodeError, OutOfBounds):
        found = body.decode("utf-8", "replace")
    return _error(_unwrapped(found), status, where, retry_after(headers))


def from_error_object(error: Any, where: Endpoint) -> ProviderError:
    """The error that a vendor reports inside an answer that began as a success."""
    return _error(_unwrapped(error), None, where, None)


def _unwrapped(found: Any) -> Any:
    """What a vendor says of a failure, taken out of the lists and the objects that it comes in."""
    for _ in range(4):
        if isinstance(found, list) and found:
            found = cast("list[Any]", found)[0]
        elif isinstance(found, dict):
            fields = cast("dict[str, Any]", found)
            inner = fields.get("error") or fields.get("errors")
            if not isinstance(inner, str | dict | list) or (isinstance(inner, str) and fields.get("message")):
                break
            found = cast("Any", inner)
        else:
            break
    return cast("Any", found)


def _error(error: Any, status: int | None, where: Endpoint, wait: float | None) -> ProviderError:
    fields = cast("dict[str, Any]", error) if isinstance(error, dict) else {"message": error}
    names = [str(fields[name]) for name in ("code", "type") if isinstance(fields.get(name), str | int)]
    if status is None:
        status = next(
            (n for name in ("status_code", "status", "code") if 400 <= (n := _number(fields.get(name))) < 600), None
        )
    message = _message(fields)
    kind = _kind(status, names, message)
    text = f"{where} answered {_status(status)}: {_short(where.clean(message))}"
    if kind is AuthenticationError and where.key_env:
        text += f" (the key comes from {where.key_env} or api_key=)"
    elif kind is UnknownModel:
        text += " (check the model's name and the address)"
    return kind(text, status=status, retry_after=wait)


def _kind(status: int | None, names: list[str], message: str) -> type[ProviderError]:
    exact = next((_BY_CODE[name] for name in names if name in _BY_CODE and name not in _GENERAL), None)
    if exact is not None:
        return exact
    if status != 429 and _TOO_LONG.search(message):
        return ContextLengthExceeded
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if status is not None:
        return BadRequest if status < 500 else ServerError
    return next((_BY_CODE[name] for name in names if name in _BY_CODE), ServerError)


def _message(fields: dict[str, Any]) -> str:
    """The vendor's words, wherever it puts them."""
    for name in ("message", "msg", "detail", "error_description"):
        value = fields.get(name)
        if value:
            text = value if isinstance(value, str) else orjson.dumps(value, default=str).decode()
            break
    else:
        text = orjson.dumps(fields, default=str).decode() if any(fields.values()) else "no explanation"
    metadata = fields.get("metadata")
    if isinstance(metadata, dict):
        # OpenRouter: "Provider returned error", and the reason after it.
        raw = cast("dict[str, Any]", metadata).get("raw")
        if isinstance(raw, str) and raw:
            text = f"{text}: {raw}"
    return " ".join(text.split())


def _short(text: str) -> str:
    return text if len(text) <= 1000 else text[:1000] + "..."


def _status(status: int | None) -> str:
    if status is None:
        return "with an error"
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _number(value: Any) -> int:
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else 0
