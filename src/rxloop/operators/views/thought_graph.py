"""Views of the thoughts as a graph: the whole graph after each thought, or its changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rxloop.operators.views import View
from rxloop.operators.views.make_view import ViewOutput, make_view
from rxloop.protocol.events import ContentCompleteEvent, Event, ThoughtStreamEvent, ToolStartEvent
from rxloop.protocol.messages import ToolCall
from rxloop.thinking.graph import ThoughtGraph, formats
from rxloop.thinking.graph.formats import EdgeKind, Link


def thought_graph() -> View[Event, ThoughtGraph]:
    """Give the graph of the thoughts so far, and of the tool calls that they follow from, after each thought.

    ::

        source              --t1--c--t2-----|      t thought-stream, c a tool call
        thought_graph()     --G1-----G2-----|      G1 holds t1; G2 holds t1, c and t2

    Returns:
        A view of graphs, none of which changes; the last one holds all thoughts.
    """

    def grow(out: ViewOutput[ThoughtGraph]) -> Callable[[Event], None]:
        graph = ThoughtGraph()

        def take(event: Event) -> None:
            nonlocal graph
            # Not the thoughts alone: the graph also wants the tool calls that they follow from.
            if event.durable:
                graph = graph.add(event)
            if isinstance(event, ThoughtStreamEvent):
                out.emit(graph)

        return take

    return make_view(grow)


@dataclass(frozen=True, slots=True)
class NodeAdded:
    """A thought, or a tool call that thoughts may follow from, enters the graph."""

    key: int
    """The number of the node, from 0; ids may occur twice, keys do not."""
    node: ThoughtStreamEvent | ToolCall

    @property
    def id(self) -> str:
        """The id of the thought or call."""
        return self.node.thought_id if isinstance(self.node, ThoughtStreamEvent) else self.node.id

    def to_json(self) -> bytes:
        """The node in the form of `ThoughtGraph.to_json`: a list of this one node, and no edges."""
        return formats.json({self.key: self.node}, [])


@dataclass(frozen=True, slots=True)
class EdgeAdded:
    """A thought follows from a node that is there, or replaces it."""

    source: int
    """The key of the node that it follows from, or replaces."""
    target: int
    """The key of the thought."""
    kind: EdgeKind
    """As in an `Edge` of a `ThoughtGraph`."""

    def to_json(self) -> bytes:
        """The edge in the form of `ThoughtGraph.to_json`: no nodes, and a list of this one edge."""
        return formats.json({}, [Link(self.source, self.target, self.kind)])


GraphDelta = NodeAdded | EdgeAdded
"""One change of a graph: it only grows."""


def graph_deltas() -> View[Event, GraphDelta]:
    """Give the graph of the thoughts as small changes: a node is added, an edge is added.

    For a drawing that grows, on a page or over a wire: `thought_graph` gives the whole graph at each thought. All
    changes together add up to the same nodes and edges. An edge comes when both its ends are there, so a reference to a
    later thought gives its edge later. All tool calls are there, even if no thought names them, except those of hidden
    tools: a drawing is for everybody.

    ::

        source             --t1--c------t2------|      t2 follows from the call c
        graph_deltas()     --N0--N1-----(N2,E)--|      N a node, E the edge from 1 to 2

    Example:
        >>> run.pipe(op.graph_deltas()).subscribe(lambda delta: queue.put_nowait(delta.to_json()))

    Returns:
        A view of changes, each node before its edges.
    """

    def grow(out: ViewOutput[GraphDelta]) -> Callable[[Event], None]:
        graph = ThoughtGraph()
        # The thoughts whose references have led to nothing so far, by the run and the id that they name.
        dangling: dict[tuple[str, str], list[int]] = {}
        hidden: set[int] = set()

        def take(event: Event) -> None:
            nonlocal graph
            before, graph = graph, graph.add(event) if event.durable else graph
            if graph is before:
                return
            found = [key for name in _names(event) for key in dangling.pop((event.task_id, name), ())]
            nodes, links = graph.grown(before, sorted(found))
            led = {link.target for link in links if link.kind not in ("revision", "merge")}
            for key, node in nodes.items():
                if isinstance(node, ThoughtStreamEvent) and node.related_to and key not in led:
                    dangling.setdefault((node.task_id, node.related_to), []).append(key)
            for key, node in nodes.items():
                if (shown := formats.shown(node)) is not None:
                    out.emit(NodeAdded(key, shown))
                else:
                    hidden.add(key)
            for link in links:
                if not hidden & {link.source, link.target}:
                    out.emit(EdgeAdded(*link))

        return take

    return make_view(grow)


def _names(event: Event) -> set[str]:
    """The ids by which thoughts may refer to what an event adds to the graph."""
    match event:
        case ThoughtStreamEvent():
            return {event.thought_id} | ({event.tool_call_id} if event.tool_call_id is not None else set())
        case ContentCompleteEvent():
            return {call.id for call in event.tool_calls}
        case ToolStartEvent():
            return {event.call.id}
        case _:
            return set()
