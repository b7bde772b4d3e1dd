from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import FunctionType

from reactivex import Observable

from rxloop.errors import PipelineError, RxloopError
from rxloop.pipeline.requests import Operator, OperatorDeps, Signal
from rxloop.stream.stream import PARTS
from rxloop.support.foreign_errors import to_error


def compose(*operators: Operator[OperatorDeps]) -> Operator[OperatorDeps]:
    """Make one operator of several, the first one nearest to the source.

    ::

        in   --A--------|
        [a]
        mid  --B--------|
        [b]
        out  --C--------|

    Unlike `Observable.pipe`, which the type checker follows through seven operators only, it takes any number: in a
    loop they are all of one type.

    Args:
        operators: Operators of the loop. Without any, the operator passes everything on.
    """

    def operator(source: Observable[Signal]) -> Observable[Signal]:
        for part in operators:
            try:
                source = part(source)
            except RxloopError:
                raise
            except BaseException as error:
                raise to_error(error, f"the operator {describe(part)}") from error
            if not isinstance(source, Observable):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise PipelineError(
                    f"the operator {describe(part)} gave {source!r}: it has to give an Observable, made of its source"
                )
        return source

    operator.__qualname__ = ", ".join(map(describe, operators)) or "nothing"
    operator.__dict__[PARTS] = operators
    return operator


def parts(operators: Iterable[Operator]) -> Iterator[Operator]:
    """Give the operators that these are composed of, in order."""
    for operator in operators:
        composed = getattr(operator, PARTS, None)
        if composed is None:
            yield operator
        else:
            yield from parts(composed)


def describe(operator: Operator) -> str:
    """Name an operator in a message: by its own name, or that of the function that made it."""
    name: str = getattr(operator, "__qualname__", None) or type(operator).__qualname__
    *makers, own = name.split(".<locals>.")
    if own == "_wrap_curried":
        # What reactivex makes its operators of: the function that knows their name is among what it holds.
        held = [cell.cell_contents for cell in getattr(operator, "__closure__", None) or ()]
        names = [value.__name__ for value in held if isinstance(value, FunctionType)]
        return f"rx.{names[-1].strip('_')}" if names else own
    if getattr(operator, "__module__", "").startswith("reactivex."):
        return f"rx.{own}"
    return makers[-1] if makers and own == "operator" else own
