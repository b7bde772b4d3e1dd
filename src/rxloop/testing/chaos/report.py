"""What came of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from typing_extensions import override


@dataclass
class Report:
    """What was done to the workers, and what the judge has found.

    Attributes:
        states: How many runs ended in which state.
        faults: How many workers were killed (`kill`), frozen (`freeze`) and told to stop (`stop`).
        take_overs: Seconds from each fault to the next attempt of a run that it has hit, by the kind of the fault.
        acknowledged: How many checkpoints somebody was told of.
        effects: How many calls of tools were begun that are not idempotent.
        wrong: What must not be, a sentence each.
    """

    states: Counter[str] = field(default_factory=Counter[str])
    faults: Counter[str] = field(default_factory=Counter[str])
    take_overs: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    acknowledged: int = 0
    effects: int = 0
    wrong: list[str] = field(default_factory=list[str])

    @property
    def runs(self) -> int:
        """How many runs there were."""
        return self.states.total()

    def check(self) -> None:
        """See that nothing is wrong.

        Raises:
            AssertionError: Something is; the message has all of it.
        """
        if self.wrong:
            more = f"\n... and {len(self.wrong) - 20} more" if len(self.wrong) > 20 else ""
            raise AssertionError("\n".join([str(self), *self.wrong[:20]]) + more)

    @override
    def __str__(self) -> str:
        states = ", ".join(f"{count} {state}" for state, count in self.states.most_common())
        faults = ", ".join(f"{count} {kind}" for kind, count in sorted(self.faults.items())) or "no faults"
        overs = "; ".join(
            f"{len(seconds)} take-overs after {kind}: p50 {_part(seconds, 0.5):.1f} s, "
            f"p90 {_part(seconds, 0.9):.1f} s, max {max(seconds):.1f} s"
            for kind, seconds in sorted(self.take_overs.items())
        )
        return (
            f"{self.runs} runs ({states}); {faults}; {overs or 'no take-overs'}; {self.acknowledged} checkpoints and "
            f"{self.effects} effects; {len(self.wrong)} things wrong"
        )


def _part(seconds: Sequence[float], part: float) -> float:
    return sorted(seconds)[min(len(seconds) - 1, int(part * len(seconds)))]
