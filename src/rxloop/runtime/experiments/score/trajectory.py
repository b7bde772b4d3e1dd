"""Scorers of the way to an answer: which tools were called, in which order, in how many steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rxloop.errors import ConfigurationError
from rxloop.protocol.events import Event, LLMCallEvent, ToolCompleteEvent, ToolStartEvent
from rxloop.runtime.experiments.case import Case
from rxloop.runtime.experiments.scorer import EventScorer, Score, Scorer
from rxloop.tools.think_aloud import NAME as THINK_ALOUD


def called(
    *tools: str | Callable[[Case], Sequence[str]], only: bool = False, any_order: bool = False, name: str = "called"
) -> Scorer:
    """Whether these tools were called, in this order; other calls may lie between.

    ::

        source                      --s---s---s--F|     s tool-start: search, read, pay
        called("search", "pay")     -------------T|

    Args:
        *tools: The names of the tools; one that is called twice stands there twice. Or one function that gives the
            names for a case: `called(lambda case: case.metadata["tools"])`.
        only: There must be no other calls.
        any_order: The order does not count.
        name: The name in reports.

    Raises:
        ConfigurationError: There are neither names nor one function.
    """
    if not tools or (len(tools) > 1 and not all(isinstance(each, str) for each in tools)):
        raise ConfigurationError("called() takes the names of tools, or one function that gives them for a case")

    def right(case: Case, events: Sequence[Event]) -> Score:
        made = _called(events)
        wanted = [each for given in tools for each in ([given] if isinstance(given, str) else given(case))]
        held = _holds(sorted(made), sorted(wanted)) if any_order else _holds(made, wanted)
        fits = held and (not only or len(made) == len(wanted))
        return Score(value=fits, reason=f"called {', '.join(made) or 'nothing'}")

    return EventScorer(name, right)


def no_tool(*tools: str, name: str = "no_tool") -> Scorer:
    """Whether none of these tools was called; with no name, none at all.

    Args:
        *tools: The names of the tools.
        name: The name in reports.
    """

    def right(case: Case, events: Sequence[Event]) -> Score:
        made = [each for each in _called(events) if not tools or each in tools]
        return Score(value=not made, reason=f"called {', '.join(made)}" if made else "")

    return EventScorer(name, right)


def tool_failures(*, name: str = "tool_failures") -> Scorer:
    """How many tool calls failed; lower is better.

    Args:
        name: The name in reports.
    """

    def count(case: Case, events: Sequence[Event]) -> int:
        return sum(isinstance(event, ToolCompleteEvent) and not event.success for event in events)

    return EventScorer(name, count, better="lower")


def steps(*, name: str = "steps") -> Scorer:
    """How many model calls the run took, those of nested agents included; lower is better.

    Args:
        name: The name in reports.
    """

    def count(case: Case, events: Sequence[Event]) -> int:
        return sum(isinstance(event, LLMCallEvent) for event in events)

    return EventScorer(name, count, better="lower")


def _called(events: Sequence[Event]) -> list[str]:
    """The tools that the agent itself called, in the order in which they began; thinking aloud is none."""
    return [
        event.name
        for event in events
        if isinstance(event, ToolStartEvent) and event.parent_task_id is None and event.name != THINK_ALOUD
    ]


def _holds(made: Sequence[str], wanted: Sequence[str]) -> bool:
    rest = iter(made)
    return all(each in rest for each in wanted)
