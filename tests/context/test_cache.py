from __future__ import annotations

from rxloop.context.counting import LONGEST, MOST, cache_short_strings


def test_a_short_text_is_worked_out_once_and_a_long_one_is_not_kept() -> None:
    asked: list[str] = []
    size = cache_short_strings(lambda text: asked.append(text) or len(text))
    short, long = "x" * LONGEST, "x" * (LONGEST + 1)
    assert [size(text) for text in (short, short, long, long)] == [LONGEST, LONGEST, LONGEST + 1, LONGEST + 1]
    assert asked == [short, long, long]


def test_what_is_kept_takes_little_whatever_is_said() -> None:
    assert LONGEST * MOST <= 2**20
