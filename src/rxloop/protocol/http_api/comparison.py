"""Response bodies that compare two runs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rxloop.protocol.messages import Usage, Wire
from rxloop.protocol.model import is_missing
from rxloop.protocol.run_events import State

Change = Literal["same", "changed", "only"]
"""Result of comparing two events. `only`: one of the runs has no such event."""


class ComparedCost(Wire):
    """Cost of some events of a run, including nested agents."""

    model_calls: int
    tool_calls: int
    """Number of executed tool calls, excluding refused ones."""
    usage: Usage
    seconds: float
    """Duration in seconds, excluding time between attempts."""
    dollars: float | None = Field(default=None, exclude_if=is_missing)
    """Cost in US dollars. Missing if prices are missing for all models."""


class ComparedRun(Wire):
    """One of two compared runs."""

    task_id: str
    state: State
    """Final or current state of the run."""
    seq: int
    """Sequence number of the last event that was compared."""
    cost: ComparedCost
    """Cost of the whole run. For a fork, this includes the copied events."""
    cost_since: ComparedCost
    """Cost from the first difference on."""


class ComparedEvents(Wire):
    """Pair of events, or several consecutive pairs of equal events."""

    change: Change
    a: int | None = Field(default=None, exclude_if=is_missing)
    """Sequence number of the (first) event of the first run."""
    b: int | None = Field(default=None, exclude_if=is_missing)
    """Sequence number of the (first) event of the second run."""
    count: int = 1
    """Number of pairs. It is larger than 1 only for equal events."""
    last: tuple[int, int] | None = Field(default=None, exclude_if=is_missing)
    """Sequence numbers of the last pair of equal events, if there are several."""


class RunComparison(Wire):
    """Differences between two runs, ignoring ids, times, tokens and the order of concurrent events."""

    shared: int
    """Number of compared events before the first difference."""
    at: tuple[int | None, int | None] | None = None
    """Sequence numbers of the first different events. Missing if the runs are equal. The value of a run that ended
    before is null."""
    a: ComparedRun
    b: ComparedRun
    pairs: list[ComparedEvents]
    """All compared events."""
    more: int = Field(default=0, exclude_if=lambda count: not count)
    """Number of pairs that are left out, because there are too many."""
