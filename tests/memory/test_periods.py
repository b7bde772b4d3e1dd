"""Time expressions in questions."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxloop.memory.periods import find_period

NOW = datetime(2026, 5, 13, 15, 30, tzinfo=UTC)
"""A Wednesday."""


def days(first: str, end: str) -> tuple[datetime, datetime]:
    return datetime.fromisoformat(first).replace(tzinfo=UTC), datetime.fromisoformat(end).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "first", "end"),
    [
        ("What did I say today?", "2026-05-13", "2026-05-14"),
        ("And Yesterday?", "2026-05-12", "2026-05-13"),
        ("last week", "2026-05-04", "2026-05-11"),
        ("this week", "2026-05-11", "2026-05-18"),
        ("last weekend", "2026-05-09", "2026-05-11"),
        ("this weekend", "2026-05-16", "2026-05-18"),
        ("last month", "2026-04-01", "2026-05-01"),
        ("this month", "2026-05-01", "2026-06-01"),
        ("last year", "2025-01-01", "2026-01-01"),
        ("this year", "2026-01-01", "2027-01-01"),
        ("last Monday", "2026-05-11", "2026-05-12"),
        ("last Wednesday", "2026-05-06", "2026-05-07"),
        ("this Wednesday", "2026-05-13", "2026-05-14"),
        ("last Sunday", "2026-05-10", "2026-05-11"),
        ("two days ago", "2026-05-11", "2026-05-12"),
        ("a week ago", "2026-05-04", "2026-05-11"),
        ("a couple of months ago", "2026-03-01", "2026-04-01"),
        ("3 years ago", "2023-01-01", "2024-01-01"),
        ("in May", "2026-05-01", "2026-06-01"),
        ("in June", "2025-06-01", "2025-07-01"),
        ("during Dec", "2025-12-01", "2026-01-01"),
        ("in March 2024", "2024-03-01", "2024-04-01"),
        ("on 3 May", "2026-05-03", "2026-05-04"),
        ("on May 3rd, 2024", "2024-05-03", "2024-05-04"),
        ("the 2nd of January 2025", "2025-01-02", "2025-01-03"),
        ("on 20 May", "2025-05-20", "2025-05-21"),
        ("29 February 2024", "2024-02-29", "2024-03-01"),
        ("in 2024", "2024-01-01", "2025-01-01"),
        ("31 June or 3 May", "2026-05-03", "2026-05-04"),
        ("in May 2025, or yesterday", "2025-05-01", "2025-06-01"),
    ],
)
def test_expression_refers_to_a_period(text: str, first: str, end: str) -> None:
    assert find_period(text, NOW) == days(first, end)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "What may I eat?",
        "31 June",
        "29 February 2025",
        "May 0000",
        "in 31 December 9999",
        "999999 days ago",
        "2024",
    ],
)
def test_text_without_a_possible_time_has_no_period(text: str) -> None:
    assert find_period(text, NOW) is None


def test_last_month_of_january_is_december() -> None:
    assert find_period("last month", NOW.replace(month=1)) == days("2025-12-01", "2026-01-01")


def test_this_month_of_december_ends_in_january() -> None:
    assert find_period("this month", NOW.replace(month=12)) == days("2026-12-01", "2027-01-01")


def test_last_year_of_a_leap_day_is_a_whole_year() -> None:
    assert find_period("last year", datetime(2024, 2, 29, tzinfo=UTC)) == days("2023-01-01", "2024-01-01")


@pytest.mark.parametrize("text", ["la\u017ft week", "in augu\u017ft", "\u017fix days ago"])
def test_letters_that_only_resemble_a_word_are_ignored(text: str) -> None:
    assert find_period(text, NOW) is None


_WORDS = (
    "last this today yesterday week weekend month year monday friday may december feb 31 29 30 0 1 3 999 st rd of in on"
    " since ago days weeks months years 0001 1900 2024 9999 two couple , la\u017ft augu\u017ft \u0663"
)


@given(
    st.lists(st.sampled_from(_WORDS.split(" ")), max_size=8).map(" ".join) | st.text(),
    st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=14)), timezone(timedelta(hours=-12))])),
)
def test_period_of_any_text_has_a_start_before_its_end(text: str, now: datetime) -> None:
    period = find_period(text, now)
    assert period is None or period[0] < period[1]
