"""Conversion of the error responses of all vendors to provider errors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any, cast

import orjson

from rxloop.errors import (
    AuthenticationError,
    BadRequest,
    ContentFiltered,
    ContextLengthExceeded,
    MediaRefused,
    Overloaded,
    PermissionDenied,
    ProviderError,
    ProviderProtocolError,
    ProviderTimeout,
    RateLimited,
    ServerError,
    UnknownModel,
)
from rxloop.protocol.json_data import replace_surrogates
from rxloop.providers.bounds import DEFAULT_BOUNDS, OutOfBounds, check_document
from rxloop.providers.failures import Endpoint, MalformedCall, find_retry_delay

_READ = 20_000
"""Maximum searched message length in characters."""

_MAX_QUOTED_CHARS = 1000

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

# Lower-case error names that are more specific than the status.
_BY_NAME: dict[str, type[ProviderError]] = {
    # OpenAI and compatible vendors
    "access_terminated": PermissionDenied,
    "billing_hard_limit_reached": PermissionDenied,
    "billing_not_active": PermissionDenied,
    "content_filter": ContentFiltered,
    "content_policy_violation": ContentFiltered,
    "context_length_exceeded": ContextLengthExceeded,
    "context_window_exceeded": ContextLengthExceeded,
    "contextwindowexceedederror": ContextLengthExceeded,
    "exceed_context_size_error": ContextLengthExceeded,
    "tokens_limit_reached": ContextLengthExceeded,
    "deploymentnotfound": UnknownModel,
    "insufficient_quota": PermissionDenied,
    "invalid_api_key": AuthenticationError,
    "model_not_found": UnknownModel,
    "rate_limit_exceeded": RateLimited,
    # Anthropic
    "authentication_error": AuthenticationError,
    "billing_error": PermissionDenied,
    "not_found_error": UnknownModel,
    "overloaded_error": Overloaded,
    "permission_error": PermissionDenied,
    "rate_limit_error": RateLimited,
    "request_too_large": ContextLengthExceeded,
    "timeout_error": ProviderTimeout,
    # Google
    "access_token_expired": AuthenticationError,
    "api_key_invalid": AuthenticationError,
    "billing_disabled": PermissionDenied,
    "credentials_missing": AuthenticationError,
    "deadline_exceeded": ProviderTimeout,
    "not_found": UnknownModel,
    "permission_denied": PermissionDenied,
    "resource_exhausted": RateLimited,
    "unauthenticated": AuthenticationError,
    "unavailable": Overloaded,
    # AWS
    "accessdeniedexception": PermissionDenied,
    "expiredtokenexception": AuthenticationError,
    "incompletesignature": AuthenticationError,
    "invalidclienttokenid": AuthenticationError,
    "invalidsignatureexception": AuthenticationError,
    "missingauthenticationtokenexception": AuthenticationError,
    "modelerrorexception": ServerError,
    "modelnotreadyexception": Overloaded,
    "modelstreamerrorexception": ServerError,
    "modeltimeoutexception": ProviderTimeout,
    "resourcenotfoundexception": UnknownModel,
    "servicequotaexceededexception": RateLimited,
    "serviceunavailableexception": Overloaded,
    "throttlingexception": RateLimited,
    "unrecognizedclientexception": AuthenticationError,
    # z.ai
    "1113": PermissionDenied,
    "1211": UnknownModel,
    "1261": ContextLengthExceeded,
    "1301": ContentFiltered,
    "1302": RateLimited,
    "1303": RateLimited,
    "1305": Overloaded,
}

# Generic error names, used as a last resort.
_BY_GENERAL_CODE: dict[str, type[ProviderError]] = {
    "api_error": ServerError,
    "failed_precondition": BadRequest,
    "internal": ServerError,
    "internalserverexception": ServerError,
    "invalid_argument": BadRequest,
    "invalid_prompt": BadRequest,
    "invalid_request_error": BadRequest,
    "server_error": ServerError,
    "validationexception": BadRequest,
}

_WORDS: tuple[tuple[re.Pattern[str], type[ProviderError]], ...] = (
    (
        re.compile(
            r"content (filter(ing)?|management) policy|flagged as potentially violating",
            re.IGNORECASE,
        ),
        ContentFiltered,
    ),
    (re.compile(r"credit balance is too low", re.IGNORECASE), PermissionDenied),
    (re.compile(r"api key (not valid|not found|expired)", re.IGNORECASE), AuthenticationError),
    (re.compile(r"model identifier is invalid", re.IGNORECASE), UnknownModel),
)

# Errors embedded by gateways, as JSON or Python literals.
_NESTED_OVERFLOW = re.compile(
    r"""\\*["'](?:code|type)\\*["']\s*:\s*\\*["'](?:context_length_exceeded|exceed_context_size_error|1261)\b"""
)

_CLEAR_STATUSES = frozenset((401, 402, 403, 404, 408, 429))
"""Statuses that override rate limit messages."""

TOOL_USE_FAILED = "tool_use_failed"
"""Groq's error code for unparsable tool calls."""

_MALFORMED = re.compile(rf"{TOOL_USE_FAILED}|output_parse_failed|Failed to call a function\b")
"""Groq's codes and messages for unparsable output. Some gateways drop the code."""

_REQUEST_IDS = ("request-id", "x-request-id", "x-amzn-requestid", "apim-request-id")

_REQUEST_ID = re.compile(r"[\w.:/+=-]{1,128}", re.ASCII)


def error_from_response(status: int, headers: Mapping[str, str], body: bytes, endpoint: Endpoint) -> ProviderError:
    """Return the error for a response with an HTTP error status."""
    if 300 <= status < 400:
        target = replace_surrogates(headers.get("location", "another address"))
        return ProviderProtocolError(f"{endpoint} redirects to {target}; use that URL as base_url", status=status)
    try:
        check_document(body, DEFAULT_BOUNDS)
        content: Any = orjson.loads(body)
    except (orjson.JSONDecodeError, OutOfBounds):
        content = body.decode("utf-8", "replace")
    return _error(content, status, headers, endpoint)


def from_error_object(error: Any, endpoint: Endpoint) -> ProviderError:
    """Return an error reported inside a successful response."""
    return _error(error, None, {}, endpoint)


def name_request(error: ProviderError, headers: Mapping[str, str]) -> None:
    """Add the request id from the response headers to an error that has none."""
    if error.request_id is None and (request_id := _request_id(headers, None)):
        error.request_id = request_id
        error.args = (f"{error.args[0]} (request {request_id})", *error.args[1:])


def _error(content: Any, status: int | None, headers: Mapping[str, str], endpoint: Endpoint) -> ProviderError:
    # Compiling the patterns takes 10 ms, which programs without failures save.
    from rxloop.providers import error_messages

    error = _unwrap_error(content)
    fields = cast("dict[str, Any]", error) if isinstance(error, dict) else {"message": error}
    names = [*_names(fields), *_aws_name(headers)]
    if status is None:
        status = next(
            (n for name in ("status_code", "status", "code") if 400 <= (n := _number(fields.get(name))) < 600), None
        )
    message = _message(fields)

    def make(kind: type[ProviderError]) -> ProviderError:
        text = f"{endpoint} answered {_status(status)}: {_shorten(endpoint.clean(message))}"
        if kind is AuthenticationError and endpoint.key_env:
            text += f" (the key comes from {endpoint.key_env} or api_key=)"
        elif kind is UnknownModel:
            text += " (check the model's name and the address)"
        request_id = _request_id(headers, content) or _request_id({}, fields)
        if request_id:
            text += f" (request {request_id})"
        wait = find_retry_delay(headers, fields, message, limited=kind is RateLimited)
        if wait:
            text += f" (retry after {round(wait, 1) or wait:g} s)"
        return kind(text, status=status, retry_after=wait, request_id=request_id)

    refuses_media = error_messages.is_media_refusal(status, names, message, fields.get("param"))
    kind = PermissionDenied if _is_spent(fields) else _kind(status, names, message, refuses_media)
    failure = make(kind)
    if isinstance(failure, MalformedCall):
        failure.reason = _shorten(endpoint.clean(message))
    elif isinstance(failure, MediaRefused):
        error_messages.locate(failure, message, fields.get("param"))
        failure.otherwise = make(_kind(status, names, message, refuses_media=False))
    return failure


def _unwrap_error(content: Any) -> Any:
    """Unwrap nested error objects."""
    for _ in range(5):
        if isinstance(content, list) and content:
            content = cast("list[Any]", content)[0]
        elif isinstance(content, dict):
            fields = cast("dict[str, Any]", content)
            inner = fields.get("error") or fields.get("errors")
            if not inner and fields.get("type") == "response.failed":
                inner = fields.get("response")
            # Strings and lists add nothing to an existing message.
            if not isinstance(inner, str | dict | list) or (not isinstance(inner, dict) and fields.get("message")):
                break
            content = cast("Any", inner)
        else:
            break
    return cast("Any", content)


def _names(fields: dict[str, Any]) -> Iterator[str]:
    """Yield error names, most specific first."""
    for name in ("code", "type", "status", "__type"):
        value = fields.get(name)
        if isinstance(value, str | int):
            yield str(value).rpartition("#")[2].lower()
    for detail in _objects(fields.get("details")):
        if isinstance(reason := detail.get("reason"), str):
            yield reason.lower()


def _aws_name(headers: Mapping[str, str]) -> Iterator[str]:
    if name := headers.get("x-amzn-errortype"):
        yield name.partition(":")[0].lower()


def _is_spent(fields: dict[str, Any]) -> bool:
    """Return True if a daily quota of Google is exhausted, which has the same status as too many requests."""
    return any(
        "PerDay" in str(violation.get("quotaId"))
        for detail in _objects(fields.get("details"))
        for violation in _objects(detail.get("violations"))
    )


def _kind(status: int | None, names: list[str], message: str, refuses_media: bool) -> type[ProviderError]:
    from rxloop.providers import error_messages

    if any(map(_MALFORMED.search, (*names, message))):
        return MalformedCall
    exact = next((_BY_NAME[name] for name in names if name in _BY_NAME), None)
    if exact is ContextLengthExceeded:
        return exact
    if refuses_media and exact in (None, BadRequest, ContentFiltered, ServerError):
        return MediaRefused
    is_limited = status not in _CLEAR_STATUSES and error_messages.is_rate_limit(message)
    if status == 413:
        return RateLimited if is_limited else ContextLengthExceeded
    if exact is not None and exact is not ServerError:
        return exact
    if _NESTED_OVERFLOW.search(message):
        return ContextLengthExceeded
    if is_limited:
        return RateLimited
    if status != 429:
        if error_messages.is_context_overflow(message):
            return ContextLengthExceeded
        known = next((kind for words, kind in _WORDS if words.search(message)), None)
        if known is not None:
            return known
    if exact is not None:
        return exact
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if status is not None:
        return BadRequest if status < 500 else ServerError
    return next((_BY_GENERAL_CODE[name] for name in names if name in _BY_GENERAL_CODE), ServerError)


def _message(fields: dict[str, Any]) -> str:
    """Return the vendor's message from any of the known fields."""
    for name in ("message", "msg", "Message", "detail", "error_description"):
        value = fields.get(name)
        if value:
            text = value if isinstance(value, str) else _written(value)
            break
    else:
        text = _written(fields) if any(fields.values()) else "no explanation"
    metadata = fields.get("metadata")
    if isinstance(metadata, dict):
        # OpenRouter puts the reason here, and "Provider returned error" into the message.
        raw = cast("dict[str, Any]", metadata).get("raw")
        if raw:
            text = f"{text}: {_decode_escapes(raw) if isinstance(raw, str) else _written(raw)}"
    if generation := fields.get("failed_generation"):
        text = f"{text}: {generation if isinstance(generation, str) else _written(generation)}"
    return " ".join(replace_surrogates(text[:_READ]).split())


def _decode_escapes(raw: str) -> str:
    """Return the string, with escapes decoded if it is JSON."""
    if not raw.startswith(("{", "[")):
        return raw
    try:
        return orjson.dumps(orjson.loads(raw)).decode()
    except (orjson.JSONDecodeError, TypeError):
        return raw


def _written(value: Any) -> str:
    """Encode a value as JSON, including values that only the lenient parser accepts."""
    try:
        return orjson.dumps(value, default=str).decode()
    except TypeError:
        return json.dumps(value, default=str)


def _request_id(headers: Mapping[str, str], body: Any) -> str | None:
    """Return the vendor's request id from the headers or the body."""
    if isinstance(body, list) and body:
        body = cast("list[Any]", body)[0]
    request_id = cast("dict[str, Any]", body).get("request_id") if isinstance(body, dict) else None
    for value in (*(headers.get(name) for name in _REQUEST_IDS), request_id):
        if isinstance(value, str) and _REQUEST_ID.fullmatch(value):
            return value
    return None


def _objects(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        return []
    return [cast("dict[str, Any]", item) for item in cast("list[Any]", value) if isinstance(item, dict)]


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_QUOTED_CHARS else text[:_MAX_QUOTED_CHARS] + "..."


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
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10 else 0
