"""The view of the finished tool calls."""

from __future__ import annotations

from rxloop.operators.views._types import View, named
from rxloop.operators.views.of_type import of_type
from rxloop.protocol.events import Event, ToolCompleteEvent


def tool_calls() -> View[Event, ToolCompleteEvent]:
    """Keep the finished tool calls: each with its name, arguments, result or error, and duration.

    ::

        source           --s--p--C--s--C--|      s tool-start, p tool-progress, C tool-complete
        tool_calls()     --------C-----C--|

    Returns:
        A view of the `tool-complete` events, in the order in which the calls ended. A call that was refused is there
        too.
    """
    return named(of_type(ToolCompleteEvent), "tool_calls")
