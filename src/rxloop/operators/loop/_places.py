"""What each operator handles, and whether that ever comes to its place.

| request        | comes from          | is ended by                 |
|----------------|---------------------|-----------------------------|
| `RunRequest`   | the run             | `iterate`, other strategies |
| `ModelRequest` | each iteration      | `call_model`                |
| `ToolRequest`  | `call_model`        | `run_tools`                 |
| `IterationEnd` | each iteration      | nothing                     |

An operator made by `answering`, `at_end` or `on` says here what it handles; of one that a user wrote, nothing is known.
A guard to which nothing comes would guard nothing, so it is refused before anything runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, TypeVar

from rxloop.errors import ConfigurationError
from rxloop.operators.loop.compose import describe, parts
from rxloop.pipeline.requests import IterationEnd, ModelRequest, Operator, Request, RunRequest, ToolRequest
from rxloop.stream.stream import HANDLING

O = TypeVar("O", bound=Operator)  # noqa: E741


class _Handling(NamedTuple):
    request: type[Request]
    ends: bool
    """No request of the type passes the operator."""
    pipeline: Operator | None
    """What it sends the requests of its iterations through, if it makes a run of them."""


def handling(operator: O, request: type[Request], *, ends: bool = False, pipeline: Operator | None = None) -> O:
    """Write down what an operator handles.

    Args:
        operator: The operator.
        request: The type of the requests that it answers.
        ends: It answers all of them, so that none passes it.
        pipeline: What it sends the requests of its iterations through, if it answers a `RunRequest` by iterations.
    """
    fields: dict[str, Any] = vars(operator)
    fields[HANDLING] = _Handling(request, ends, pipeline)
    return operator


def check_iteration(operators: Iterable[Operator]) -> None:
    """Refuse an operator of a loop that handles what never comes to its place.

    Args:
        operators: Those of one iteration, in order.

    Raises:
        ConfigurationError: There is one; it says where to put it.
    """
    _check(list(parts(operators)), around=False)


def check_run(operator: Operator) -> None:
    """Refuse what a strategy has made if an operator in it, or in its loop, handles what never comes to its place.

    Raises:
        ConfigurationError: There is one; it says where to put it.
    """
    _check(list(parts([operator])), around=True)


def _check(line: list[Operator], *, around: bool) -> None:
    known = [(place, operator, found) for place, operator in enumerate(line) if (found := _handled(operator))]
    ends: dict[type[Request], list[int]] = {}
    for place, _, found in known:
        if found.ends:
            ends.setdefault(found.request, []).append(place)
    for place, operator, found in known:
        if found.pipeline is not None:
            check_iteration([found.pipeline])
        advice = None if found.ends else _advice(found.request, place, ends, around=around)
        if advice is not None:
            where = "around the loop" if around else "in the loop"
            raise ConfigurationError(
                f"the operator {describe(operator)} handles each {found.request.__name__}, and none ever comes to its "
                f"place {where} {', '.join(map(describe, line))}: {advice}"
            )


def _handled(operator: Operator) -> _Handling | None:
    return getattr(operator, HANDLING, None)


def _advice(kind: type[Request], place: int, ends: dict[type[Request], list[int]], *, around: bool) -> str | None:
    """Say where a handler has to be put; None if its requests may come to its place."""
    run, model, tools = (ends.get(ended, ()) for ended in (RunRequest, ModelRequest, ToolRequest))
    if issubclass(kind, RunRequest):
        if not around:
            return "put it around the loop, by a strategy that gives op.compose(..., op.iterate(pipeline))"
        return "put it before op.iterate(...), or what else answers it" if run and place > run[-1] else None
    if around and run and issubclass(kind, ModelRequest | ToolRequest | IterationEnd):
        return "put it into the loop, as in loop=op.standard(...)"
    if issubclass(kind, ModelRequest) and model and place > model[-1]:
        return "put it before op.call_model(), as in op.standard(before_model=[...])"
    if issubclass(kind, ToolRequest) and model and place < model[0]:
        return "put it after op.call_model(), as in op.standard(before_tools=[...])"
    if issubclass(kind, ToolRequest) and tools and place > tools[-1]:
        return "put it before op.run_tools(), as in op.standard(before_tools=[...])"
    return None
