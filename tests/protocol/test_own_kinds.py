"""A kind of event says all that others need to know of it in its class."""

from __future__ import annotations

from typing import ClassVar

from typing_extensions import override

from rxloop.operators.views.compare import fact, line
from rxloop.protocol.envelope import EVENT_TYPES, Event
from rxloop.testing.marbles import letter, marbles


class WeighedEvent(Event):
    kind: str = "test-weighed"
    marble: ClassVar[str] = "W"
    incidental_fields: ClassVar[tuple[str, ...]] = ("took",)
    grams: int
    took: float = 0.0

    @override
    def describe(self) -> str:
        return f"{self.grams} g"


# Known by its kind in this file alone: others go over all kinds.
EVENT_TYPES.pop("test-weighed")


def test_a_kind_brings_its_letter() -> None:
    assert letter(WeighedEvent(grams=1)) == "W"
    assert marbles([(0, WeighedEvent(grams=1))]) == "W"


def test_a_kind_says_itself_what_it_says() -> None:
    assert line(WeighedEvent(grams=7, seq=3)) == "   3 test-weighed: 7 g"


def test_a_kind_names_the_fields_that_may_differ() -> None:
    assert fact(WeighedEvent(grams=1, took=1.0), ()) == fact(WeighedEvent(grams=1, took=2.0), ())
    assert fact(WeighedEvent(grams=1), ()) != fact(WeighedEvent(grams=2), ())
