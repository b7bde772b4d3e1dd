"""Operators of the loop, and views for subscribers. One a file; import this as `op`.

An operator works in the loop: events pass untouched and at once, and only a request may be held, replaced, answered or
multiplied. A view works for a subscriber, and any reactivex operator is one.
"""

from typing import TYPE_CHECKING

from rxloop._lazy import import_later

__all__: list[str]
import_later(__name__)

# The list of the public names: type checkers read it, and `import_later` does.
if TYPE_CHECKING:
    from rxloop.operators._types import View as View
    from rxloop.operators.after import after as after
    from rxloop.operators.answering import answering as answering
    from rxloop.operators.at_end import at_end as at_end
    from rxloop.operators.call_model import call_model as call_model
    from rxloop.operators.checkpoint import checkpoint as checkpoint
    from rxloop.operators.coalesce_deltas import coalesce_deltas as coalesce_deltas
    from rxloop.operators.compare import compare as compare
    from rxloop.operators.compose import compose as compose
    from rxloop.operators.compress import compress as compress
    from rxloop.operators.cost import cost as cost
    from rxloop.operators.for_task import for_task as for_task
    from rxloop.operators.grammar import grammar as grammar
    from rxloop.operators.graph_deltas import EdgeAdded as EdgeAdded
    from rxloop.operators.graph_deltas import GraphDelta as GraphDelta
    from rxloop.operators.graph_deltas import NodeAdded as NodeAdded
    from rxloop.operators.graph_deltas import graph_deltas as graph_deltas
    from rxloop.operators.idle_timeout import idle_timeout as idle_timeout
    from rxloop.operators.iterate import iterate as iterate
    from rxloop.operators.of_type import of_type as of_type
    from rxloop.operators.on import on as on
    from rxloop.operators.partial import partial as partial
    from rxloop.operators.public import public as public
    from rxloop.operators.record import record as record
    from rxloop.operators.repeats import Repeat as Repeat
    from rxloop.operators.repeats import repeats as repeats
    from rxloop.operators.run_tools import run_tools as run_tools
    from rxloop.operators.stalled import Stall as Stall
    from rxloop.operators.stalled import stalled as stalled
    from rxloop.operators.standard import standard as standard
    from rxloop.operators.stats import Stats as Stats
    from rxloop.operators.stats import stats as stats
    from rxloop.operators.text import text as text
    from rxloop.operators.thinking_phase import thinking_phase as thinking_phase
    from rxloop.operators.thought_graph import thought_graph as thought_graph
    from rxloop.operators.thoughts import thoughts as thoughts
    from rxloop.operators.token_rate import token_rate as token_rate
    from rxloop.operators.tool_calls import tool_calls as tool_calls
    from rxloop.operators.typed_output import typed_output as typed_output
    from rxloop.operators.until_final import until_final as until_final
    from rxloop.operators.usage import usage as usage
    from rxloop.operators.workspace import workspace as workspace
