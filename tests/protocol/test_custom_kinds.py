"""Custom event classes."""

from __future__ import annotations

from typing import ClassVar

from typing_extensions import override

from rxloop.operators.views.compare import comparable_data, format_event
from rxloop.protocol.envelope import EVENT_TYPES, Event
from rxloop.testing.marbles import get_marble, marbles


class WeighedEvent(Event):
    kind: str = "test-weighed"
    marble: ClassVar[str] = "W"
    incidental_fields: ClassVar[tuple[str, ...]] = ("took",)
    grams: int
    took: float = 0.0

    @override
    def describe(self) -> str:
        return f"{self.grams} g"


# Registered only in this file, since other tests iterate over all kinds.
EVENT_TYPES.pop("test-weighed")


def test_kind_defines_its_marble() -> None:
    assert get_marble(WeighedEvent(grams=1)) == "W"
    assert marbles([(0, WeighedEvent(grams=1))]) == "W"


def test_kind_defines_its_description() -> None:
    assert format_event(WeighedEvent(grams=7, seq=3)) == "   3 test-weighed: 7 g"


def test_kind_names_its_incidental_fields() -> None:
    assert comparable_data(WeighedEvent(grams=1, took=1.0), ()) == comparable_data(WeighedEvent(grams=1, took=2.0), ())
    assert comparable_data(WeighedEvent(grams=1), ()) != comparable_data(WeighedEvent(grams=2), ())
