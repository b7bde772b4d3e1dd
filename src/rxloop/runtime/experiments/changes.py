"""What changed from one report to another, scorer by scorer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rxloop.runtime.experiments.scorer import Better
from rxloop.runtime.experiments.statistics import Interval

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
