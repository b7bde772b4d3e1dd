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
    "stuck", "lost", "broken", "output", "result", "effect", "order", "follower", "answer", "cancel", "worker"
]
"""Error category:

* `stuck`: The run did not become idle before the timeout.
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


class Wrong(NamedTuple):
    """Failed check."""

    kind: Kind
    what: str
    """Error message."""
    task_id: str | None = None
    """Run id, or None for worker errors."""

    @override
    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"


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
        wrong: Failed checks.
    """

    states: Counter[str] = field(default_factory=Counter[str])
    faults: Counter[str] = field(default_factory=Counter[str])
    skipped: Counter[str] = field(default_factory=Counter[str])
    take_overs: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    acknowledged: int = 0
    effects: int = 0
    wrong: list[Wrong] = field(default_factory=list[Wrong])

    @property
    def runs(self) -> int:
        """Number of runs."""
        return self.states.total()

    @property
    def kinds(self) -> Mapping[Kind, int]:
        """Number of failed checks by kind, including zeros."""
        found = Counter(wrong.kind for wrong in self.wrong)
        return {kind: found[kind] for kind in KINDS}

    def check(self) -> None:
        """Raise an error if any check failed.

        Raises:
            AssertionError: Contains the summary and the first 20 failed checks.
        """
        if self.wrong:
            more = f"\n... and {len(self.wrong) - 20} more" if len(self.wrong) > 20 else ""
            raise AssertionError("\n".join([str(self), *map(str, self.wrong[:20])]) + more)

    def __add__(self, other: Report) -> Report:
        overs = {
            kind: [*self.take_overs.get(kind, ()), *other.take_overs.get(kind, ())]
            for kind in self.take_overs.keys() | other.take_overs.keys()
        }
        return Report(
            states=self.states + other.states,
            faults=self.faults + other.faults,
            skipped=self.skipped + other.skipped,
            take_overs=overs,
            acknowledged=self.acknowledged + other.acknowledged,
            effects=self.effects + other.effects,
            wrong=[*self.wrong, *other.wrong],
        )

    @override
    def __str__(self) -> str:
        states = _counts(self.states.most_common()) or "none"
        faults = _counts(sorted(self.faults.items())) or "no faults"
        skipped = f" ({_counts(sorted(self.skipped.items()))} left out)" if self.skipped.total() else ""
        overs = "; ".join(
            f"{len(seconds)} take-overs after {kind}: p50 {_part(seconds, 0.5):.1f} s, "
            f"p90 {_part(seconds, 0.9):.1f} s, max {max(seconds):.1f} s"
            for kind, seconds in sorted(self.take_overs.items())
        )
        wrong = f"{len(self.wrong)} things wrong ({_counts(self.kinds.items())})"
        return (
            f"{self.runs} runs ({states}); {faults}{skipped}; {overs or 'no take-overs'}; {self.acknowledged} "
            f"checkpoints and {self.effects} effects; {wrong}"
        )


def _counts(counts: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in counts)


def _part(seconds: Sequence[float], part: float) -> float:
    return sorted(seconds)[min(len(seconds) - 1, int(part * len(seconds)))]


Seen = tuple[int, int, str, int]
"""Event summary: seq, attempt, kind and checksum."""


def seen(event: Event) -> Seen:
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

    def at(self, seq: int) -> int | None:
        """Return the checksum up to and including an event, or None if the event is missing."""
        return self._sums.get(seq)


def digest_of(events: Iterable[Event], attempt: int) -> Digest:
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
        seen: Events received by the follower.
        saw_its_end: True if the follower reached the end of the stream.
        failed: Error raised by the follower.
        answered: Input ids of acknowledged answers.
        refused: Error messages for refused answers, by input id.
        cancelling: True if a cancel was requested.
        cancelled_at: Time of the cancel acknowledgement, in milliseconds since 1970.
    """

    task_id: str
    context_id: str
    prompt: str = ""
    seen: list[Seen] = field(default_factory=list[Seen])
    saw_its_end: bool = False
    failed: str | None = None
    answered: list[str] = field(default_factory=list[str])
    refused: dict[str, str] = field(default_factory=dict[str, str])
    cancelling: bool = False
    cancelled_at: int | None = None
