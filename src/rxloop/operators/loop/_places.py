"""What an operator says of itself, so that one in a place where it can do nothing is told before anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from rxloop.pipeline.requests import IterationEnd, ModelRequest, Operator, Request, RunRequest, ToolRequest

O = TypeVar("O", bound=Operator)  # noqa: E741

_ANSWERS = "rxloop_answers"
_ENDS = "rxloop_ends"
PARTS = "rxloop_parts"
"""The attribute of an operator that is made of several."""


def declared(operator: O, answers: type[Request], ends: bool = False) -> O:
    """Say of an operator which requests it answers, and whether none of them passes it."""
    fields: dict[str, Any] = vars(operator)
    fields[_ANSWERS] = answers
    fields[_ENDS] = ends
    return operator


def parts(operators: Iterable[Operator]) -> Iterator[Operator]:
    """The operators that these are made of, in order."""
    for each in operators:
        made_of = getattr(each, PARTS, None)
        if made_of is None:
            yield each
        else:
            yield from parts(made_of)


def answers(operator: Operator) -> type[Request] | None:
    """The requests that an operator answers; None where it does not say."""
    return getattr(operator, _ANSWERS, None)


def misplaced(operators: Iterable[Operator]) -> Iterator[tuple[Operator, str]]:
    """Which operators of one iteration stand where nothing that they answer ever comes, and what to do."""
    line = list(parts(operators))
    model = _places(line, ModelRequest)
    tools = _places(line, ToolRequest)
    for place, each in enumerate(line):
        kind = answers(each)
        if kind is None or place in model or place in tools:
            continue
        if issubclass(kind, ModelRequest) and model and place > model[-1]:
            yield each, "put it before op.call_model(), as in op.standard(before_model=[...])"
        elif issubclass(kind, ToolRequest) and model and place < model[0]:
            yield each, "put it behind op.call_model(), as in op.standard(before_tools=[...])"
        elif issubclass(kind, ToolRequest) and tools and place > tools[-1]:
            yield each, "put it before op.run_tools(), as in op.standard(before_tools=[...])"


def misplaced_around(operators: Iterable[Operator]) -> Iterator[Operator]:
    """Which operators stand beside what makes a run of the loop, where no request of an iteration ever comes."""
    line = list(parts(operators))
    if _places(line, RunRequest):
        for each in line:
            kind = answers(each)
            if kind is not None and issubclass(kind, ModelRequest | ToolRequest | IterationEnd):
                yield each


def _places(line: list[Operator], kind: type[Request]) -> list[int]:
    return [place for place, each in enumerate(line) if getattr(each, _ENDS, False) and answers(each) is kind]
