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
        raise ConfigurationError("an interval needs at least one value")
    return _bootstrap(tuple(values), level)


# Cached because several tables use the same intervals and computing them is slow.
@lru_cache(maxsize=256)
def _bootstrap(values: tuple[float, ...], level: float) -> Interval:
    random, size = Random(SEED), len(values)
    means = sorted(fsum(random.choices(values, k=size)) / size for _ in range(RESAMPLES))
    # Remove the same number of means at both ends, so that negated values have the mirrored interval.
    cut = int(RESAMPLES * (1 - level) / 2)
    return Interval(means[cut], means[-1 - cut])


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
    """Run of a case by a variant, with its scores."""

    variant: str
    case: str
    repeat: int = 1
    """Repetition, starting at 1."""
    task_id: str
    """Task id."""
    input: Any = None
    """Prompt, as text if it consists of messages."""
    expected: Any = None
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])
    state: State
    content: str = ""
    """Text of the answer, which may be partial if the run failed."""
    error: str | None = None
    """Reason for a missing answer."""
    usage: Usage = Field(default_factory=Usage)
    """Tokens used by the run, without judges."""
    seconds: float = 0.0
    """Duration in seconds, without the time between attempts."""
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
    """Properties of a scorer in a report."""

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

    # -- the statistics

    def of(self, variant: str) -> Self:
        """Return a report that is limited to the given variant.

        Raises:
            ConfigurationError: The variant does not exist.
        """
        if variant not in self.variants:
            raise ConfigurationError(
                f"the report has no variant {variant!r}: it has {', '.join(map(repr, self.variants))}"
            )
        trials = [trial for trial in self.trials if trial.variant == variant]
        planned = self.planned // len(self.variants)
        return self.model_copy(update={"variants": [variant], "trials": trials, "planned": planned})

    def mean(self, name: str) -> float:
        """Return the mean score, based on the mean for each case.

        A run without an answer counts as 0, or is omitted if lower is better.

        Args:
            name: Name of the scorer.

        Raises:
            ScoreMissing: The scorer failed for a trial or never applied, or no run has an answer.
            ConfigurationError: The scorer does not exist or returns labels, or the report has several variants.
        """
        self._see_that_none_is_missing(name)
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
        self._see_that_none_is_missing(name)
        return bootstrap([*self.by_case(name).values()], level)

    def by_case(self, name: str) -> dict[str, float]:
        """Return the mean score for each case id. Runs without a value and failed scorers are omitted.

        Raises:
            ConfigurationError: As in `mean`.
        """
        if len(self.variants) > 1:
            raise ConfigurationError(f"the report has several variants: report.of({self.variants[0]!r}) takes one")
        values: dict[str, list[float]] = {}
        for case, score in self._scores(name):
            if isinstance(score.value, str):
                raise ConfigurationError(
                    f"{name!r} gives labels, such as {score.value!r}: report.labels({name!r}) counts them"
                )
            if score.value is not None:
                values.setdefault(case, []).append(float(score.value))
        return {case: fmean(each) for case, each in values.items()}

    def labels(self, name: str) -> Counter[str]:
        """Return the number of trials per label. Trials without a label are counted as `(none)`.

        Raises:
            ConfigurationError: The scorer does not exist.
        """
        return Counter(score.value if isinstance(score.value, str) else "(none)" for _, score in self._scores(name))

    def _scores(self, name: str) -> Iterable[tuple[str, Score]]:
        self.measure(name)
        return ((trial.case, trial.scores[name]) for trial in self.trials if name in trial.scores)

    def _see_that_none_is_missing(self, name: str) -> None:
        scores = [score for _, score in self._scores(name)]
        errors = [score.error for score in scores if score.error is not None]
        if errors:
            raise ScoreMissing(
                f"{name!r} failed for {len(errors)} of {len(scores)} trials, the first time with {errors[0]}; "
                f"report.by_case({name!r}) has the others"
            )
        if not scores:
            raise ScoreMissing(f"there is no score of {name!r}: it applied to none of {len(self.trials)} trials")
        if all(score.value is None for score in scores):
            raise ScoreMissing(f"there is no score of {name!r}: none of {len(scores)} runs has an answer")

    def measure(self, name: str) -> Measure:
        """Return a scorer's properties.

        Raises:
            ConfigurationError: The scorer does not exist.
        """
        for measure in self.measures:
            if measure.name == name:
                return measure
        raise ConfigurationError(
            f"the report has no scorer {name!r}: it has {', '.join(m.name for m in self.measures)}"
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
