"""Operators of the loop, and views for subscribers. One a file; import this as `op`.

An operator works in the loop: events pass untouched and at once, and only a request may be held, replaced, answered or
multiplied. A view works for a subscriber, and any reactivex operator is one.
"""

from typing import TYPE_CHECKING

from rxloop._lazy import import_later

if TYPE_CHECKING:
    from rxloop.operators._types import View
    from rxloop.operators.after import after
    from rxloop.operators.answering import answering
    from rxloop.operators.at_end import at_end
    from rxloop.operators.call_model import call_model
    from rxloop.operators.checkpoint import checkpoint
    from rxloop.operators.coalesce_deltas import coalesce_deltas
    from rxloop.operators.compare import compare
    from rxloop.operators.compose import compose
    from rxloop.operators.compress import compress
    from rxloop.operators.cost import cost
    from rxloop.operators.for_task import for_task
    from rxloop.operators.grammar import grammar
    from rxloop.operators.graph_deltas import EdgeAdded, GraphDelta, NodeAdded, graph_deltas
    from rxloop.operators.idle_timeout import idle_timeout
    from rxloop.operators.iterate import iterate
    from rxloop.operators.of_type import of_type
    from rxloop.operators.on import on
    from rxloop.operators.partial import partial
    from rxloop.operators.public import public
    from rxloop.operators.record import record
    from rxloop.operators.repeats import Repeat, repeats
    from rxloop.operators.run_tools import run_tools
    from rxloop.operators.stalled import Stall, stalled
    from rxloop.operators.standard import standard
    from rxloop.operators.stats import Stats, stats
    from rxloop.operators.text import text
    from rxloop.operators.thinking_phase import thinking_phase
    from rxloop.operators.thought_graph import thought_graph
    from rxloop.operators.thoughts import thoughts
    from rxloop.operators.token_rate import token_rate
    from rxloop.operators.tool_calls import tool_calls
    from rxloop.operators.typed_output import typed_output
    from rxloop.operators.until_final import until_final
    from rxloop.operators.usage import usage
    from rxloop.operators.workspace import workspace

__all__ = [
    "EdgeAdded",
    "GraphDelta",
    "NodeAdded",
    "Repeat",
    "Stall",
    "Stats",
    "View",
    "after",
    "answering",
    "at_end",
    "call_model",
    "checkpoint",
    "coalesce_deltas",
    "compare",
    "compose",
    "compress",
    "cost",
    "for_task",
    "grammar",
    "graph_deltas",
    "idle_timeout",
    "iterate",
    "of_type",
    "on",
    "partial",
    "public",
    "record",
    "repeats",
    "run_tools",
    "stalled",
    "standard",
    "stats",
    "text",
    "thinking_phase",
    "thought_graph",
    "thoughts",
    "token_rate",
    "tool_calls",
    "typed_output",
    "until_final",
    "usage",
    "workspace",
]

# Each stands in the file of its name, and what a view gives stands beside it. A program need not wait for all of them.
_BESIDE = {
    "EdgeAdded": "graph_deltas",
    "GraphDelta": "graph_deltas",
    "NodeAdded": "graph_deltas",
    "Repeat": "repeats",
    "Stall": "stalled",
    "Stats": "stats",
    "View": "_types",
}
import_later(__name__, {name: f"{__name__}.{_BESIDE.get(name, name)}" for name in __all__})
