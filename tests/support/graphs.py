"""Thought graph rebuilt from its deltas and compared with the original."""

from __future__ import annotations

from collections.abc import Iterable

import orjson

from rxloop import Event, ThoughtGraph, ThoughtStreamEvent, op
from rxloop.operators import EdgeAdded, GraphDelta, NodeAdded
from rxloop.protocol.messages import ToolCall
from support.timelines import collect_values


class RebuiltGraph:
    """Graph built by applying deltas."""

    def __init__(self) -> None:
        self.nodes: dict[int, ThoughtStreamEvent | ToolCall] = {}
        self._edges: list[EdgeAdded] = []
        self._page: dict[str, dict[str, object]] = {}
        self._links: list[dict[str, str]] = []

    def apply(self, delta: GraphDelta) -> None:
        """Apply a delta."""
        patch = orjson.loads(delta.to_json())
        self._page |= {node["key"]: node for node in patch["nodes"]}
        self._links += patch["edges"]
        match delta:
            case NodeAdded():
                assert delta.key == len(self.nodes)
                self.nodes[delta.key] = delta.node
            case EdgeAdded():
                assert {delta.source, delta.target} <= self.nodes.keys()
                assert delta not in self._edges
                self._edges.append(delta)

    def matches(self, graph: ThoughtGraph) -> bool:
        """Return True if the graphs are equal."""
        nodes = [self.nodes[key] for key in sorted(self.nodes)]
        thoughts = tuple(node for node in nodes if isinstance(node, ThoughtStreamEvent))
        calls = tuple(node for node in nodes if isinstance(node, ToolCall))
        # Edges to predecessors precede revisions and merges.
        edges = sorted(self._edges, key=lambda edge: (edge.target, edge.kind in ("revision", "merge")))
        ids = {
            key: node.thought_id if isinstance(node, ThoughtStreamEvent) else node.id for key, node in enumerate(nodes)
        }
        drawn = orjson.loads(graph.to_json())
        return (
            (thoughts, calls) == (graph.thoughts, graph.calls)
            and [(ids[edge.source], ids[edge.target], edge.kind) for edge in edges] == list(graph.edges)
            and all(self._page[node["key"]] == node for node in drawn["nodes"])
            and sorted(map(orjson.dumps, self._links)) == sorted(map(orjson.dumps, drawn["edges"]))
        )


def rebuild_matches(events: Iterable[Event], graph: ThoughtGraph) -> bool:
    """Return True if the deltas of these events rebuild the graph."""
    built = RebuiltGraph()
    for delta in collect_values(op.graph_deltas(), events):
        built.apply(delta)
    return built.matches(graph)
