"""Report of a run under faults, and the check sums of events that it is made from."""

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
"""What may be wrong:

* `stuck`: a run has not come to rest in time;
* `lost`: a run or a checkpoint is not in the log as somebody was told;
* `broken`: the log of a run has gaps, two ends, attempts mixed up, or breaks the grammar of the protocol;
* `output`: a run has another output than was expected;
* `result`: a call has two results, or a question two answers;
* `effect`: a tool that is not idempotent was begun twice for one call, or before the log had it;
* `order`: a run went on while an earlier one of its conversation did;
* `follower`: a follower saw something else than the log has, or not all of it;
* `answer`: an answer was acknowledged, and not taken;
* `cancel`: a cancel was acknowledged, and the run went on; or a run was cancelled by nobody;
* `worker`: a worker ended by itself, or did not start again.
"""

KINDS: tuple[Kind, ...] = get_args(Kind)


class Wrong(NamedTuple):
    """One thing that must not be."""

    kind: Kind
    what: str
    """A sentence that says so."""
    task_id: str | None = None
    """The run, if it is about one."""

    @override
    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"


@dataclass
class Report:
    """What was done to the workers, and what the judge has found. Reports can be added up.

    Attributes:
        states: How many runs ended in which state.
        faults: How many workers were killed (`kill`), frozen (`freeze`), told to stop (`stop`), and what else was done.
        skipped: How many faults were due and left out, since fewer than two workers were idle: take more workers.
        take_overs: Seconds from each fault to the next attempt of a run that it has hit, by the kind of the fault.
        acknowledged: How many checkpoints somebody was told of.
        effects: How many calls of tools were begun that are not idempotent.
        wrong: What must not be.
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
        """How many runs there were."""
        return self.states.total()

    @property
    def kinds(self) -> Mapping[Kind, int]:
        """How many things are wrong of each kind, none included."""
        found = Counter(wrong.kind for wrong in self.wrong)
        return {kind: found[kind] for kind in KINDS}

    def check(self) -> None:
        """See that nothing is wrong.

        Raises:
            AssertionError: Something is; the message has all of it.
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
"""Of an event: `seq`, attempt, kind, and a check sum of all of it."""


def seen(event: Event) -> Seen:
    """What is remembered of an event."""
    return event.seq, event.attempt, event.kind, crc32(event.to_json())


class Digest:
    """What an attempt has written, as one number for each of its events: what the part up to that one is."""

    def __init__(self) -> None:
        """Begin with an attempt, before its first event."""
        self._sums: dict[int, int] = {}
        self._last = 0

    def add(self, event: Event) -> None:
        """Add the next event."""
        self._last = self._sums[event.seq] = crc32(event.to_json(), self._last)

    def at(self, seq: int) -> int | None:
        """The number for the part up to that event; None if the attempt has not written it."""
        return self._sums.get(seq)


def digest_of(events: Iterable[Event], attempt: int) -> Digest:
    """What an attempt has written, as a log has it."""
    digest = Digest()
    # As it is told from: an attempt begins with its status, after `task` in the first one.
    for event in events:
        if event.attempt == attempt and event.kind != "task" and event.parent_task_id is None:
            digest.add(event)
    return digest


@dataclass
class Witness:
    """What somebody outside was told of a run.

    Attributes:
        task_id: The run, whose start was acknowledged.
        context_id: Its conversation.
        prompt: What was asked.
        seen: The events that its follower saw.
        saw_its_end: The follower was told that there is nothing more.
        failed: Why the follower did not come to the end, if it failed.
        answered: The questions whose answers were acknowledged.
        refused: The questions whose answers were not taken, and why.
        cancelling: Somebody has asked to cancel it.
        cancelled_at: When that was acknowledged, in milliseconds since 1970.
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
