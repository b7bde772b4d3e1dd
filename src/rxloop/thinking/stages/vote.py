"""Majority vote among answers."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any

import orjson
from pydantic_core import to_jsonable_python

from rxloop.errors import NoAnswers

_NUMBER = re.compile(r"([+-]?)[$€£¥]?\s?([+-]?)((?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+)(e[+-]?\d{1,4})?")

_QUOTES = "\"'`*“”\u2018\u2019«»"

_PUNCTUATION = ".,;:!?。"

_LONGEST = 30
"""The zeros at an end of a number that are written out; beyond, it is written with an exponent."""


def normalise(answer: Any) -> str:
    """Normalise an answer for comparison: answers of the same form are the same answer.

    In a text, these differences are ignored: the form of characters (Unicode NFKC), upper and lower case, white space
    at the ends and repeated blanks within, quotation marks and Markdown's asterisks and backticks around it, and
    punctuation at its end.

    A text that is one number counts by its value, with or without a currency sign before it and commas between
    thousands: `42`, `42.00`, `$42`, `+42`, `4.2e1` are one answer, and `1,000` is `1000`. A percentage, a fraction or a
    number with a unit is a text; so is `3 1/2`. A bool is `true` or `false`. Anything else, such as a list or a
    pydantic model, is its JSON with sorted keys.
    """
    if isinstance(answer, bool):
        return "true" if answer else "false"
    if isinstance(answer, (str, int, float, Decimal)):
        return _of_text(str(answer))
    return orjson.dumps(to_jsonable_python(answer), option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS).decode()


def _of_text(text: str) -> str:
    plain = " ".join(unicodedata.normalize("NFKC", text).casefold().split()).replace("\N{MINUS SIGN}", "-")
    before = None
    while plain != before:
        before = plain
        plain = plain.strip(_QUOTES).rstrip(_PUNCTUATION).strip()
    number = _NUMBER.fullmatch(plain)
    if number is None or (number[1] and number[2]):
        # An answer of punctuation alone is still an answer, and not the same as none.
        return plain or text.strip()
    return _of_number(number[1] + number[2] + number[3].replace(",", "") + (number[4] or ""))


def _of_number(digits: str) -> str:
    # A precision of our own: the default one rounds numbers of more than 28 digits.
    value = Decimal(digits).normalize(Context(prec=len(digits)))
    if not value:
        return "0"
    exponent = value.as_tuple().exponent
    return f"{value:f}" if isinstance(exponent, int) and abs(exponent) <= _LONGEST else str(value)


@dataclass(frozen=True, slots=True)
class Vote:
    """The outcome of a vote. `str` tells it in a sentence."""

    answer: Any
    """The winning answer, in the form in which it was first given."""
    winner: str
    """Its normal form."""
    count: int
    """How many gave it."""
    total: int
    """How many voted."""
    failed: int
    """How many were to vote and gave no answer; they do not count."""
    counts: tuple[tuple[str, int], ...]
    """Each answer and how many gave it, in the order in which they were first given."""

    @property
    def ratio(self) -> float:
        """The part of the votes that the winner has."""
        return self.count / self.total

    @property
    def tied(self) -> bool:
        """Whether another answer has as many votes: the winner was given before it."""
        return sum(count == self.count for _, count in self.counts) > 1

    def __str__(self) -> str:
        text = f"{self.winner}: {self.count} of {self.total} answers"
        if self.tied:
            text += ", as many as another that was given later"
        return f"{text}; {self.failed} without an answer" if self.failed else text


def majority(answers: Sequence[Any], *, failed: int = 0) -> Vote:
    """Find the answer that was given most often; on a tie, the one that was given first.

    Args:
        answers: The answers, in the order in which they were given.
        failed: How many others were to answer and did not.

    Raises:
        NoAnswers: There are no answers.
    """
    if not answers:
        raise NoAnswers(f"there is nothing to vote on: {failed} of {failed} paths failed")
    forms = [normalise(answer) for answer in answers]
    counts = Counter(forms)
    # `max` gives the first of equals, and a Counter keeps the order in which the answers came.
    winner = max(counts, key=counts.__getitem__)
    return Vote(
        answer=answers[forms.index(winner)],
        winner=winner,
        count=counts[winner],
        total=len(forms),
        failed=failed,
        counts=tuple(counts.items()),
    )


def decided(answers: Sequence[Any], remaining: int) -> bool:
    """Return whether the outcome is certain, whatever the remaining answers are, and even if some of them fail.

    Args:
        answers: The answers so far, in the order in which they were given; the remaining ones come after them.
        remaining: How many there are to come.
    """
    if remaining <= 0:
        return True
    counts = list(Counter(map(normalise, answers)).values())
    if not counts:
        return False
    most = max(counts)
    first = counts.index(most)
    # An answer that was given before the leader wins with as many votes, one that comes later needs one more.
    before = all(count + remaining < most for count in counts[:first])
    return before and all(count + remaining <= most for count in [*counts[first + 1 :], 0])
