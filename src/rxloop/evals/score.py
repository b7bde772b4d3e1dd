"""Built-in scorers for answers, tool calls, cost and judgement by a model.

    scorers = [score.exact(), score.called("search", "read"), score.cost(), score.judge("openai:gpt-5", "It is kind.")]

A function with a result, or with a case and a result, can also be used as a scorer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import orjson
from pydantic_core import to_jsonable_python

from rxloop.errors import ConfigurationError
from rxloop.evals.case import Case
from rxloop.evals.scorer import EventScorer, Score, Scorer, judge, view
from rxloop.operators.views.cost import Spending
from rxloop.protocol.events import Event, LLMCallEvent, ToolCompleteEvent, ToolStartEvent
from rxloop.providers.catalog import Price
from rxloop.recorded.diff import cost_of
from rxloop.run.result import Result
from rxloop.tools.think_aloud import NAME as THINK_ALOUD


def exact(*, ignore_case: bool = False, name: str = "exact") -> Scorer:
    """Return a scorer that compares the answer to the expected one. Typed answers are compared by value.

    Args:
        ignore_case: Whether to ignore case in text answers.
        name: Name in reports.
    """

    def same(case: Case, result: Result[Any]) -> bool:
        given, wanted = _both(case, result)
        if isinstance(given, str) and isinstance(wanted, str):
            return _folded(given, ignore_case) == _folded(wanted, ignore_case)
        return given == wanted

    return Scorer(name, same)


def contains(*, ignore_case: bool = True, name: str = "contains") -> Scorer:
    """Return a scorer that checks if the answer contains the expected text, or all texts in a list.

    Args:
        ignore_case: Whether to ignore case.
        name: Name in reports.
    """

    def has(case: Case, result: Result[Any]) -> bool:
        wanted: Any = _expected(case)
        several = isinstance(wanted, Iterable) and not isinstance(wanted, str)
        texts: Iterable[Any] = cast("Iterable[Any]", wanted) if several else [wanted]
        text = _folded(result.content, ignore_case)
        return all(_folded(str(each), ignore_case) in text for each in texts)

    return Scorer(name, has)


def matches(pattern: str | re.Pattern[str], *, name: str = "matches") -> Scorer:
    """Return a scorer that searches the answer for a regular expression.

    Args:
        pattern: Regular expression.
        name: Name in reports.

    Raises:
        ConfigurationError: The pattern is invalid.
    """
    try:
        found = re.compile(pattern)
    except re.error as error:
        raise ConfigurationError(f"{pattern!r} is not a valid regular expression: {error}") from error

    def fits(result: Result[Any]) -> bool:
        return found.search(result.content) is not None

    return Scorer(name, fits)


def fields(*names: str, name: str = "fields") -> Scorer:
    """Return a scorer for the fraction of expected fields that a typed answer has right.

    Args:
        *names: Fields to compare. The default is all fields of the expected answer.
        name: Name in reports.
    """

    def part(case: Case, result: Result[Any]) -> float:
        given, wanted = _both(case, result)
        if not isinstance(wanted, Mapping):
            raise ConfigurationError(f"the case {case.id!r} expects {wanted!r}, which has no fields")
        expected = cast("Mapping[str, Any]", wanted)
        counted = names or tuple(expected)
        missing = object()
        has: Mapping[str, Any] = cast("Mapping[str, Any]", given) if isinstance(given, Mapping) else {}
        right = sum(has.get(each, missing) == expected.get(each) for each in counted)
        return right / len(counted) if counted else 1.0

    return Scorer(name, part)


def _both(case: Case, result: Result[Any]) -> tuple[Any, Any]:
    """Return both answers as plain data. If the answer is typed, an expected string is parsed as JSON."""
    given, wanted = to_jsonable_python(result.output), to_jsonable_python(_expected(case))
    if isinstance(wanted, str) and not isinstance(given, str):
        try:
            wanted = orjson.loads(wanted)
        except orjson.JSONDecodeError:
            return result.content, wanted
    return given, wanted


def _expected(case: Case) -> Any:
    if case.expected is None:
        raise ConfigurationError(f"the case {case.id!r} has no expected answer")
    return case.expected


def _folded(text: str, ignore_case: bool) -> str:
    stripped = text.strip()
    return stripped.casefold() if ignore_case else stripped


def cost(prices: Mapping[str, Price] | None = None, *, name: str = "cost") -> Scorer:
    """Return a scorer for the cost in US dollars. Lower is better.

    It fails if a model has no price, because the partial cost would look like a saving.

    Args:
        prices: Prices by model string, as in `op.cost`.
        name: Name in reports.
    """

    def dollars(case: Case, events: Sequence[Event]) -> float:
        spending = Spending(prices)
        for event in events:
            spending.add(event)
        if spending.unpriced:
            names = ", ".join(map(repr, spending.unpriced))
            raise ConfigurationError(f"no price is known of {names}: score.cost({{...}}) takes one")
        return spending.dollars

    return EventScorer(name, dollars, better="lower")


def tokens(*, name: str = "tokens") -> Scorer:
    """Return a scorer for the number of input and output tokens. Lower is better.

    Args:
        name: Name in reports.
    """

    def count(case: Case, events: Sequence[Event]) -> int:
        return cost_of(events).usage.total_tokens

    return EventScorer(name, count, better="lower")


def seconds(*, name: str = "seconds") -> Scorer:
    """Return a scorer for the duration in seconds, without pauses. Lower is better.

    Args:
        name: Name in reports.
    """

    def duration(case: Case, events: Sequence[Event]) -> float:
        return cost_of(events).seconds

    return EventScorer(name, duration, better="lower")


def called(
    *tools: str | Callable[[Case], Sequence[str]], only: bool = False, any_order: bool = False, name: str = "called"
) -> Scorer:
    """Return a scorer that checks if tools were called in this order, possibly with other calls between them.

    ::

        source                      --s---s---s--F|     s tool-start: search, read, pay
        called("search", "pay")     -------------T|

    Args:
        *tools: Tool names. Repeat a name for several calls. Alternatively, a function that returns the names for a
            case: `called(lambda case: case.metadata["tools"])`.
        only: Whether to forbid other calls.
        any_order: Whether to ignore the order.
        name: Name in reports.

    Raises:
        ConfigurationError: There are no names and no function.
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
    """Return a scorer that checks if none of these tools was called. Without names, it checks all tools.

    Args:
        *tools: Tool names.
        name: Name in reports.
    """

    def right(case: Case, events: Sequence[Event]) -> Score:
        made = [each for each in _called(events) if not tools or each in tools]
        return Score(value=not made, reason=f"called {', '.join(made)}" if made else "")

    return EventScorer(name, right)


def tool_failures(*, name: str = "tool_failures") -> Scorer:
    """Return a scorer for the number of failed tool calls. Lower is better.

    Args:
        name: Name in reports.
    """

    def count(case: Case, events: Sequence[Event]) -> int:
        return sum(isinstance(event, ToolCompleteEvent) and not event.success for event in events)

    return EventScorer(name, count, better="lower")


def steps(*, name: str = "steps") -> Scorer:
    """Return a scorer for the number of model calls, including nested agents. Lower is better.

    Args:
        name: Name in reports.
    """

    def count(case: Case, events: Sequence[Event]) -> int:
        return sum(isinstance(event, LLMCallEvent) for event in events)

    return EventScorer(name, count, better="lower")


def _called(events: Sequence[Event]) -> list[str]:
    """Return the called tools in order, without nested calls and `think_aloud`."""
    return [
        event.name
        for event in events
        if isinstance(event, ToolStartEvent) and event.parent_task_id is None and event.name != THINK_ALOUD
    ]


def _holds(made: Sequence[str], wanted: Sequence[str]) -> bool:
    rest = iter(made)
    return all(each in rest for each in wanted)


__all__ = [
    "called",
    "contains",
    "cost",
    "exact",
    "fields",
    "judge",
    "matches",
    "no_tool",
    "seconds",
    "steps",
    "tokens",
    "tool_failures",
    "view",
]
