"""Transport failures as provider errors, and the delays that vendors ask for before a retry."""

from __future__ import annotations

import errno
import math
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

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
from rxloop.support.http_environment import tls_variables
from rxloop.support.redaction import display_url, find_secrets, redact_secrets

_NO_HEADER = re.compile(r"[^\t\x20-\x7e]")


class MalformedCall(BadRequest):
    """The model wrote a tool call that the vendor could not read.

    Models made here do not raise it: their message ends without the call, so that the model is asked again.

    Attributes:
        reason: The message of the vendor, and the call as the model wrote it.
    """

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The endpoint that a request goes to, for messages."""

    name: str
    """The provider and the model, such as `zai:glm-4.7`."""
    url: str = field(repr=False)
    key_env: str | None = None
    hint: str = ""
    headers: dict[str, str] = field(default_factory=dict[str, str], repr=False)
    """Those of the request, with the key among them."""
    key_hint: str = ""
    """What to do in place of setting a key."""

    def __str__(self) -> str:
        return f"{self.name} at {display_url(self.url)}"

    def clean(self, text: str) -> str:
        """A text of the vendor's, or of a library's, without what is secret in the request: many echo it."""
        return redact_secrets(text, find_secrets(self.url, self.headers))


def missing_key(where: Endpoint) -> AuthenticationError:
    """The error of a key that was not given, and that the environment does not have."""
    return AuthenticationError(
        f"no API key for {where}: set the environment variable {where.key_env}, or pass api_key="
        + (f", or {where.key_hint}" if where.key_hint else "")
    )


def check_headers(headers: Mapping[str, str], where: Endpoint) -> None:
    """Check that the headers can be sent. What the libraries say of one that cannot has the key on it.

    Raises:
        ConfigurationError: A value has a character that no header takes, such as a line break.
    """
    for name, value in headers.items():
        if _NO_HEADER.search(value):
            raise ConfigurationError(
                f"the request to {where} cannot be sent: its header {name!r} has a character that no header takes "
                "(only those of ASCII, without line breaks); was the key copied whole, and nothing else?"
            )


def error_from_httpx(error: Exception, where: Endpoint) -> RxloopError:
    """The error of a request that got no answer, or only a part of one."""
    import httpx

    if _no_descriptor_left(error):
        return ProviderConnectionError(
            f"no connection to {where}: this process has no file descriptor left; raise its limit (ulimit -n), or let "
            "fewer runs go on at once, as limited(model, concurrent=...) does"
        )
    detail = replace_surrogates(str(error)) or type(error).__name__
    if isinstance(error, httpx.ConnectTimeout):
        return ProviderTimeout(f"no connection to {where} within the connect timeout. {where.hint}".rstrip())
    if isinstance(error, httpx.TimeoutException):
        return ProviderTimeout(
            f"{where} sent nothing within the idle timeout; a longer one goes in timeout=Timeouts(...)"
        )
    if isinstance(error, httpx.ConnectError):
        variables = tls_variables() if "CERTIFICATE" in detail.upper() else ""
        trusted = f" (the trusted certificates come from {variables})" if variables else ""
        return ProviderConnectionError(f"no connection to {where}: {detail}{trusted}. {where.hint}".rstrip())
    if isinstance(error, httpx.UnsupportedProtocol | httpx.InvalidURL | httpx.LocalProtocolError):
        return ConfigurationError(f"the request to {where} cannot be sent: {detail}")
    if isinstance(error, httpx.RemoteProtocolError) and "too long" in detail:
        return ProviderProtocolError(f"{where} sent a line that is too long for HTTP: {detail}")
    if isinstance(error, httpx.DecodingError):
        return ProviderProtocolError(f"the answer of {where} cannot be decoded: {detail}")
    return ProviderConnectionError(f"the connection to {where} broke: {detail}")


def _no_descriptor_left(error: BaseException | None) -> bool:
    """Whether an error came from too many open files, however many libraries it went through."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            return True
        if isinstance(error, BaseExceptionGroup):
            parts = cast("BaseExceptionGroup[BaseException]", error).exceptions
            return any(map(_no_descriptor_left, parts))
        error = error.__cause__ or error.__context__
    return False


def cut_short(where: Endpoint) -> ProviderConnectionError:
    """The error of an answer that stopped in the middle."""
    return ProviderConnectionError(
        f"the answer of {where} was cut short: the connection ended with neither a finish reason nor [DONE]"
    )


def without_secrets(error: RxloopError, where: Endpoint) -> RxloopError:
    """The error without what is secret in the request: neither in its words nor in what it came from.

    The exceptions of httpx have the whole request on them, headers and all.
    """
    error.args = tuple(where.clean(part) if isinstance(part, str) else part for part in error.args)
    error.__cause__ = None if error.__cause__ is None else _bare(error.__cause__, where)
    error.__context__ = None
    return error


def _bare(cause: BaseException, where: Endpoint) -> BaseException:
    import httpx

    kind = type(cause) if isinstance(cause, httpx.RequestError) else RxloopError
    name = "" if isinstance(cause, httpx.RequestError) else f"{type(cause).__name__}: "
    return kind(where.clean(f"{name}{cause}"))


def unreadable(error: Unreadable, where: Endpoint) -> ProviderProtocolError:
    """The error of an answer that is too large, or damaged."""
    return ProviderProtocolError(f"{where} sent {error}")


def no_event(where: Endpoint, seconds: float) -> ProviderTimeout:
    """The error of an answer in which nothing comes: bytes may have, but no event."""
    return ProviderTimeout(
        f"{where} sent no event for {seconds:g} s, only comments or single bytes, if anything; "
        "more time goes in timeout=Timeouts(event=...)"
    )


def out_of_time(where: Endpoint, seconds: float) -> ProviderTimeout:
    """The error of a call that takes longer than it may in all."""
    return ProviderTimeout(
        f"{where} did not finish within {seconds:g} s; more time goes in timeout=Timeouts(total=...)"
    )


LONGEST = 7 * 86_400.0
"""Seconds of the longest wait that is believed. Anything longer is an error of the vendor, or of the reading."""

_DURATION = re.compile(
    r"(\d{1,12}(?:\.\d{1,12})?) ?(ms|milliseconds?|s|secs?|seconds?|m|mins?|minutes?|h|hours?|d|days?)\b"
)

_WHOLE_DURATION = re.compile(r"(?:\d{1,12}(?:\.\d{1,12})? ?[a-z]{1,12} ?){1,5}", re.IGNORECASE)

_WORDS = re.compile(
    r"\b(?:try again|retry|wait)(?: (?:in|after|for|at least|about))* "
    r"((?:\d[\d.]{0,24} ?[a-z]{1,12},? ?(?:and )?){1,3})",
    re.IGNORECASE,
)

_TOGETHER = re.compile(r"(?<=[a-z])(?=\d)")

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}

# `anthropic-ratelimit-requests-reset`, `x-ratelimit-reset-requests`, `x-rate-limit-reset`, `ratelimitbysize-reset`
_RESET = re.compile(r".*(?:rate|token)-?limit[a-z]*-(?:.+-)?reset(?:-.+)?")

_EPOCHS = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3), (1e9, 1.0))
"""The smallest number that counts nanoseconds, microseconds, milliseconds and seconds since 1970, and its unit."""


def find_retry_delay(
    headers: Mapping[str, str], error: Mapping[str, Any], message: str, *, limited: bool
) -> float | None:
    """Return the seconds that the vendor asks to wait, or None: the most exact format counts.

    Args:
        headers: Headers of the answer.
        error: The failure, as the object that the vendor sent.
        message: The message of the vendor.
        limited: True if the failure is a rate limit. The states of all limits come with any answer.
    """
    places = tuple(_headers(headers, error))
    for each in places:
        if (wait := _retry_after(each)) is not None:
            return wait
    if (wait := _from_body(error)) is not None:
        return wait
    if not limited:
        return None
    if (wait := _from_words(message)) is not None:
        return wait
    return next((wait for each in places if (wait := _from_resets(each)) is not None), None)


def _headers(headers: Mapping[str, str], error: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """Yield the headers of the answer, and those of the upstream vendor that OpenRouter puts into the body."""
    yield {name.lower(): value for name, value in headers.items()}
    metadata = error.get("metadata")
    upstream = cast("dict[str, Any]", metadata).get("headers") if isinstance(metadata, dict) else None
    if isinstance(upstream, dict):
        pairs = cast("dict[Any, Any]", upstream).items()
        yield {str(name).lower(): str(value) for name, value in pairs if isinstance(value, str | int | float)}


def _retry_after(headers: Mapping[str, str]) -> float | None:
    for name, unit in (("retry-after-ms", 0.001), ("x-ms-retry-after-ms", 0.001), ("retry-after", 1.0)):
        if (wait := _read(headers.get(name), unit)) is not None:
            return wait
    return None


def _from_body(error: Mapping[str, Any]) -> float | None:
    """Return the wait in the `RetryInfo` of Google, or in a field of the failure."""
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
    """Return a protobuf duration as text, also one that was sent as an object; an empty one if it is neither."""
    if not isinstance(delay, dict):
        return delay if isinstance(delay, str) else ""
    delay = cast("dict[str, Any]", delay)
    seconds, nanos = delay.get("seconds", 0), delay.get("nanos", 0)
    try:
        return str(float(seconds) + float(nanos) / 1e9)
    except (TypeError, ValueError):
        return ""


def _from_resets(headers: Mapping[str, str]) -> float | None:
    """Return the wait until the limits are reset: the longest wait of the exhausted ones.

    Limits with something left do not count. If no header says what is left, the shortest wait counts.
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
    """Return the wait in a sentence such as "Please try again in 1m2.5s."."""
    found = _WORDS.search(message)
    return None if found is None else _bounded(_sum(found[1]))


def _read(value: Any, unit: float = 1.0) -> float | None:
    """Return a number, a duration, a date or a time since 1970 as seconds from now."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    text = str(value).strip()
    number = _number(text)
    if number is not None:
        return _from_number(number, unit)
    if _WHOLE_DURATION.fullmatch(text):
        return _bounded(_sum(text))
    date = _date(text)
    return None if date is None else _bounded(max(0.0, date - time.time()))


def _from_number(number: float, unit: float) -> float | None:
    for smallest, per_second in _EPOCHS:
        if number >= smallest:
            # A time that is long past is no time.
            wait = number / per_second - time.time()
            return _bounded(max(0.0, wait)) if wait > -86_400 else None
    return _bounded(number * unit)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _date(text: str) -> float | None:
    """Return an ISO date or an HTTP date in seconds since 1970."""
    try:
        date = datetime.fromisoformat(text)
    except ValueError:
        # Imported where it is needed: few vendors send such a date.
        from email.utils import parsedate_to_datetime

        try:
            date = parsedate_to_datetime(text)
        except (TypeError, ValueError, OverflowError):
            return None
    try:
        # Dates in headers are in UTC, also those that do not say so.
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def _sum(text: str) -> float | None:
    parts = _DURATION.findall(_TOGETHER.sub(" ", text.lower()))
    return sum(float(number) * _UNITS[_unit(unit)] for number, unit in parts) if parts else None


def _unit(unit: str) -> str:
    return "ms" if unit.startswith(("ms", "milli")) else unit[0]


def _bounded(wait: float | None) -> float | None:
    return wait if wait is not None and 0 <= wait <= LONGEST else None
