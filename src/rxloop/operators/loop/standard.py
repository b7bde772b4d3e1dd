from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from rxloop.errors import ConfigurationError
from rxloop.operators.loop.call_model import call_model
from rxloop.operators.loop.checkpoint import checkpoint
from rxloop.operators.loop.run_tools import run_tools
from rxloop.pipeline.requests import Operator, OperatorDeps


def standard(
    before_model: Sequence[Operator[OperatorDeps]] = (),
    before_tools: Sequence[Operator[OperatorDeps]] = (),
    at_end: Sequence[Operator[OperatorDeps]] = (),
    *,
    early: bool = False,
) -> list[Operator[OperatorDeps]]:
    """Return the operators of the default loop, with custom operators inserted.

    ::

        in       --M----------------------E|      M ModelRequest, E IterationEnd
        [before_model]
        [call_model]
        then     --L-d--(C,T,T)-----------E|      T ToolRequest, one for each call of the message C
        [before_tools]
        [run_tools]
        then     --L-d--(C,s,s)--x--x-----E|      s tool-start, x tool-complete
        [at_end]
        [checkpoint]
        out      --L-d--(C,s,s)--x--x-----(k|)    k checkpoint

    Args:
        before_model: Operators that receive each `ModelRequest` before the model, such as compressors.
        before_tools: Operators that receive each `ToolRequest` before the tools, such as guards and caches.
        at_end: Operators that receive the `IterationEnd` and all events of the iteration.
        early: Start calls of read-only tools while the model is still streaming. See `run_tools`.

    Raises:
        ConfigurationError: An argument is not a list of operators.
    """
    arguments = {"before_model": before_model, "before_tools": before_tools, "at_end": at_end}
    for name, value in cast("dict[str, Any]", arguments).items():
        if isinstance(value, str) or not isinstance(value, Iterable):
            example = getattr(value, "__name__", "operator")
            raise ConfigurationError(f"{name} must be a list of operators such as [{example}], got {value!r}")
    return [*before_model, call_model(), *before_tools, run_tools(early=early), *at_end, checkpoint()]
