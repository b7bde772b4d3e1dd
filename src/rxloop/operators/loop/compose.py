from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import FunctionType
from typing import Any

from reactivex import Observable

from rxloop.errors import ConfigurationError, PipelineError, RxloopError
from rxloop.pipeline.requests import Operator, OperatorDeps, Signal
from rxloop.stream.stream import PARTS, VIEW
from rxloop.support.foreign_errors import to_error


def compose(*operators: Operator[OperatorDeps]) -> Operator[OperatorDeps]:
    """Combine operators into one. The first one is nearest to the source.

    ::

        in   --A--------|
        [a]
        mid  --B--------|
        [b]
        out  --C--------|

    The type checker follows `Observable.pipe` through seven operators only. This function takes any number, because all
    operators of a loop have the same type.

    Args:
        operators: Operators of the loop. Without any, the result passes all signals through.

    Raises:
        ConfigurationError: An argument is not an operator of the loop.
    """
    for index, part in enumerate(operators):
        check_loop_operator(f"operator {index}", part)

    def operator(source: Observable[Signal]) -> Observable[Signal]:
        for part in operators:
            try:
                source = part(source)
            except RxloopError:
                raise
            except BaseException as error:
                raise to_error(error, f"the operator {describe(part)}") from error
            if not isinstance(source, Observable):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise PipelineError(f"operator {describe(part)} must return an Observable, got {source!r}")
        return source

    operator.__qualname__ = ", ".join(map(describe, operators)) or "nothing"
    operator.__dict__[PARTS] = operators
    return operator


def check_loop_operator(argument: str, operator: Any) -> None:
    """Validate an argument that should be a loop operator.

    Args:
        argument: Argument name for the error message.
        operator: Argument value.

    Raises:
        ConfigurationError: If the value is a list, a view, or not callable.
    """
    expected = "an operator, such as op.call_model()" if not callable(operator) else None
    if isinstance(operator, list | tuple):
        expected = "an operator, not a list; unpack it as in [*op.standard()]"
    elif (view := getattr(operator, VIEW, None)) is not None:
        expected = f"an operator, not a view; use run.pipe({view}(...))"
    if expected is not None:
        raise ConfigurationError(f"{argument} must be {expected}, got {operator!r}")


def parts(operators: Iterable[Operator]) -> Iterator[Operator]:
    """Iterate over operators, flattening composed operators."""
    for operator in operators:
        composed = getattr(operator, PARTS, None)
        if composed is None:
            yield operator
        else:
            yield from parts(composed)


def describe(operator: Operator) -> str:
    """Return an operator's name for messages."""
    name: str = getattr(operator, "__qualname__", None) or type(operator).__qualname__
    *makers, own = name.split(".<locals>.")
    if own == "_wrap_curried":
        # Get the operator name from closure variables, because reactivex does not set it elsewhere.
        values = [cell.cell_contents for cell in getattr(operator, "__closure__", None) or ()]
        names = [value.__name__ for value in values if isinstance(value, FunctionType)]
        return f"rx.{names[-1].strip('_')}" if names else own
    if getattr(operator, "__module__", "").startswith("reactivex."):
        return f"rx.{own}"
    return makers[-1] if makers and own == "operator" else own
