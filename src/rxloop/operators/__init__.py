"""Operators of the loop (`loop/`) and views for subscribers (`views/`).

Loop operators extend the loop. They must pass events unchanged and immediately, but can hold, replace, answer or
multiply requests. Views run for a subscriber; any reactivex operator can be used as a view.
"""

from typing import TYPE_CHECKING

from rxloop._lazy import import_later

__all__: list[str]
import_later(__name__)

# Type checkers and `import_later` read the public names from these imports.
if TYPE_CHECKING:
    from rxloop.operators.loop.answer_requests import answer_requests as answer_requests
    from rxloop.operators.loop.at_end import at_end as at_end
    from rxloop.operators.loop.call_model import call_model as call_model
    from rxloop.operators.loop.checkpoint import checkpoint as checkpoint
    from rxloop.operators.loop.compose import compose as compose
    from rxloop.operators.loop.compress import adaptive as adaptive
    from rxloop.operators.loop.compress import compress as compress
    from rxloop.operators.loop.current_span import current_span as current_span
    from rxloop.operators.loop.goals import goals as goals
    from rxloop.operators.loop.iterate import iterate as iterate
    from rxloop.operators.loop.on import on as on
    from rxloop.operators.loop.recall import recall as recall
    from rxloop.operators.loop.run_tools import run_tools as run_tools
    from rxloop.operators.loop.standard import standard as standard
    from rxloop.operators.loop.thinking_phase import thinking_phase as thinking_phase
    from rxloop.operators.loop.typed_output import typed_output as typed_output
    from rxloop.operators.loop.workspace import workspace as workspace
    from rxloop.operators.predicted_calls import predict_context as predict_context
    from rxloop.operators.views import View as View
    from rxloop.operators.views.after import after as after
    from rxloop.operators.views.batch_progress import Tally as Tally
    from rxloop.operators.views.batch_progress import progress as progress
    from rxloop.operators.views.batch_progress import tally as tally
    from rxloop.operators.views.compare import compare as compare
    from rxloop.operators.views.context_stats import ContextStats as ContextStats
    from rxloop.operators.views.context_stats import context_stats as context_stats
    from rxloop.operators.views.cost import cost as cost
    from rxloop.operators.views.filters import for_task as for_task
    from rxloop.operators.views.filters import of_type as of_type
    from rxloop.operators.views.filters import public as public
    from rxloop.operators.views.filters import thoughts as thoughts
    from rxloop.operators.views.filters import tool_calls as tool_calls
    from rxloop.operators.views.filters import until_final as until_final
    from rxloop.operators.views.filters import usage as usage
    from rxloop.operators.views.grammar import grammar as grammar
    from rxloop.operators.views.make_view import ViewOutput as ViewOutput
    from rxloop.operators.views.make_view import make_view as make_view
    from rxloop.operators.views.partial import partial as partial
    from rxloop.operators.views.record import record as record
    from rxloop.operators.views.repeats import Repeat as Repeat
    from rxloop.operators.views.repeats import repeats as repeats
    from rxloop.operators.views.spans import spans as spans
    from rxloop.operators.views.stalled import Stall as Stall
    from rxloop.operators.views.stalled import stalled as stalled
    from rxloop.operators.views.stats import Stats as Stats
    from rxloop.operators.views.stats import stats as stats
    from rxloop.operators.views.text import coalesce_deltas as coalesce_deltas
    from rxloop.operators.views.text import text as text
    from rxloop.operators.views.thought_graph import EdgeAdded as EdgeAdded
    from rxloop.operators.views.thought_graph import GraphDelta as GraphDelta
    from rxloop.operators.views.thought_graph import NodeAdded as NodeAdded
    from rxloop.operators.views.thought_graph import graph_deltas as graph_deltas
    from rxloop.operators.views.thought_graph import thought_graph as thought_graph
