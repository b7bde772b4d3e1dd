"""Chaos test report and event checksums."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args
from zlib import crc32

from typing_extensions import override

from rxloop.protocol.events import Event

Kind = Literal[
    "unfinished",
    "stuck",
    "lost",
    "broken",
    "output",
    "result",
    "effect",
    "order",
    "follower",
    "answer",
    "cancel",
    "worker",
]
"""Error category:

* `unfinished`: The run was not idle when the time limit ended, for example because the machine is overloaded. Checks
  that need an idle run were skipped.
* `stuck`: The run waits for an answer that it cannot get.
* `lost`: An acknowledged run or checkpoint is missing from the log.
* `broken`: The log has gaps, multiple ends or interleaved attempts, or violates the event grammar.
* `output`: The output does not match the expected output.
* `result`: A call has multiple results, or a question has multiple answers.
* `effect`: A non-idempotent tool was called twice or before the call was stored.
* `order`: Runs in the same conversation overlapped.
* `follower`: A follower received different or fewer events than the log contains.
* `answer`: An acknowledged answer was not applied.
* `cancel`: A run continued after an acknowledged cancel, or was cancelled without a request.
* `worker`: A worker crashed or failed to restart.
"""

KINDS: tuple[Kind, ...] = get_args(Kind)

ACTIVE = ("submitted", "working")
"""States of active runs."""


class Violation(NamedTuple):
    """Failed check."""

    kind: Kind
    message: str
    """Description of the violation."""
    task_id: str | None = None
    """Run id, or None for worker errors."""

    @override
    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


@dataclass
class Report:
    """Chaos test report. Use `+` to combine reports.

    Attributes:
        states: Number of runs by state.
        faults: Number of injected faults by kind: `kill`, `freeze`, `stop`, or a custom kind.
        skipped: Number of faults skipped because fewer than two workers were idle. Increase the number of workers to
            avoid this.
        take_overs: Seconds between a fault and the next attempt of an affected run, by kind of fault.
        acknowledged: Number of acknowledged checkpoints.
        effects: Number of calls to non-idempotent tools.
        violations: Failed checks.
    """

    states: Counter[str] = field(default_factory=Counter[str])
    faults: Counter[str] = field(default_factory=Counter[str])
    skipped: Counter[str] = field(default_factory=Counter[str])
    take_overs: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    acknowledged: int = 0
    effects: int = 0
    violations: list[Violation] = field(default_factory=list[Violation])

    @property
    def runs(self) -> int:
        """Number of runs."""
        return self.states.total()

    @property
    def kinds(self) -> Mapping[Kind, int]:
        """Number of failed checks by kind, including zeros."""
        counts = Counter(violation.kind for violation in self.violations)
        return {kind: counts[kind] for kind in KINDS}

    def check(self) -> None:
        """Raise an error if any check failed.

        Raises:
            AssertionError: Contains the summary and the first 20 failed checks.
        """
        if self.violations:
            more = f"\n... and {len(self.violations) - 20} more" if len(self.violations) > 20 else ""
            raise AssertionError("\n".join([str(self), *map(str, self.violations[:20])]) + more)

    def __add__(self, other: Report) -> Report:
        take_overs = {
            kind: [*self.take_overs.get(kind, ()), *other.take_overs.get(kind, ())]
            for kind in self.take_overs.keys() | other.take_overs.keys()
        }
        return Report(
            states=self.states + other.states,
            faults=self.faults + other.faults,
            skipped=self.skipped + other.skipped,
            take_overs=take_overs,
            acknowledged=self.acknowledged + other.acknowledged,
            effects=self.effects + other.effects,
            violations=[*self.violations, *other.violations],
        )

    @override
    def __str__(self) -> str:
        states = _format_counts(self.states.most_common()) or "none"
        faults = _format_counts(sorted(self.faults.items())) or "no faults"
        skipped = f" ({_format_counts(sorted(self.skipped.items()))} skipped)" if self.skipped.total() else ""
        take_overs = "; ".join(
            f"{len(seconds)} take-overs after {kind}: p50 {_compute_percentile(seconds, 0.5):.1f} s, "
            f"p90 {_compute_percentile(seconds, 0.9):.1f} s, max {max(seconds):.1f} s"
            for kind, seconds in sorted(self.take_overs.items())
        )
        violations = f"{len(self.violations)} violations ({_format_counts(self.kinds.items())})"
        return (
            f"{self.runs} runs ({states}); {faults}{skipped}; {take_overs or 'no take-overs'}; {self.acknowledged} "
            f"checkpoints and {self.effects} effects; {violations}"
        )


def _format_counts(counts: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in counts)


def _compute_percentile(seconds: Sequence[float], share: float) -> float:
    return sorted(seconds)[min(len(seconds) - 1, int(share * len(seconds)))]


EventSummary = tuple[int, int, str, int]
"""Event summary: seq, attempt, kind and checksum."""


def summarize(event: Event) -> EventSummary:
    """Return an event summary."""
    return event.seq, event.attempt, event.kind, crc32(event.to_json())


class Digest:
    """Rolling checksum of an attempt's events."""

    def __init__(self) -> None:
        """Create an empty checksum."""
        self._sums: dict[int, int] = {}
        self._last = 0

    def add(self, event: Event) -> None:
        """Update the checksum with the next event."""
        self._last = self._sums[event.seq] = crc32(event.to_json(), self._last)

    def get(self, seq: int) -> int | None:
        """Return the checksum up to and including an event, or None if the event is missing."""
        return self._sums.get(seq)


def compute_digest(events: Iterable[Event], attempt: int) -> Digest:
    """Compute a checksum for the events in an attempt."""
    digest = Digest()
    # Exclude the `task` event, because workers start recording at the status update.
    for event in events:
        if event.attempt == attempt and event.kind != "task" and event.parent_task_id is None:
            digest.add(event)
    return digest


@dataclass
class Witness:
    """Client-side observations of a run.

    Attributes:
        task_id: Run id. The start of the run was acknowledged.
        context_id: Conversation id.
        prompt: Prompt.
        received: Events received by the follower.
        reached_end: True if the follower reached the end of the stream.
        failed: Error raised by the follower.
        answered: Input ids of acknowledged answers.
        refused: Error messages for refused answers, by input id.
        cancel_requested: True if a cancel was requested.
        cancelled_at: Time of the cancel acknowledgement, in milliseconds since 1970.
        unfinished: True if the run was not idle when the time limit ended.
    """

    task_id: str
    context_id: str
    prompt: str = ""
    received: list[EventSummary] = field(default_factory=list[EventSummary])
    reached_end: bool = False
    failed: str | None = None
    answered: list[str] = field(default_factory=list[str])
    refused: dict[str, str] = field(default_factory=dict[str, str])
    cancel_requested: bool = False
    cancelled_at: int | None = None
    unfinished: bool = False
