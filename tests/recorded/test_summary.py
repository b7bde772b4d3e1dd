"""Summary of a run for lists."""

from __future__ import annotations

import pytest

from rxloop.recorded.summary import TokenRate


@pytest.mark.parametrize(
    ("tokens", "bins"),
    [
        ([], []),
        ([(0, 0)], [0]),
        ([(0, 0), (500, 10), (999, 5), (2_000, 7)], [15, 0, 7]),
        ([(0, 1), (11_999, 2)], [1, *[0] * 10, 2]),
        ([(0, 1), (1_000, 2), (2_500, 4), (12_000, 8)], [3, 4, 0, 0, 0, 0, 8]),
        ([(0, 1), (100_000, 2)], [1, 0, 0, 0, 0, 0, 2]),
        # Clocks may be set back between attempts.
        ([(5_000, 1), (1_000, 2)], [3]),
    ],
)
def test_token_rate_has_at_most_twelve_parts_of_equal_width(tokens: list[tuple[int, int]], bins: list[int]) -> None:
    rate = TokenRate()
    for time, count in tokens:
        rate.add(time, count)
    assert rate.bins == bins
