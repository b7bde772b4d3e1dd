"""Means and their intervals."""

from __future__ import annotations

from random import Random
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rxloop import ConfigurationError
from rxloop.evals.trials import bootstrap

VALUES = st.lists(st.floats(-1_000, 1_000, allow_nan=False).map(lambda value: round(value, 6)), min_size=1, max_size=30)


@settings(max_examples=20)
@given(VALUES)
def test_the_interval_holds_the_mean_and_lies_within_the_values(values: list[float]) -> None:
    low, high = bootstrap(values)
    mean, slack = fmean(values), 1e-9 * max(map(abs, values))
    assert low - slack <= mean <= high + slack
    assert min(values) - slack <= low
    assert high <= max(values) + slack


@settings(max_examples=20)
@given(VALUES)
def test_the_interval_of_the_negated_values_is_the_mirror_image(values: list[float]) -> None:
    low, high = bootstrap(values)
    assert bootstrap([-value for value in values]) == (-high, -low)


@settings(max_examples=20)
@given(VALUES)
def test_the_same_values_give_the_same_interval(values: list[float]) -> None:
    assert bootstrap(values) == bootstrap(values)


@settings(max_examples=20)
@given(VALUES)
def test_a_higher_level_gives_no_narrower_interval(values: list[float]) -> None:
    narrow, wide = bootstrap(values, 0.5), bootstrap(values, 0.99)
    assert wide.low <= narrow.low
    assert narrow.high <= wide.high


def test_it_covers_the_true_mean_about_as_often_as_it_says() -> None:
    random, hits = Random(7), 0
    for _ in range(100):
        low, high = bootstrap([float(random.random() < 0.7) for _ in range(40)])
        hits += low <= 0.7 <= high
    assert 88 <= hits <= 100


def test_nothing_and_no_level_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least one value"):
        bootstrap([])
    for level in (0, 1, 95):
        with pytest.raises(ConfigurationError, match="between 0 and 1"):
            bootstrap([1.0], level)
