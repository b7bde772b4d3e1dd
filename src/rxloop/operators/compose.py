from __future__ import annotations

from reactivex import Observable

from rxloop.requests import Operator, Signal


def compose(*operators: Operator) -> Operator:
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
        operators: Operators of the loop. None at all give the operator that passes everything on.
    """

    def operator(source: Observable[Signal]) -> Observable[Signal]:
        for each in operators:
            source = each(source)
        return source

    operator.__qualname__ = ", ".join(map(describe, operators)) or "nothing"
    return operator


def describe(operator: Operator) -> str:
    """The name of an operator for a message: its own, or that of the function that made it."""
    name: str = getattr(operator, "__qualname__", None) or type(operator).__qualname__
    *makers, own = name.split(".<locals>.")
    return makers[-1] if makers and own == "operator" else own
