"""What went wrong at a vendor, as one of our errors: what happened, where, and what to do."""

from __future__ import annotations

import errno
import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC
from http import HTTPStatus
from typing import Any, cast

import orjson

from rxloop.errors import (
    AuthenticationError,
    BadRequest,
    ConfigurationError,
    ContentFiltered,
    ContextLengthExceeded,
    Overloaded,
    PermissionDenied,
    ProviderConnectionError,
    ProviderError,
    ProviderProtocolError,
    ProviderTimeout,
    RateLimited,
    RxloopError,
    ServerError,
    UnknownModel,
)
from rxloop.protocol.storable import readable
from rxloop.providers._documents import check_document
from rxloop.providers._secrets import redacted, secrets_of, shown_address
from rxloop.providers.bounds import DEFAULT_BOUNDS, OutOfBounds


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Whom a request went to, for messages."""

    name: str
    """The provider and the model, such as `zai:glm-4.7`."""
    url: str = field(repr=False)
    key_env: str | None = None
    hint: str = ""
    headers: dict[str, str] = field(default_factory=dict[str, str], repr=False)
    """Those of the request, with the key among them."""

    def __str__(self) -> str:
        return f"{self.name} at {shown_address(self.url)}"

    def clean(self, text: str) -> str:
        """A text of the vendor's, or of a library's, without what is secret in the request: many echo it."""
        return redacted(text, secrets_of(self.url, self.headers))


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


def missing_key(where: Endpoint) -> AuthenticationError:
    """No key was given, and the environment has none."""
    return AuthenticationError(
        f"no API key for {where}: set the environment variable {where.key_env}, or pass api_key="
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
        # OpenRouter: "Provider returned error", and the reason behind it.
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


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds that the vendor asks to wait: from `retry-after-ms` or `retry-after`, a number or a date."""
    milliseconds = _seconds(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after", "")
    seconds = _seconds(value)
    if seconds is not None or not value:
        return seconds
    # Imported where it is needed: hardly any vendor sends a date.
    from email.utils import parsedate_to_datetime

    try:
        date = parsedate_to_datetime(value)
        # Dates in headers are in UTC, also those that do not say so.
        return max(0.0, (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - time.time())
    except (TypeError, ValueError, OverflowError):
        return None


def _seconds(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if number >= 0 and math.isfinite(number) else None


def from_httpx(error: Exception, where: Endpoint) -> RxloopError:
    """The error of a request that got no answer, or only a part of one."""
    import httpx

    if _no_descriptor_left(error):
        return ProviderConnectionError(
            f"no connection to {where}: this process has no file descriptor left; raise its limit (ulimit -n), or let "
            "fewer runs go on at once, as limited(model, concurrent=...) does"
        )
    detail = readable(str(error)) or type(error).__name__
    if isinstance(error, httpx.ConnectTimeout):
        return ProviderTimeout(f"no connection to {where} within the connect timeout. {where.hint}".rstrip())
    if isinstance(error, httpx.TimeoutException):
        return ProviderTimeout(
            f"{where} sent nothing within the idle timeout; a longer one goes in timeout=Timeouts(...)"
        )
    if isinstance(error, httpx.ConnectError):
        return ProviderConnectionError(f"no connection to {where}: {detail}. {where.hint}".rstrip())
    if isinstance(error, httpx.UnsupportedProtocol | httpx.InvalidURL | httpx.LocalProtocolError):
        return ConfigurationError(f"the request to {where} cannot be sent: {detail}")
    if isinstance(error, httpx.RemoteProtocolError) and "too long" in detail:
        return ProviderProtocolError(f"{where} sent a line that is too long for HTTP: {detail}")
    if isinstance(error, httpx.DecodingError):
        return ProviderProtocolError(f"the answer of {where} cannot be decoded: {detail}")
    return ProviderConnectionError(f"the connection to {where} broke: {detail}")


def _no_descriptor_left(error: BaseException | None) -> bool:
    """Whether an error came of having too many files open, however many libraries it went through."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            return True
        if isinstance(error, BaseExceptionGroup):
            parts = cast("BaseExceptionGroup[BaseException]", error).exceptions
            return any(map(_no_descriptor_left, parts))
        error = error.__cause__ or error.__context__
    return False


def cut_short(where: Endpoint) -> ProviderConnectionError:
    """An answer stopped in the middle."""
    return ProviderConnectionError(
        f"the answer of {where} was cut short: the connection ended with neither a finish reason nor [DONE]"
    )


def without_secrets(error: RxloopError, where: Endpoint) -> RxloopError:
    """The error without what is secret in the request: neither in its words nor in what it came from.

    The exceptions of httpx have the whole request on them, headers and all.
    """
    error.args = tuple(where.clean(each) if isinstance(each, str) else each for each in error.args)
    error.__cause__ = None if error.__cause__ is None else _bare(error.__cause__, where)
    error.__context__ = None
    return error


def _bare(cause: BaseException, where: Endpoint) -> BaseException:
    import httpx

    kind = type(cause) if isinstance(cause, httpx.RequestError) else RxloopError
    name = "" if isinstance(cause, httpx.RequestError) else f"{type(cause).__name__}: "
    return kind(where.clean(f"{name}{cause}"))


def out_of_bounds(error: OutOfBounds, where: Endpoint) -> ProviderProtocolError:
    """More came than an answer may be."""
    return ProviderProtocolError(f"{where} sent {error}")


def no_event(where: Endpoint, seconds: float) -> ProviderTimeout:
    """Bytes may have come, but nothing of an answer."""
    return ProviderTimeout(
        f"{where} sent no event for {seconds:g} s, only comments or single bytes, if anything; "
        "more time goes in timeout=Timeouts(event=...)"
    )


def out_of_time(where: Endpoint, seconds: float) -> ProviderTimeout:
    """The call took longer than it may take in all."""
    return ProviderTimeout(
        f"{where} did not finish within {seconds:g} s; more time goes in timeout=Timeouts(total=...)"
    )
