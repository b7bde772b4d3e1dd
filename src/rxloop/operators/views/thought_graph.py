"""Thought graph views."""

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
    """Emit the graph of thoughts and related tool calls after each thought.

    ::

        source              --t1--c--t2-----|      t thought-stream, c a tool call
        thought_graph()     --G1-----G2-----|      G1 holds t1; G2 holds t1, c and t2

    Returns:
        View of immutable graphs. The last one contains all thoughts.
    """

    def grow(out: ViewOutput[ThoughtGraph]) -> Callable[[Event], None]:
        graph = ThoughtGraph()

        def handle(event: Event) -> None:
            nonlocal graph
            # Tool calls are also added, because thoughts can refer to them.
            if event.durable:
                graph = graph.add(event)
            if isinstance(event, ThoughtStreamEvent):
                out.emit(graph)

        return handle

    return make_view(grow)


@dataclass(frozen=True, slots=True)
class NodeAdded:
    """New node for a thought or tool call."""

    key: int
    """Index of the node, starting at 0. Unlike ids, keys are unique."""
    node: ThoughtStreamEvent | ToolCall

    @property
    def id(self) -> str:
        """The thought id or tool call id."""
        return self.node.thought_id if isinstance(self.node, ThoughtStreamEvent) else self.node.id

    def to_json(self) -> bytes:
        """Return JSON in the format of `ThoughtGraph.to_json`, with this node and no edges."""
        return formats.json({self.key: self.node}, [])


@dataclass(frozen=True, slots=True)
class EdgeAdded:
    """New edge from a node to a thought that follows from it or replaces it."""

    source: int
    """Key of the earlier node."""
    target: int
    """Key of the thought."""
    kind: EdgeKind
    """The edge kind."""

    def to_json(self) -> bytes:
        """Return JSON in the format of `ThoughtGraph.to_json`, with this edge and no nodes."""
        return formats.json({}, [Link(self.source, self.target, self.kind)])


GraphDelta = NodeAdded | EdgeAdded
"""Change of a graph. Nodes and edges are never removed."""


def graph_deltas() -> View[Event, GraphDelta]:
    """Emit the graph of the thoughts as added nodes and edges.

    Use it to draw a growing graph or to send it to a client; `thought_graph` emits the whole graph each time. All
    changes together result in the same nodes and edges. An edge is emitted after both of its nodes. Tool calls are
    included even if no thought refers to them, except for calls of hidden tools.

    ::

        source             --t1--c------t2------|      t2 follows from the call c
        graph_deltas()     --N0--N1-----(N2,E)--|      N a node, E the edge from 1 to 2

    Example:
        >>> run.pipe(op.graph_deltas()).subscribe(lambda delta: queue.put_nowait(delta.to_json()))

    Returns:
        View of changes. Each node precedes its edges.
    """

    def grow(out: ViewOutput[GraphDelta]) -> Callable[[Event], None]:
        graph = ThoughtGraph()
        # Thoughts with unresolved references, by run and referenced id.
        dangling: dict[tuple[str, str], list[int]] = {}
        hidden: set[int] = set()

        def handle(event: Event) -> None:
            nonlocal graph
            before, graph = graph, graph.add(event) if event.durable else graph
            if graph is before:
                return
            resolved = [key for name in _list_ids(event) for key in dangling.pop((event.task_id, name), ())]
            nodes, links = graph.grown(before, sorted(resolved))
            linked = {link.target for link in links if link.kind not in ("revision", "merge")}
            for key, node in nodes.items():
                if isinstance(node, ThoughtStreamEvent) and node.related_to and key not in linked:
                    dangling.setdefault((node.task_id, node.related_to), []).append(key)
            for key, node in nodes.items():
                if (public_node := formats.to_public(node)) is not None:
                    out.emit(NodeAdded(key, public_node))
                else:
                    hidden.add(key)
            for link in links:
                if not hidden & {link.source, link.target}:
                    out.emit(EdgeAdded(*link))

        return handle

    return make_view(grow)


def _list_ids(event: Event) -> set[str]:
    """Return the ids that thoughts can use to refer to an event."""
    match event:
        case ThoughtStreamEvent():
            return {event.thought_id} | ({event.tool_call_id} if event.tool_call_id is not None else set())
        case ContentCompleteEvent():
            return {call.id for call in event.tool_calls}
        case ToolStartEvent():
            return {event.call.id}
        case _:
            return set()
