"""Trials and statistics over them."""

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


Verdict = Literal["better", "worse", "unclear", "same"]


@dataclass(frozen=True, slots=True)
class CaseChange:
    """A case whose score changed."""

    case: str
    before: float
    after: float

    @property
    def difference(self) -> float:
        """The score after less that before."""
        return self.after - self.before


@dataclass(frozen=True, slots=True)
class Change:
    """How one scorer changed, over the cases that both reports have."""

    scorer: str
    better: Better
    """Whether higher or lower is better."""
    variant: tuple[str, str]
    """Before and after; two names where one variant is compared with another."""
    cases: int
    before: float
    after: float
    interval: Interval
    """Of the mean difference of the cases, by a paired bootstrap."""
    verdict: Verdict
    """`better` or `worse` where the interval leaves zero out, `same` where no case differs, and else `unclear`."""
    regressions: tuple[CaseChange, ...]
    """The cases that got worse, the worst first."""
    improvements: tuple[CaseChange, ...]
    """The cases that got better, the best first."""

    @property
    def difference(self) -> float:
        """The mean after less that before."""
        return self.after - self.before


class Trial(Wire):
    """One run of one case by one variant, and its scores."""

    variant: str
    case: str
    repeat: int = 1
    """Counted from 1."""
    task_id: str
    """The run; with a log it is there."""
    input: Any = None
    """What was asked, as a text where it is messages."""
    expected: Any = None
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])
    state: State
    content: str = ""
    """The text of the answer, partial where there is none."""
    error: str | None = None
    """Why there is no answer."""
    usage: Usage = Field(default_factory=Usage)
    """What the run took, that of judging models not included."""
    seconds: float = 0.0
    """The time that the run went on; what lay between two attempts does not count."""
    scores: dict[str, Score] = Field(default_factory=dict[str, Score])
    """By the names of the scorers; one that does not apply is not there."""

    @property
    def failed(self) -> bool:
        """Whether there is no answer, or a scorer has failed."""
        return self.error is not None or any(score.error is not None for score in self.scores.values())

    @property
    def reasons(self) -> list[str]:
        """What went wrong, a line for each."""
        own = [] if self.error is None else [self.error]
        return own + [f"{name}: {score.error}" for name, score in self.scores.items() if score.error is not None]


class Measure(Wire):
    """What a report knows of a scorer."""

    name: str
    better: Better = "higher"


class Trials(Wire):
    """The trials of an experiment, in the order of its variants, cases and repeats."""

    version: Literal[1] = 1
    name: str
    created: int
    """Milliseconds since 1970."""
    planned: int
    """How many trials there are when it is complete."""
    measures: list[Measure]
    variants: list[str]
    trials: list[Trial] = Field(repr=False)

    # -- the statistics

    def of(self, variant: str) -> Self:
        """Take the part of one variant.

        Raises:
            ConfigurationError: There is no such variant.
        """
        if variant not in self.variants:
            raise ConfigurationError(
                f"the report has no variant {variant!r}: it has {', '.join(map(repr, self.variants))}"
            )
        trials = [trial for trial in self.trials if trial.variant == variant]
        planned = self.planned // len(self.variants)
        return self.model_copy(update={"variants": [variant], "trials": trials, "planned": planned})

    def mean(self, name: str) -> float:
        """Average the scores of a scorer: over the repeats of each case first, and then over the cases.

        A run that has no answer counts 0 for each scorer of answers, and is left out where lower is better.

        Args:
            name: The scorer.

        Raises:
            ScoreMissing: The scorer failed for a trial, applied to none, or no run has an answer.
            ConfigurationError: There is no such scorer, it gives labels, or the report has several variants.
        """
        self._see_that_none_is_missing(name)
        return fmean(self.by_case(name).values())

    def interval(self, name: str, level: float = 0.95) -> Interval:
        """Estimate how certain the mean is: `bootstrap` over the cases.

        Args:
            name: The scorer.
            level: The probability.

        Raises:
            ScoreMissing: As for `mean`.
            ConfigurationError: As for `mean`, or the level does not lie between 0 and 1.
        """
        self._see_that_none_is_missing(name)
        return bootstrap([*self.by_case(name).values()], level)

    def by_case(self, name: str) -> dict[str, float]:
        """Average the scores of each case, by its id. Runs without a value are left out, as where the scorer failed.

        Raises:
            ConfigurationError: As for `mean`.
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
        """Count the labels of a scorer; a trial without one counts as `(none)`.

        Raises:
            ConfigurationError: There is no such scorer.
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
        """Find a scorer by its name.

        Raises:
            ConfigurationError: There is none.
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
        """The trials that have no answer, or where a scorer failed."""
        return [trial for trial in self.trials if trial.failed]

    @property
    def usage(self) -> Usage:
        """The tokens of all runs, those of judging models not included."""
        return sum((trial.usage for trial in self.trials), Usage())

    @property
    def judging(self) -> Usage:
        """The tokens that judging models took."""
        used = (score.usage for trial in self.trials for score in trial.scores.values() if score.usage is not None)
        return sum(used, Usage())
