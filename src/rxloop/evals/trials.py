"""Trials and statistics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import fsum
from random import Random
from statistics import fmean
from typing import Any, Literal, NamedTuple, Self

from pydantic import Field

from rxloop.errors import ConfigurationError, ScoreMissing
from rxloop.evals.scorer import Better, Score
from rxloop.protocol.events import State
from rxloop.protocol.messages import Usage, Wire

RESAMPLES = 2_000

SEED = 1


class Interval(NamedTuple):
    """Confidence interval for the mean."""

    low: float
    high: float


def bootstrap(values: Sequence[float], level: float = 0.95) -> Interval:
    """Return a confidence interval for the mean, using the percentile bootstrap.

    The random seed is constant, so equal values result in equal intervals. Values that never occurred cannot be drawn:
    ten successes out of ten result in (1, 1), although ten is a small number.

    Args:
        values: One value per case. Average repeated runs first, because they are not independent.
        level: Confidence level, such as 0.95.

    Raises:
        ConfigurationError: There are no values, or the level is not between 0 and 1.
    """
    if not 0 < level < 1:
        raise ConfigurationError(f"level must be between 0 and 1, got {level!r}")
    if not values:
        raise ConfigurationError("values must not be empty")
    return _resample(tuple(values), level)


# Cached because several tables use the same intervals and computing them is slow.
@lru_cache(maxsize=256)
def _resample(values: tuple[float, ...], level: float) -> Interval:
    random, size = Random(SEED), len(values)
    means = sorted(fsum(random.choices(values, k=size)) / size for _ in range(RESAMPLES))
    # Remove the same number of means at both ends, so that negated values have the mirrored interval.
    trim = int(RESAMPLES * (1 - level) / 2)
    return Interval(means[trim], means[-1 - trim])


Verdict = Literal["better", "worse", "unclear", "same"]


@dataclass(frozen=True, slots=True)
class CaseChange:
    """Score difference for a case."""

    case: str
    before: float
    after: float

    @property
    def difference(self) -> float:
        """Score difference (after minus before)."""
        return self.after - self.before


@dataclass(frozen=True, slots=True)
class Change:
    """Score difference for a scorer, based on the cases in both reports."""

    scorer: str
    better: Better
    """Better direction, higher or lower."""
    variant: tuple[str, str]
    """Variants before and after. They differ if one variant is compared to another."""
    cases: int
    before: float
    after: float
    interval: Interval
    """Interval of the mean difference, from a paired bootstrap."""
    verdict: Verdict
    """`better` or `worse` if the interval excludes zero, `same` if no case differs, and `unclear` otherwise."""
    regressions: tuple[CaseChange, ...]
    """Worse cases, starting with the worst."""
    improvements: tuple[CaseChange, ...]
    """Better cases, starting with the best."""

    @property
    def difference(self) -> float:
        """Mean difference (after minus before)."""
        return self.after - self.before


class Trial(Wire):
    """Outcome of running a case with a variant, including scores."""

    variant: str
    case: str
    repeat: int = 1
    """Repetition, starting at 1."""
    task_id: str
    """Task id."""
    input: Any = None
    """Prompt of the run. Messages are converted to text."""
    expected: Any = None
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])
    state: State
    content: str = ""
    """Answer text, which may be partial if the run failed."""
    error: str | None = None
    """Reason for a missing answer."""
    usage: Usage = Field(default_factory=Usage)
    """Token usage of the run, excluding judges."""
    seconds: float = 0.0
    """Duration in seconds, excluding time between attempts."""
    scores: dict[str, Score] = Field(default_factory=dict[str, Score])
    """Scores by scorer name, for scorers that apply."""

    @property
    def failed(self) -> bool:
        """True if the answer is missing or a scorer failed."""
        return self.error is not None or any(score.error is not None for score in self.scores.values())

    @property
    def reasons(self) -> list[str]:
        """Reasons for the failure."""
        own = [] if self.error is None else [self.error]
        return own + [f"{name}: {score.error}" for name, score in self.scores.items() if score.error is not None]


class Measure(Wire):
    """Name and direction of a scorer."""

    name: str
    better: Better = "higher"


class Trials(Wire):
    """Trials of an experiment, ordered by variant, case and repetition."""

    version: Literal[1] = 1
    name: str
    created: int
    """Creation time in milliseconds since 1970."""
    planned: int
    """Number of trials in a complete report."""
    measures: list[Measure]
    variants: list[str]
    trials: list[Trial] = Field(repr=False)

    # -- statistics

    def of(self, variant: str) -> Self:
        """Return the trials of one variant.

        Raises:
            ConfigurationError: The variant does not exist.
        """
        if variant not in self.variants:
            raise ConfigurationError(f"unknown variant {variant!r}, expected {', '.join(map(repr, self.variants))}")
        trials = [trial for trial in self.trials if trial.variant == variant]
        planned = self.planned // len(self.variants)
        return self.model_copy(update={"variants": [variant], "trials": trials, "planned": planned})

    def mean(self, name: str) -> float:
        """Return the mean score over all cases.

        Repeated runs of a case are averaged first. A run without an answer counts as 0 if higher is better, and is
        omitted otherwise.

        Args:
            name: Name of the scorer.

        Raises:
            ScoreMissing: The scorer failed for a trial, applies to no trial, or has no value because no run has an
                answer.
            ConfigurationError: The scorer does not exist or returns labels, or the report has several variants.
        """
        self._check_complete(name)
        return fmean(self.by_case(name).values())

    def interval(self, name: str, level: float = 0.95) -> Interval:
        """Return a confidence interval for the mean, from `bootstrap` over all cases.

        Args:
            name: Name of the scorer.
            level: Confidence level.

        Raises:
            ScoreMissing: As in `mean`.
            ConfigurationError: As in `mean`, or the level is not between 0 and 1.
        """
        self._check_complete(name)
        return bootstrap([*self.by_case(name).values()], level)

    def by_case(self, name: str) -> dict[str, float]:
        """Return the mean score for each case id. Runs without a value and failed scorers are omitted.

        Raises:
            ConfigurationError: As in `mean`.
        """
        if len(self.variants) > 1:
            raise ConfigurationError(f"the report must have one variant; use report.of({self.variants[0]!r})")
        values: dict[str, list[float]] = {}
        for case, score in self._list_scores(name):
            if isinstance(score.value, str):
                raise ConfigurationError(
                    f"{name!r} returns labels, such as {score.value!r}; use report.labels({name!r})"
                )
            if score.value is not None:
                values.setdefault(case, []).append(float(score.value))
        return {case: fmean(each) for case, each in values.items()}

    def labels(self, name: str) -> Counter[str]:
        """Return the number of trials per label. Trials without a label are counted as `(none)`.

        Raises:
            ConfigurationError: The scorer does not exist.
        """
        return Counter(
            score.value if isinstance(score.value, str) else "(none)" for _, score in self._list_scores(name)
        )

    def _list_scores(self, name: str) -> Iterable[tuple[str, Score]]:
        self.measure(name)
        return ((trial.case, trial.scores[name]) for trial in self.trials if name in trial.scores)

    def _check_complete(self, name: str) -> None:
        scores = [score for _, score in self._list_scores(name)]
        errors = [score.error for score in scores if score.error is not None]
        if errors:
            raise ScoreMissing(
                f"{name!r} failed for {len(errors)} of {len(scores)} trials, the first error is {errors[0]}; "
                f"use report.by_case({name!r}) for the other trials"
            )
        if not scores:
            raise ScoreMissing(f"missing score {name!r}; the scorer applied to none of {len(self.trials)} trials")
        if all(score.value is None for score in scores):
            raise ScoreMissing(f"missing score {name!r}; none of {len(scores)} runs has an answer")

    def measure(self, name: str) -> Measure:
        """Look up the name and direction of a scorer.

        Raises:
            ConfigurationError: The scorer does not exist.
        """
        for measure in self.measures:
            if measure.name == name:
                return measure
        raise ConfigurationError(
            f"unknown scorer {name!r}, expected {', '.join(measure.name for measure in self.measures)}"
        )

    # -- sums

    @property
    def failures(self) -> list[Trial]:
        """Trials with a missing answer or a failed scorer."""
        return [trial for trial in self.trials if trial.failed]

    @property
    def usage(self) -> Usage:
        """Tokens used by all runs, without judges."""
        return sum((trial.usage for trial in self.trials), Usage())

    @property
    def judging(self) -> Usage:
        """Tokens used by judges."""
        used = (score.usage for trial in self.trials for score in trial.scores.values() if score.usage is not None)
        return sum(used, Usage())
