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
from rxloop.recorded.diff import measure_cost
from rxloop.run.result import Result
from rxloop.tools.think_aloud import NAME as THINK_ALOUD


def exact(*, ignore_case: bool = False, name: str = "exact") -> Scorer:
    """Return a scorer that compares the answer to the expected one. Typed answers are compared by value.

    Args:
        ignore_case: Whether to ignore case in text answers.
        name: Name in reports.
    """

    def is_equal(case: Case, result: Result[Any]) -> bool:
        actual, expected = _to_plain_answers(case, result)
        if isinstance(actual, str) and isinstance(expected, str):
            return _normalize(actual, ignore_case) == _normalize(expected, ignore_case)
        return actual == expected

    return Scorer(name, is_equal)


def contains(*, ignore_case: bool = True, name: str = "contains") -> Scorer:
    """Return a scorer that checks if the answer contains the expected string, or all strings of a list.

    Args:
        ignore_case: Whether to ignore case.
        name: Name in reports.
    """

    def contains_all(case: Case, result: Result[Any]) -> bool:
        expected: Any = _get_expected(case)
        is_list = isinstance(expected, Iterable) and not isinstance(expected, str)
        texts: Iterable[Any] = cast("Iterable[Any]", expected) if is_list else [expected]
        text = _normalize(result.content, ignore_case)
        return all(_normalize(str(each), ignore_case) in text for each in texts)

    return Scorer(name, contains_all)


def matches(pattern: str | re.Pattern[str], *, name: str = "matches") -> Scorer:
    """Return a scorer that searches the answer for a regular expression.

    Args:
        pattern: Regular expression.
        name: Name in reports.

    Raises:
        ConfigurationError: The pattern is invalid.
    """
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ConfigurationError(f"{pattern!r} is not a valid regular expression: {error}") from error

    def matches_pattern(result: Result[Any]) -> bool:
        return compiled.search(result.content) is not None

    return Scorer(name, matches_pattern)


def fields(*names: str, name: str = "fields") -> Scorer:
    """Return a scorer for the fraction of expected fields with the correct value in a typed answer.

    Args:
        *names: Fields to compare. The default is all fields of the expected answer.
        name: Name in reports.
    """

    def compute_fraction(case: Case, result: Result[Any]) -> float:
        actual, expected = _to_plain_answers(case, result)
        if not isinstance(expected, Mapping):
            raise ConfigurationError(f"the expected answer of case {case.id!r} must have fields, got {expected!r}")
        expected = cast("Mapping[str, Any]", expected)
        compared = names or tuple(expected)
        missing = object()
        answer: Mapping[str, Any] = cast("Mapping[str, Any]", actual) if isinstance(actual, Mapping) else {}
        correct = sum(answer.get(each, missing) == expected.get(each) for each in compared)
        return correct / len(compared) if compared else 1.0

    return Scorer(name, compute_fraction)


def _to_plain_answers(case: Case, result: Result[Any]) -> tuple[Any, Any]:
    """Return the actual and the expected answer as plain data.

    If the actual answer is typed, an expected string is parsed as JSON.
    """
    actual, expected = to_jsonable_python(result.output), to_jsonable_python(_get_expected(case))
    if isinstance(expected, str) and not isinstance(actual, str):
        try:
            expected = orjson.loads(expected)
        except orjson.JSONDecodeError:
            return result.content, expected
    return actual, expected


def _get_expected(case: Case) -> Any:
    if case.expected is None:
        raise ConfigurationError(f"case {case.id!r} has no expected answer")
    return case.expected


def _normalize(text: str, ignore_case: bool) -> str:
    stripped = text.strip()
    return stripped.casefold() if ignore_case else stripped


def cost(prices: Mapping[str, Price] | None = None, *, name: str = "cost") -> Scorer:
    """Return a scorer for the cost in US dollars. Lower is better.

    It fails if a model has no price, because the partial cost would look like a saving.

    Args:
        prices: Prices by model string, as in `op.cost`.
        name: Name in reports.
    """

    def compute_cost(case: Case, events: Sequence[Event]) -> float:
        spending = Spending(prices)
        for event in events:
            spending.add(event)
        if spending.unpriced:
            names = ", ".join(map(repr, spending.unpriced))
            raise ConfigurationError(f"missing price for {names}; use score.cost({{...}})")
        return spending.dollars

    return EventScorer(name, compute_cost, better="lower")


def tokens(*, name: str = "tokens") -> Scorer:
    """Return a scorer for the number of input and output tokens. Lower is better.

    Args:
        name: Name in reports.
    """

    def count(case: Case, events: Sequence[Event]) -> int:
        return measure_cost(events).usage.total_tokens

    return EventScorer(name, count, better="lower")


def seconds(*, name: str = "seconds") -> Scorer:
    """Return a scorer for the duration in seconds, without pauses. Lower is better.

    Args:
        name: Name in reports.
    """

    def compute_duration(case: Case, events: Sequence[Event]) -> float:
        return measure_cost(events).seconds

    return EventScorer(name, compute_duration, better="lower")


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
        raise ConfigurationError("called() requires names of tools, or one function that returns them for a case")

    def check_calls(case: Case, events: Sequence[Event]) -> Score:
        actual = _list_called(events)
        expected = [each for tool in tools for each in ([tool] if isinstance(tool, str) else tool(case))]
        are_called = (
            _contains_in_order(sorted(actual), sorted(expected)) if any_order else _contains_in_order(actual, expected)
        )
        is_correct = are_called and (not only or len(actual) == len(expected))
        return Score(value=is_correct, reason=f"called {', '.join(actual) or 'nothing'}")

    return EventScorer(name, check_calls)


def no_tool(*tools: str, name: str = "no_tool") -> Scorer:
    """Return a scorer that checks if none of these tools was called. Without names, it checks all tools.

    Args:
        *tools: Tool names.
        name: Name in reports.
    """

    def check_calls(case: Case, events: Sequence[Event]) -> Score:
        forbidden = [each for each in _list_called(events) if not tools or each in tools]
        return Score(value=not forbidden, reason=f"called {', '.join(forbidden)}" if forbidden else "")

    return EventScorer(name, check_calls)


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


def _list_called(events: Sequence[Event]) -> list[str]:
    """Return the called tools in order, without nested calls and `think_aloud`."""
    return [
        event.name
        for event in events
        if isinstance(event, ToolStartEvent) and event.parent_task_id is None and event.name != THINK_ALOUD
    ]


def _contains_in_order(actual: Sequence[str], expected: Sequence[str]) -> bool:
    remaining = iter(actual)
    return all(each in remaining for each in expected)


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
