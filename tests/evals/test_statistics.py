"""Tests for confidence intervals of means."""

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
def test_interval_contains_the_mean_and_is_within_the_values(values: list[float]) -> None:
    low, high = bootstrap(values)
    mean, slack = fmean(values), 1e-9 * max(map(abs, values))
    assert low - slack <= mean <= high + slack
    assert min(values) - slack <= low
    assert high <= max(values) + slack


@settings(max_examples=20)
@given(VALUES)
def test_interval_of_negated_values_is_mirrored(values: list[float]) -> None:
    low, high = bootstrap(values)
    assert bootstrap([-value for value in values]) == (-high, -low)


@settings(max_examples=20)
@given(VALUES)
def test_equal_values_have_equal_intervals(values: list[float]) -> None:
    assert bootstrap(values) == bootstrap(values)


@settings(max_examples=20)
@given(VALUES)
def test_interval_is_wider_at_a_higher_level(values: list[float]) -> None:
    narrow, wide = bootstrap(values, 0.5), bootstrap(values, 0.99)
    assert wide.low <= narrow.low
    assert narrow.high <= wide.high


def test_interval_covers_the_true_mean_at_its_level() -> None:
    random, hits = Random(7), 0
    for _ in range(100):
        low, high = bootstrap([float(random.random() < 0.7) for _ in range(40)])
        hits += low <= 0.7 <= high
    assert 88 <= hits <= 100


def test_bootstrap_rejects_empty_values_and_invalid_levels() -> None:
    with pytest.raises(ConfigurationError, match="values must not be empty"):
        bootstrap([])
    for level in (0, 1, 95):
        with pytest.raises(ConfigurationError, match="between 0 and 1"):
            bootstrap([1.0], level)
