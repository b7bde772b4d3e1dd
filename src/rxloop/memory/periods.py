"""Time expressions in questions, such as "last week" or "in May 2026"."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta

_MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_NUMBERS = (
    *(("today", "this"), ("yesterday", "last", "a", "an", "one"), ("two", "couple of"), ("three", "few")),
    *(("four",), ("five",), ("six",)),
)
_COUNTS = {word: number for number, words in enumerate(_NUMBERS) for word in words}

_MONTH = "|".join(f"{month}|{month[:3]}" for month in _MONTHS)
_DAY = "|".join(_DAYS)
_COUNT = "|".join(_COUNTS)

Period = tuple[datetime, datetime]
"""Start and end."""


def find_period(text: str, now: datetime) -> Period | None:
    """Return the period that a text refers to, or None.

    Args:
        text: English text. The first time expression is used.
        now: Present time.
    """
    found = [(match.start(), match, convert) for pattern, convert in _RULES for match in pattern.finditer(text)]
    # "in May 2026" also matches the rule for "2026", which starts later.
    for _, match, convert in sorted(found, key=lambda item: item[0]):
        try:
            return convert(match, now)
        except (ValueError, OverflowError):
            # The date does not exist, for example 31 June.
            continue
    return None


def _days(moment: datetime, days: int = 1) -> Period:
    start = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    return start, start + timedelta(days=days)


def _months(year: int, month: int, now: datetime, months: int = 1) -> Period:
    start, end = _days(now.replace(year=year + (month - 1) // 12, month=(month - 1) % 12 + 1, day=1), 31 * months + 1)
    return start, end.replace(day=1)


def _relative(match: re.Match[str], now: datetime) -> Period:
    text = match["count"].lower()
    count = _COUNTS[text] if text in _COUNTS else int(text)
    match match["unit"].lower():
        case "" | "day":
            return _days(now - timedelta(days=count))
        case "week":
            return _days(now - timedelta(days=7 * count + now.weekday()), 7)
        case "weekend":
            return _days(now - timedelta(days=7 * count + now.weekday() - 5), 2)
        case "month":
            return _months(now.year, now.month - count, now)
        case "year":
            return _months(now.year - count, 1, now, 12)
        case day:
            # Choose the most recent past day of this week, or the one in the last week.
            back = (now.weekday() - _DAYS.index(day)) % 7
            return _days(now - timedelta(days=back or 7 * count))


def _named_month(match: re.Match[str], now: datetime) -> Period:
    day, name, year = match["day"] or match["day_after"], match["month"].lower(), match["year"]
    number = next(index for index, month in enumerate(_MONTHS, 1) if month.startswith(name))
    # A date without a year is in the past.
    chosen = int(year) if year else now.year - ((number, int(day or 1)) > (now.month, now.day))
    if day:
        return _days(now.replace(year=chosen, month=number, day=int(day)))
    return _months(chosen, number, now)


def _compile(pattern: str) -> re.Pattern[str]:
    # Without ASCII, "august" would match "augu\u017ft", which has other lower-case letters.
    return re.compile(pattern, re.IGNORECASE | re.ASCII)


_RULES: tuple[tuple[re.Pattern[str], Callable[[re.Match[str], datetime], Period]], ...] = (
    (_compile(r"\b(?P<count>today|yesterday)\b(?P<unit>)"), _relative),
    (_compile(rf"\b(?P<count>last|this) (?P<unit>week|weekend|month|year|{_DAY})\b"), _relative),
    (_compile(rf"\b(?P<count>\d{{1,3}}|{_COUNT}) (?P<unit>day|week|month|year)s? ago\b"), _relative),
    (
        _compile(
            rf"\b(?:(?P<day>\d{{1,2}})(?:st|nd|rd|th)?(?: of)? |(?:in|of|since|during|on|early|late|mid|last) )"
            rf"(?P<month>{_MONTH})\b(?: (?P<day_after>\d{{1,2}})(?:st|nd|rd|th)?\b)?,?(?: (?P<year>\d{{4}}))?"
        ),
        _named_month,
    ),
    (_compile(r"\b(?:in|of|since|during) ((?:19|20)\d\d)\b"), lambda match, now: _months(int(match[1]), 1, now, 12)),
)
