"""Conversion of transport failures to provider errors, and the retry delays that vendors request."""

from __future__ import annotations

import errno
import math
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, cast
from urllib.parse import urlsplit

from rxloop.errors import (
    AuthenticationError,
    BadRequest,
    ConfigurationError,
    ProviderConnectionError,
    ProviderProtocolError,
    ProviderTimeout,
    RxloopError,
)
from rxloop.protocol.json_data import replace_surrogates
from rxloop.providers.bounds import Unreadable
from rxloop.support.http_environment import format_tls_variables
from rxloop.support.redaction import display_url, find_secrets, redact_secrets

_NO_HEADER = re.compile(r"[^\t\x20-\x7e]")


class MalformedCall(BadRequest):
    """The vendor could not parse a tool call.

    Handled internally: the message ends without calls, so the loop can call the model again.

    Attributes:
        reason: Error message including the original call.
    """

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Request endpoint, used in error messages."""

    name: str
    """Model string, for example `zai:glm-4.7`."""
    url: str = field(repr=False)
    key_env: str | None = None
    hint: str = ""
    headers: dict[str, str] = field(default_factory=dict[str, str], repr=False)
    """Headers of the request, including the key."""
    key_hint: str = ""
    """Alternative to setting a key."""

    def __str__(self) -> str:
        return f"{self.name} at {display_url(self.url)}"

    def clean(self, text: str) -> str:
        """Remove request secrets, which are often echoed."""
        return redact_secrets(text, find_secrets(self.url, self.headers))


@lru_cache(maxsize=64)
def find_server(url: str) -> tuple[str | None, int | None]:
    """Return the host name and the port of a URL."""
    try:
        parts = urlsplit(url)
        return parts.hostname, parts.port or {"https": 443, "http": 80}.get(parts.scheme)
    except ValueError:
        return None, None


def make_missing_key_error(endpoint: Endpoint) -> AuthenticationError:
    """Return the error for a missing key."""
    return AuthenticationError(
        f"no API key for {endpoint}: set the environment variable {endpoint.key_env}, or pass api_key="
        + (f", or {endpoint.key_hint}" if endpoint.key_hint else "")
    )


def check_headers(headers: Mapping[str, str], endpoint: Endpoint) -> None:
    """Validate headers, since library errors would expose the key.

    Raises:
        ConfigurationError: A header contains invalid characters such as line breaks.
    """
    for name, value in headers.items():
        if _NO_HEADER.search(value):
            raise ConfigurationError(
                f"the request to {endpoint} cannot be sent: its header {name!r} contains an invalid character "
                "(only ASCII characters without line breaks are valid); check that the key was copied correctly"
            )


def error_from_httpx(error: Exception, endpoint: Endpoint) -> RxloopError:
    """Return the error for a failed or incomplete request."""
    import httpx

    if _is_out_of_descriptors(error):
        return ProviderConnectionError(
            f"no connection to {endpoint}: this process is out of file descriptors; raise the limit (ulimit -n), or "
            "reduce the number of concurrent calls with limited(model, concurrent=...)"
        )
    detail = replace_surrogates(str(error)) or type(error).__name__
    hint = f". {endpoint.hint}" if endpoint.hint else ""
    if isinstance(error, httpx.ConnectTimeout):
        return ProviderTimeout(f"no connection to {endpoint} within the connect timeout{hint}")
    if isinstance(error, httpx.TimeoutException):
        return ProviderTimeout(
            f"{endpoint} sent nothing within the idle timeout; set a longer one with timeout=Timeouts(...)"
        )
    if isinstance(error, httpx.ConnectError):
        variables = format_tls_variables() if "CERTIFICATE" in detail.upper() else ""
        trusted = f" (the trusted certificates come from {variables})" if variables else ""
        return ProviderConnectionError(f"no connection to {endpoint}: {detail.rstrip('.')}{trusted}{hint}")
    if isinstance(error, httpx.UnsupportedProtocol | httpx.InvalidURL | httpx.LocalProtocolError):
        return ConfigurationError(f"cannot send the request to {endpoint}: {detail}")
    if isinstance(error, httpx.RemoteProtocolError) and "too long" in detail:
        return ProviderProtocolError(f"{endpoint} sent an oversized line: {detail}")
    if isinstance(error, httpx.DecodingError):
        return ProviderProtocolError(f"cannot decode the response from {endpoint}: {detail}")
    return ProviderConnectionError(f"the connection to {endpoint} broke: {detail}")


def _is_out_of_descriptors(error: BaseException | None) -> bool:
    """Return True if an error was caused by too many open files, through any number of libraries."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            return True
        if isinstance(error, BaseExceptionGroup):
            parts = cast("BaseExceptionGroup[BaseException]", error).exceptions
            return any(map(_is_out_of_descriptors, parts))
        error = error.__cause__ or error.__context__
    return False


def make_truncation_error(endpoint: Endpoint) -> ProviderConnectionError:
    """Return the error for an incomplete response."""
    return ProviderConnectionError(
        f"the answer of {endpoint} was cut short: the connection ended with neither a finish reason nor [DONE]"
    )


def remove_secrets(error: RxloopError, endpoint: Endpoint) -> RxloopError:
    """Remove secrets from an error, including its cause.

    httpx exceptions contain the whole request including headers.
    """
    error.args = tuple(endpoint.clean(part) if isinstance(part, str) else part for part in error.args)
    error.__cause__ = None if error.__cause__ is None else _copy_cause(error.__cause__, endpoint)
    error.__context__ = None
    return error


def _copy_cause(cause: BaseException, endpoint: Endpoint) -> BaseException:
    import httpx

    kind = type(cause) if isinstance(cause, httpx.RequestError) else RxloopError
    name = "" if isinstance(cause, httpx.RequestError) else f"{type(cause).__name__}: "
    return kind(endpoint.clean(f"{name}{cause}"))


def make_unreadable_error(error: Unreadable, endpoint: Endpoint) -> ProviderProtocolError:
    """Return the error for an unreadable response."""
    return ProviderProtocolError(f"{endpoint} sent {error}")


def make_silence_error(endpoint: Endpoint, seconds: float) -> ProviderTimeout:
    """Return the error for a response without events."""
    return ProviderTimeout(
        f"{endpoint} sent no event for {seconds:g} s, only comments or single bytes, if anything; "
        "set a longer limit with timeout=Timeouts(event=...)"
    )


def make_timeout_error(endpoint: Endpoint, seconds: float) -> ProviderTimeout:
    """Return the error for exceeding the total timeout."""
    return ProviderTimeout(
        f"{endpoint} did not finish within {seconds:g} s; set a longer limit with timeout=Timeouts(total=...)"
    )


LONGEST = 7 * 86_400.0
"""Maximum plausible delay in seconds. Longer values are errors of the vendor or the parser."""

_DURATION = re.compile(
    r"(\d{1,12}(?:\.\d{1,12})?) ?(ms|milliseconds?|s|secs?|seconds?|m|mins?|minutes?|h|hours?|d|days?)\b"
)

_WHOLE_DURATION = re.compile(r"(?:\d{1,12}(?:\.\d{1,12})? ?[a-z]{1,12} ?){1,5}", re.IGNORECASE)

_WORDS = re.compile(
    r"\b(?:try again|retry|wait)(?: (?:in|after|for|at least|about))* "
    r"((?:\d[\d.]{0,24} ?[a-z]{1,12},? ?(?:and )?){1,3})",
    re.IGNORECASE,
)

_UNIT_START = re.compile(r"(?<=[a-z])(?=\d)")

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}

# `anthropic-ratelimit-requests-reset`, `x-ratelimit-reset-requests`, `x-rate-limit-reset`, `ratelimitbysize-reset`
_RESET = re.compile(r".*(?:rate|token)-?limit[a-z]*-(?:.+-)?reset(?:-.+)?")

_EPOCHS = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3), (1e9, 1.0))
"""Minimum Unix time in nanoseconds, microseconds, milliseconds and seconds, with units per second."""


def find_retry_delay(
    headers: Mapping[str, str], error: Mapping[str, Any], message: str, *, limited: bool
) -> float | None:
    """Return the delay that the vendor requests in seconds, from the most precise source, or None.

    Args:
        headers: Headers of the response.
        error: The error object from the vendor.
        message: The message of the vendor.
        limited: True if the error is a rate limit. Other responses contain the state of the limits, too.
    """
    header_groups = tuple(_headers(headers, error))
    for each in header_groups:
        if (wait := _parse_headers(each)) is not None:
            return wait
    if (wait := _parse_body(error)) is not None:
        return wait
    if not limited:
        return None
    if (wait := _from_words(message)) is not None:
        return wait
    return next((wait for each in header_groups if (wait := _find_reset_delay(each)) is not None), None)


def _headers(headers: Mapping[str, str], error: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """Yield response headers, followed by upstream headers embedded by OpenRouter."""
    yield {name.lower(): value for name, value in headers.items()}
    metadata = error.get("metadata")
    upstream = cast("dict[str, Any]", metadata).get("headers") if isinstance(metadata, dict) else None
    if isinstance(upstream, dict):
        pairs = cast("dict[Any, Any]", upstream).items()
        yield {str(name).lower(): str(value) for name, value in pairs if isinstance(value, str | int | float)}


def _parse_headers(headers: Mapping[str, str]) -> float | None:
    for name, unit in (("retry-after-ms", 0.001), ("x-ms-retry-after-ms", 0.001), ("retry-after", 1.0)):
        if (wait := _read(headers.get(name), unit)) is not None:
            return wait
    return None


def _parse_body(error: Mapping[str, Any]) -> float | None:
    """Return the delay from Google's `RetryInfo` or other error fields."""
    details = error.get("details")
    for detail in cast("list[Any]", details) if isinstance(details, list) else ():
        if isinstance(detail, dict):
            delay = cast("dict[str, Any]", detail).get("retryDelay")
            if (wait := _read(_duration(delay))) is not None:
                return wait
    for fields in (error, error.get("metadata")):
        if not isinstance(fields, dict):
            continue
        fields = cast("dict[str, Any]", fields)
        for name, unit in (
            ("retry_after_ms", 0.001),
            ("retry_after", 1.0),
            ("retry_after_seconds", 1.0),
            ("retryAfter", 1.0),
        ):
            if (wait := _read(fields.get(name), unit)) is not None:
                return wait
    return None


def _duration(delay: Any) -> str:
    """Return a protobuf duration as a string, also if it was sent as an object; otherwise an empty string."""
    if not isinstance(delay, dict):
        return delay if isinstance(delay, str) else ""
    delay = cast("dict[str, Any]", delay)
    seconds, nanos = delay.get("seconds", 0), delay.get("nanos", 0)
    try:
        return str(float(seconds) + float(nanos) / 1e9)
    except (TypeError, ValueError):
        return ""


def _find_reset_delay(headers: Mapping[str, str]) -> float | None:
    """Return the delay until all exhausted limits are reset.

    Limits that are not exhausted are ignored. If no header contains the remaining amount, the shortest delay is used.
    """
    exhausted: list[float] = []
    unknown: list[float] = []
    for name, value in headers.items():
        limit = _RESET.fullmatch(name)
        if limit is None or (wait := _read(value)) is None:
            continue
        left = headers.get(re.sub(r"(?<=-)reset\b", "remaining", name))
        if left is None:
            unknown.append(wait)
        elif (number := _number(left)) is not None and number <= 0:
            exhausted.append(wait)
    return max(exhausted) if exhausted else min(unknown, default=None)


def _from_words(message: str) -> float | None:
    """Return the delay in a sentence such as "Please try again in 1m2.5s", if any."""
    match = _WORDS.search(message)
    return None if match is None else _limit_wait(_sum(match[1]))


def _read(value: Any, unit: float = 1.0) -> float | None:
    """Convert numbers, durations, dates and Unix times to seconds from now."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    text = str(value).strip()
    number = _number(text)
    if number is not None:
        return _from_number(number, unit)
    if _WHOLE_DURATION.fullmatch(text):
        return _limit_wait(_sum(text))
    date = _date(text)
    return None if date is None else _limit_wait(max(0.0, date - time.time()))


def _from_number(number: float, unit: float) -> float | None:
    for smallest, per_second in _EPOCHS:
        if number >= smallest:
            # A time in the distant past is not a valid time.
            wait = number / per_second - time.time()
            return _limit_wait(max(0.0, wait)) if wait > -86_400 else None
    return _limit_wait(number * unit)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _date(text: str) -> float | None:
    """Parse an ISO date or an HTTP date to seconds since 1970."""
    try:
        date = datetime.fromisoformat(text)
    except ValueError:
        # Imported lazily, since such dates are rare.
        from email.utils import parsedate_to_datetime

        try:
            date = parsedate_to_datetime(text)
        except (TypeError, ValueError, OverflowError):
            return None
    try:
        # Dates in headers are in UTC, even without a time zone.
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def _sum(text: str) -> float | None:
    parts = _DURATION.findall(_UNIT_START.sub(" ", text.lower()))
    return sum(float(number) * _UNITS[_unit(unit)] for number, unit in parts) if parts else None


def _unit(unit: str) -> str:
    return "ms" if unit.startswith(("ms", "milli")) else unit[0]


def _limit_wait(wait: float | None) -> float | None:
    return wait if wait is not None and 0 <= wait <= LONGEST else None
