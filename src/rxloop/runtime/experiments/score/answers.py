"""Scorers of answers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

import orjson
from pydantic_core import to_jsonable_python

from rxloop.errors import ConfigurationError
from rxloop.run.result import Result
from rxloop.runtime.experiments.case import Case
from rxloop.runtime.experiments.scorer import Scorer


def exact(*, ignore_case: bool = False, name: str = "exact") -> Scorer:
    """Whether the answer is the expected one, typed answers by their values.

    Args:
        ignore_case: Take `oslo` for `Oslo`, where the answer is a text.
        name: The name in reports.
    """

    def same(case: Case, result: Result[Any]) -> bool:
        given, wanted = _both(case, result)
        if isinstance(given, str) and isinstance(wanted, str):
            return _folded(given, ignore_case) == _folded(wanted, ignore_case)
        return given == wanted

    return Scorer(name, same)


def contains(*, ignore_case: bool = True, name: str = "contains") -> Scorer:
    """Whether the text of the answer contains what is expected; of a list, all of it.

    Args:
        ignore_case: Take `oslo` for `Oslo`.
        name: The name in reports.
    """

    def has(case: Case, result: Result[Any]) -> bool:
        wanted: Any = _expected(case)
        several = isinstance(wanted, Iterable) and not isinstance(wanted, str)
        texts: Iterable[Any] = cast("Iterable[Any]", wanted) if several else [wanted]
        text = _folded(result.content, ignore_case)
        return all(_folded(str(each), ignore_case) in text for each in texts)

    return Scorer(name, has)


def matches(pattern: str | re.Pattern[str], *, name: str = "matches") -> Scorer:
    """Whether a regular expression is found in the text of the answer.

    Args:
        pattern: The expression.
        name: The name in reports.

    Raises:
        ConfigurationError: It is not a regular expression.
    """
    try:
        found = re.compile(pattern)
    except re.error as error:
        raise ConfigurationError(f"{pattern!r} is not a regular expression: {error}") from error

    def fits(result: Result[Any]) -> bool:
        return found.search(result.content) is not None

    return Scorer(name, fits)


def fields(*names: str, name: str = "fields") -> Scorer:
    """The part of the expected fields that a typed answer has right, from 0 to 1.

    Args:
        *names: The fields that count; by default all that the expected answer has.
        name: The name in reports.
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
    """The answer and the expected one as plain data; an expected text is read as JSON for a typed answer."""
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
