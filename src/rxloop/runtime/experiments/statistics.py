"""Means and how certain they are: bootstrap intervals, the same ones each time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import fsum
from random import Random
from typing import NamedTuple

from rxloop.errors import ConfigurationError

RESAMPLES = 2_000
SEED = 1


class Interval(NamedTuple):
    """Where a mean lies, with the probability that was asked for."""

    low: float
    high: float


def bootstrap(values: Sequence[float], level: float = 0.95) -> Interval:
    """Estimate the interval of the mean of values by the percentile bootstrap.

    It resamples with a generator of its own that always begins alike: the same values give the same interval. What was
    never seen cannot be drawn: of ten successes out of ten it says (1, 1), however few ten are.

    Args:
        values: One for each case; what repeats of a case gave is averaged before, since they are not independent.
        level: The probability, such as 0.95.

    Raises:
        ConfigurationError: There are no values, or the level does not lie between 0 and 1.
    """
    if not 0 < level < 1:
        raise ConfigurationError(f"level must lie between 0 and 1, such as 0.95, not {level!r}")
    if not values:
        raise ConfigurationError("an interval needs at least one value")
    return _bootstrap(tuple(values), level)


# A table, a page and a comparison of one report ask for the same ones, and each takes a moment with many cases.
@lru_cache(maxsize=256)
def _bootstrap(values: tuple[float, ...], level: float) -> Interval:
    random, size = Random(SEED), len(values)
    means = sorted(fsum(random.choices(values, k=size)) / size for _ in range(RESAMPLES))
    # The same number of means is cut off at either end, so that the interval of the negated values is the mirror image.
    cut = int(RESAMPLES * (1 - level) / 2)
    return Interval(means[cut], means[-1 - cut])
