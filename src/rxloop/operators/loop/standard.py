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
    """List the operators of the usual loop, with places for your own.

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
        before_model: See each `ModelRequest` before the model does: compression, a change of settings.
        before_tools: See each `ToolRequest` before the tools do: guards, caches.
        at_end: See the `IterationEnd` and all events of the iteration.
        early: Start calls of read-only tools while the model still writes: see `run_tools`.

    Raises:
        ConfigurationError: One of them is not a list.
    """
    places = {"before_model": before_model, "before_tools": before_tools, "at_end": at_end}
    for place, given in cast("dict[str, Any]", places).items():
        if isinstance(given, str) or not isinstance(given, Iterable):
            named = getattr(given, "__name__", "operator")
            raise ConfigurationError(
                f"{place}={given!r} cannot be used: give a list of operators, such as {place}=[{named}]"
            )
    return [*before_model, call_model(), *before_tools, run_tools(early=early), *at_end, checkpoint()]
