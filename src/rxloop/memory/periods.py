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
_NUMBERS = {"a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "couple of": 2, "few": 3}

_MONTH = "|".join(f"{month}|{month[:3]}" for month in _MONTHS)
_DAY = "|".join(_DAYS)
_NUMBER = "|".join(sorted(_NUMBERS, key=len, reverse=True))

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


def _midnight(moment: datetime) -> datetime:
    return moment.replace(hour=0, minute=0, second=0, microsecond=0)


def _day(moment: datetime, days: int = 1) -> Period:
    return _midnight(moment), _midnight(moment) + timedelta(days=days)


def _month(year: int, month: int, now: datetime) -> Period:
    start = _midnight(now).replace(year=year + (month - 1) // 12, month=(month - 1) % 12 + 1, day=1)
    return start, (start + timedelta(days=32)).replace(day=1)


def _year(year: int, now: datetime) -> Period:
    start = _midnight(now).replace(year=year, month=1, day=1)
    return start, start.replace(year=year + 1)


def _relative(match: re.Match[str], now: datetime) -> Period:
    offset = {"last": -1, "this": 0}[match[1].lower()]
    match match[2].lower():
        case "week":
            return _day(now + timedelta(days=7 * offset - now.weekday()), 7)
        case "weekend":
            return _day(now + timedelta(days=7 * offset - now.weekday() + 5), 2)
        case "month":
            return _month(now.year, now.month + offset, now)
        case "year":
            return _year(now.year + offset, now)
        case day:
            # Choose the most recent past day of this week, or the one in the last week.
            back = (now.weekday() - _DAYS.index(day)) % 7
            return _day(now - timedelta(days=back or -7 * offset))


def _ago(match: re.Match[str], now: datetime) -> Period:
    count = _NUMBERS.get(match[1].lower()) or int(match[1])
    match match[2].lower():
        case "day":
            return _day(now - timedelta(days=count))
        case "week":
            # People rarely count weeks, months and years exactly.
            return _day(now - timedelta(days=7 * count + 3), 7)
        case "month":
            return _month(now.year, now.month - count, now)
        case _:
            return _year(now.year - count, now)


def _named_month(match: re.Match[str], now: datetime) -> Period:
    day, name, year = match["day"] or match["day_after"], match["month"].lower(), match["year"]
    number = next(index for index, month in enumerate(_MONTHS, 1) if month.startswith(name))
    # A date without a year is in the past.
    chosen = int(year) if year else now.year - ((number, int(day or 1)) > (now.month, now.day))
    if day:
        return _day(now.replace(year=chosen, month=number, day=int(day)))
    return _month(chosen, number, now)


def _compile(pattern: str) -> re.Pattern[str]:
    # Without ASCII, "august" would match "augu\u017ft", which has other lower-case letters.
    return re.compile(pattern, re.IGNORECASE | re.ASCII)


_RULES: tuple[tuple[re.Pattern[str], Callable[[re.Match[str], datetime], Period]], ...] = (
    (_compile(r"\btoday\b"), lambda _, now: _day(now)),
    (_compile(r"\byesterday\b"), lambda _, now: _day(now - timedelta(days=1))),
    (_compile(rf"\b(last|this) (week|weekend|month|year|{_DAY})\b"), _relative),
    (_compile(rf"\b(\d{{1,3}}|{_NUMBER}) (day|week|month|year)s? ago\b"), _ago),
    (
        _compile(
            rf"\b(?:(?P<day>\d{{1,2}})(?:st|nd|rd|th)?(?: of)? |(?:in|of|since|during|on|early|late|mid|last) )"
            rf"(?P<month>{_MONTH})\b(?: (?P<day_after>\d{{1,2}})(?:st|nd|rd|th)?\b)?,?(?: (?P<year>\d{{4}}))?"
        ),
        _named_month,
    ),
    (_compile(r"\b(?:in|of|since|during) ((?:19|20)\d\d)\b"), lambda match, now: _year(int(match[1]), now)),
)
