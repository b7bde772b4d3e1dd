"""Differences between two runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from rxloop.operators.views.compare import filter_comparable, format_event, split_at_difference
from rxloop.operators.views.cost import Spending
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.log_retry import read_log
from rxloop.pipeline.records import get_conversation
from rxloop.protocol.events import (
    Event,
    LLMCallEvent,
    State,
    StatusUpdateEvent,
    ToolStartEvent,
    UsageEvent,
)
from rxloop.protocol.messages import Message, Usage
from rxloop.storage.conversation import conversation

if TYPE_CHECKING:
    from rxloop.providers.catalog import Price

MAX_SHOWN_LINES = 8
"""Maximum number of lines shown for each run."""


@dataclass(frozen=True, slots=True)
class RunCost:
    """Cost of some events of a run, including nested agents."""

    model_calls: int
    tool_calls: int
    """Number of executed tool calls, excluding refused ones."""
    usage: Usage
    seconds: float
    """Wall-clock duration in seconds, excluding time between attempts."""
    dollars: float | None
    """Cost in US dollars. None if prices are missing for all models."""

    def __str__(self) -> str:
        money = f", ${self.dollars:.4f}" if self.dollars is not None else ""
        return (
            f"{_many(self.model_calls, 'model call')}, {_many(self.tool_calls, 'tool call')}, "
            f"{self.usage.input_tokens} tokens in, {self.usage.output_tokens} out, {self.seconds:.1f} s{money}"
        )


@dataclass(frozen=True, slots=True)
class RunSide:
    """One of two compared runs."""

    task_id: str
    state: State
    """Final or current state of the run."""
    events: tuple[Event, ...] = field(repr=False)
    """Events starting at the first difference. Tool calls in a message are sorted by call order."""
    cost: RunCost
    """Cost of the whole run. For a fork, this includes the copied events."""
    cost_since: RunCost
    """Cost from the first difference on."""

    def lines(self) -> list[str]:
        """Return a one-line description for each event."""
        return [format_event(event) for event in self.events]


@dataclass(frozen=True, slots=True)
class RunDiff:
    """First difference between two runs, with the following events and costs."""

    shared: int
    """Number of compared events before the first difference."""
    a: RunSide
    b: RunSide

    @property
    def first(self) -> tuple[Event | None, Event | None] | None:
        """First pair of different events, or None for equal runs. An event is None if its run ended earlier."""
        pair = (next(iter(self.a.events), None), next(iter(self.b.events), None))
        return None if pair == (None, None) else pair

    def __str__(self) -> str:
        if self.first is None:
            return f"{self.a.task_id} and {self.b.task_id} are the same, event for event\n{self._format_costs()}"
        parts = [f"The first {_many(self.shared, 'event')} are the same." if self.shared else "Nothing is the same."]
        for side in (self.a, self.b):
            lines = side.lines()
            shown = [f"  {text}" for text in lines[:MAX_SHOWN_LINES]] or ["  has ended here"]
            more = [f"  ... and {len(lines) - MAX_SHOWN_LINES} more"] if len(lines) > MAX_SHOWN_LINES else []
            parts += ["", f"{side.task_id} ({side.state})", *shown, *more]
        return "\n".join([*parts, "", self._format_costs()])

    def _format_costs(self) -> str:
        parts: list[str] = []
        for side in (self.a, self.b):
            parts.append(f"{side.task_id}: {side.cost}")
            if self.first is not None and self.shared:
                parts.append(f"  from the difference on: {side.cost_since}")
        return "\n".join(parts)


async def diff(log: EventLog, a: str, b: str, *, prices: Mapping[str, Price] | None = None) -> RunDiff:
    """Compare two runs.

    Messages, calls, results, thoughts and the end of the run are compared. Ids, numbers, times, tokens and attempts are
    ignored, as are the order in which the calls in a message ended, and the interleaving of strategy branches.

    Args:
        log: Event log with both runs.
        a: Task id of the first run.
        b: Task id of the second run.
        prices: Prices by model string, as in `op.cost`.

    Raises:
        UnknownRun: The log does not contain one of the runs.
    """
    runs = [await read_log(log.read, task_id) for task_id in (a, b)]
    before = [await conversation(log, get_conversation(events[0]), before=events[0].task_id) for events in runs]
    return compare_runs(runs[0], runs[1], before[0].messages, before[1].messages, prices=prices)


def compare_runs(
    a: Sequence[Event],
    b: Sequence[Event],
    before_a: Sequence[Message],
    before_b: Sequence[Message],
    *,
    prices: Mapping[str, Price] | None = None,
) -> RunDiff:
    """Compare the events of two runs, as `diff` does.

    Args:
        a: Events of the first run.
        b: Events of the second run.
        before_a: Messages of the conversation before the first run.
        before_b: Messages of the conversation before the second run.
        prices: Prices by model string.
    """
    lines = [filter_comparable(events) for events in (a, b)]
    remaining = split_at_difference(lines[0], lines[1], before_a, before_b)
    sides = [_side(*side, prices) for side in zip((a, b), lines, remaining, strict=True)]
    return RunDiff(len(lines[0]) - len(remaining[0]), *sides)


def measure_cost(events: Sequence[Event], prices: Mapping[str, Price] | None = None) -> RunCost:
    """Return the total cost of a run."""
    return _compute_cost(events, _compute_dollars(events, prices))


def _side(
    events: Sequence[Event], compared: Sequence[Event], rest: Sequence[Event], prices: Mapping[str, Price] | None
) -> RunSide:
    state: State = "submitted"
    for event in events:
        if isinstance(event, StatusUpdateEvent) and event.parent_task_id is None:
            state = event.state
    first = min((event.seq for event in rest), default=events[-1].seq + 1)
    # Uncompared events, such as usage, are attributed to the next compared event.
    begin = 1 + max((event.seq for event in compared if event.seq < first), default=0)
    until = [event for event in events if event.seq < begin]
    since = [event for event in events if event.seq >= begin]
    return RunSide(
        task_id=events[0].task_id,
        state=state,
        events=tuple(rest),
        cost=measure_cost(events, prices),
        cost_since=_compute_cost(since, _subtract(_compute_dollars(events, prices), _compute_dollars(until, prices))),
    )


def _compute_cost(events: Sequence[Event], dollars: float | None) -> RunCost:
    usage = Usage()
    for event in events:
        if isinstance(event, UsageEvent):
            usage = usage + event.usage
    millis = sum(
        max(after.timestamp - before.timestamp, 0)
        for before, after in pairwise(events)
        if before.attempt == after.attempt
    )
    return RunCost(
        model_calls=sum(isinstance(event, LLMCallEvent) for event in events),
        tool_calls=sum(isinstance(event, ToolStartEvent) for event in events),
        usage=usage,
        seconds=millis / 1000,
        dollars=dollars,
    )


def _compute_dollars(events: Sequence[Event], prices: Mapping[str, Price] | None) -> float | None:
    spending = Spending(prices)
    priced = [event for event in events if spending.add(event)]
    return spending.dollars if priced else None


def _subtract(total: float | None, shared: float | None) -> float | None:
    return None if total is None else total - (shared or 0.0)


def _many(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
