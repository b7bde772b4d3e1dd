"""A graph of thoughts that is built from its changes, and compared with the graph itself."""

from __future__ import annotations

from collections.abc import Iterable

import orjson

from rxloop import Event, ThoughtGraph, ThoughtStreamEvent, op
from rxloop.operators import EdgeAdded, GraphDelta, NodeAdded
from rxloop.protocol.messages import ToolCall
from support.timelines import values


class Rebuilt:
    """What somebody has who adds up all changes."""

    def __init__(self) -> None:
        self.nodes: dict[int, ThoughtStreamEvent | ToolCall] = {}
        self._edges: list[EdgeAdded] = []
        self._page: dict[str, dict[str, object]] = {}
        self._links: list[dict[str, str]] = []

    def apply(self, delta: GraphDelta) -> None:
        """Take one change."""
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

    def is_like(self, graph: ThoughtGraph) -> bool:
        """Whether it is exactly that graph."""
        nodes = [self.nodes[key] for key in sorted(self.nodes)]
        thoughts = tuple(node for node in nodes if isinstance(node, ThoughtStreamEvent))
        calls = tuple(node for node in nodes if isinstance(node, ToolCall))
        # What a thought follows from comes before what it revises and merges.
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


def rebuilds(events: Iterable[Event], graph: ThoughtGraph) -> bool:
    """Whether the changes that these events make add up to that graph."""
    built = Rebuilt()
    for delta in values(op.graph_deltas(), events):
        built.apply(delta)
    return built.is_like(graph)
