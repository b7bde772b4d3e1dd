"""Comparing and counting answers."""

from __future__ import annotations

from decimal import Decimal
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from rxloop.errors import NoAnswers
from rxloop.strategies import normalise
from rxloop.strategies.self_consistency import find_majority, is_decided


class City(BaseModel):
    name: str
    people: int


@pytest.mark.parametrize(
    ("answer", "form"),
    [
        *[
            (each, "42")
            for each in (
                42,
                "42 ",
                42.0,
                "42.00",
                "$42.00",
                "+42",
                "4.2e1",
                "**42**.",
                "`42`",
                "\N{FULLWIDTH DIGIT FOUR}2",
                "42!",
            )
        ],
        *[(each, "1000") for each in ("1,000", "1000", "1e3", "$1,000.00", "€ 1000", Decimal("1E+3"), "01000")],
        *[(each, "-0.5") for each in ("-.5", "-0.50", "\N{MINUS SIGN}0.5", "-$0.5", "$-0.5")],
        *[(each, "0") for each in (0, "-0", "0.000", "0e5")],
        *[
            (each, "oslo")
            for each in (
                "Oslo",
                " OSLO\n",
                '"Oslo."',
                "\N{LEFT SINGLE QUOTATION MARK}oslo\N{RIGHT SINGLE QUOTATION MARK}",
            )
        ],
        ("New   York\tCity.", "new york city"),
        ("Straße", "strasse"),
        ("\N{LATIN SMALL LIGATURE FI}ve", "five"),
        # These are not numbers.
        ("50%", "50%"),
        ("1/2", "1/2"),
        ("3 1/2", "3 1/2"),
        ("10 km", "10 km"),
        ("1,00", "1,00"),
        ("1_000", "1_000"),
        ("--5", "--5"),
        ("nan", "nan"),
        (float("inf"), "inf"),
        ("1.2.3", "1.2.3"),
        (True, "true"),
        ("True", "true"),
        ("", ""),
        ("...", "..."),
        (None, "null"),
        # Floats and the default decimal context are not precise enough for these numbers.
        ("123456789012345678901234567890123456789", "123456789012345678901234567890123456789"),
        ("0." + "0" * 28 + "1", "0." + "0" * 28 + "1"),
        ("1e9999", "1E+9999"),
        ("-1e-9999", "-1E-9999"),
        ({"b": 1, "a": [2, "x"]}, '{"a":[2,"x"],"b":1}'),
        (City(name="Oslo", people=7), '{"name":"Oslo","people":7}'),
        ((1, 2), "[1,2]"),
    ],
)
def test_equivalent_answers_have_one_normal_form(answer: Any, form: str) -> None:  # T77
    assert normalise(answer) == form


@given(st.text() | st.decimals(allow_nan=False, allow_infinity=False, places=4).map(str))
def test_normalise_is_idempotent(answer: str) -> None:
    assert normalise(normalise(answer)) == normalise(answer)


def test_most_frequent_answer_wins() -> None:  # T77
    vote = find_majority([42, "42 ", 7])
    assert (vote.winner, vote.answer, vote.count, vote.total) == ("42", 42, 2, 3)
    assert vote.ratio == 2 / 3
    assert vote.counts == (("42", 2), ("7", 1))
    assert not vote.tied
    assert str(vote) == "42: 2 of 3 answers"


def test_first_answer_wins_a_tie() -> None:  # T77
    vote = find_majority(["b", "a", "c", "A", "B"])
    assert (vote.winner, vote.tied, vote.ratio) == ("b", True, 0.4)
    assert str(vote) == "b: 2 of 5 answers, as many as another that was given later"
    assert find_majority(["a", "b"]).winner == "a"
    assert find_majority(["b", "a"]).winner == "b"


def test_failed_paths_do_not_vote_and_are_reported() -> None:  # T78
    vote = find_majority(["7", 7], failed=1)
    assert (vote.ratio, vote.total, vote.failed) == (1.0, 2, 1)
    assert str(vote) == "7: 2 of 2 answers; 1 without an answer"


def test_vote_without_answers_is_an_error() -> None:  # T78
    with pytest.raises(NoAnswers, match="3 of 3 samples failed"):
        find_majority([], failed=3)


def test_vote_is_decided_when_remaining_answers_cannot_change_it() -> None:  # T77
    assert is_decided([7, 7, 7], remaining=2)
    assert not is_decided([7, 7], remaining=3)
    assert is_decided([7, "7.0", 8], remaining=1)  # 8 can only tie
    assert not is_decided([8, 7, 7], remaining=1)  # 8 would win a tie
    assert not is_decided([], remaining=1)
    assert is_decided([], remaining=0)


@given(st.lists(st.sampled_from("abc"), max_size=6), st.integers(0, 3))
def test_is_decided_agrees_with_an_exhaustive_search(answers: list[str], remaining: int) -> None:
    rests = [rest for length in range(remaining + 1) for rest in product("abcd", repeat=length)]
    outcomes = {find_majority([*answers, *rest]).winner if answers or rest else None for rest in rests}
    assert is_decided(answers, remaining) is (len(outcomes) == 1)
