"""The wait that a vendor asks for after a failure, in all the forms in which vendors do."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, cast

_DURATION = re.compile(r"(\d{1,12}(?:\.\d{1,12})?) ?(ms|milliseconds?|s|sec|seconds?|m|min|minutes?|h|hours?)\b")
_WORDS = re.compile(r"\b(?:try again|retry) (?:in|after) ((?:\d[\d.]{0,24} ?[a-z]{1,12} ?){1,3})", re.IGNORECASE)
_TOGETHER = re.compile(r"(?<=[a-z])(?=\d)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_RESET = re.compile(r"anthropic-ratelimit-([a-z-]+)-reset")


def asked_wait(headers: Mapping[str, str], error: Mapping[str, Any], message: str, *, limited: bool) -> float | None:
    """The seconds that the vendor asks to wait, or None: the form that says it most exactly counts.

    Args:
        headers: Those of the answer.
        error: What it says of the failure, as an object.
        message: The words of the vendor.
        limited: Whether the failure is a limit on requests. The states of all limits come with any answer.
    """
    for found in (_of_headers(headers), _of_details(error)):
        if found is not None:
            return found
    if not limited:
        return None
    wait = _of_resets(headers)
    return wait if wait is not None else _of_words(message)


def _of_headers(headers: Mapping[str, str]) -> float | None:
    """From `retry-after-ms` or `retry-after`, a number or a date."""
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
        return _until(parsedate_to_datetime(value))
    except (TypeError, ValueError, OverflowError):
        return None


def _of_details(error: Mapping[str, Any]) -> float | None:
    """From Google's `RetryInfo`."""
    details = error.get("details")
    for detail in cast("list[Any]", details) if isinstance(details, list) else ():
        if isinstance(detail, dict):
            delay = cast("dict[str, Any]", detail).get("retryDelay")
            if isinstance(delay, str) and (wait := _seconds(delay.removesuffix("s"))) is not None:
                return wait
    return None


def _of_resets(headers: Mapping[str, str]) -> float | None:
    """From the moments at which Anthropic's limits are full again: of those with nothing left, the latest."""
    spent: list[float] = []
    others: list[float] = []
    for name, value in headers.items():
        if (limit := _RESET.fullmatch(name.lower())) is None:
            continue
        try:
            wait = _until(datetime.fromisoformat(value))
        except (ValueError, OverflowError):
            continue
        left = headers.get(f"anthropic-ratelimit-{limit[1]}-remaining")
        (spent if left == "0" else others).append(wait)
    return max(spent) if spent else min(others, default=None)


def _of_words(message: str) -> float | None:
    """From a sentence such as "Please try again in 1m2.5s."."""
    told = _WORDS.search(message)
    if told is None:
        return None
    parts = _DURATION.findall(_TOGETHER.sub(" ", told[1].lower()))
    if not parts:
        return None
    return sum(float(number) * _UNITS[_unit(unit)] for number, unit in parts)


def _unit(unit: str) -> str:
    return "ms" if unit.startswith(("ms", "milli")) else unit[0]


def _until(date: datetime) -> float:
    # Dates in headers are in UTC, also those that do not say so.
    return max(0.0, (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - time.time())


def _seconds(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if number >= 0 and math.isfinite(number) else None
