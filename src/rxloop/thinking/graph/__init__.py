"""Graph of thoughts and tool calls, built from events."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import NamedTuple, overload

from rxloop.protocol.events import ContentCompleteEvent, Event, SubtaskEvent, ThoughtStreamEvent, ToolStartEvent
from rxloop.protocol.messages import ToolCall
from rxloop.support.text import to_one_line
from rxloop.thinking.graph import formats
from rxloop.thinking.graph.formats import EdgeKind, Link, Node
from rxloop.thinking.graph.store import Store, get_id


class Edge(NamedTuple):
    """Directed edge of a thought graph. Sources can also be tool calls."""

    source: str
    """Id of the source thought or call."""
    target: str
    """Id of the target thought."""
    kind: EdgeKind
    """Relation between the two nodes."""


class ThoughtGraph:
    """Immutable graph of a run's thoughts and tool calls.

    An edge leads from the thought or call with the id `related_to` to the thought. If several have this id, the nearest
    earlier one in the run is used, then the most recent one in earlier runs of the conversation, then the next later
    one in the run. The id of a call that created a thought refers to the thought. References to unknown ids or to the
    thought itself are not edges. References may form cycles.

    Iteration yields the thoughts in order. `graph["plan"]` is the newest thought with that id, and `graph[0]` is the
    first thought.
    """

    # Graph versions share an append-only store, so `add` on the newest version avoids a copy. Adding to an older
    # version copies the visible prefix.
    __slots__ = ("_length", "_store", "_thoughts")

    def __init__(self) -> None:
        self._store = Store()
        self._length = 0
        self._thoughts = 0

    @classmethod
    def of(cls, events: Iterable[Event]) -> ThoughtGraph:
        """Create a graph from events, ignoring unrelated event types."""
        graph = cls()
        for event in events:
            graph = graph.add(event)
        return graph

    def add(self, event: Event) -> ThoughtGraph:
        """Return the graph with another event, or the same graph if the event adds nothing."""
        nodes: list[Node]
        match event:
            case ThoughtStreamEvent():
                nodes = [event]
            case ContentCompleteEvent() if event.finish_reason != "canceled":
                nodes = list(event.tool_calls)
            case ToolStartEvent() if self._store.find_call(event, event.call.id, self._length) is None:
                # A filtered stream may only contain the start of the call.
                nodes = [event.call]
            case SubtaskEvent() if self._length:
                graph = self._extend([], event)
                graph._store.add_nested_run(event, self._length)
                return graph
            case _:
                return self
        return self._extend(nodes, event) if nodes else self

    def _extend(self, nodes: list[Node], event: Event) -> ThoughtGraph:
        store = self._store
        # Extending an empty graph creates a new store, because many runs share the same empty graph initially.
        if not 0 < self._length == len(store.nodes):
            store = store.copy(self._length)
        for node in nodes:
            store.append(node, (event.task_id, event.step), (event.context_id, event.parent_task_id))
        graph = ThoughtGraph.__new__(ThoughtGraph)
        graph._store = store
        graph._length = len(store.nodes)
        graph._thoughts = len(store.thoughts)
        return graph

    def __len__(self) -> int:
        return self._thoughts

    def __iter__(self) -> Iterator[ThoughtStreamEvent]:
        return iter(self.thoughts)

    def __contains__(self, item: object) -> bool:
        if isinstance(item, str):
            return any(thought.thought_id == item for thought in self.thoughts)
        return item in self.thoughts

    @overload
    def __getitem__(self, key: str | int) -> ThoughtStreamEvent: ...
    @overload
    def __getitem__(self, key: slice) -> tuple[ThoughtStreamEvent, ...]: ...
    def __getitem__(self, key: str | int | slice) -> ThoughtStreamEvent | tuple[ThoughtStreamEvent, ...]:
        if not isinstance(key, str):
            return self.thoughts[key]
        matches = [thought for thought in reversed(self.thoughts) if thought.thought_id == key]
        if not matches:
            raise KeyError(key)
        # Nested runs number their thoughts separately.
        return next((thought for thought in matches if thought.parent_task_id is None), matches[0])

    def __repr__(self) -> str:
        return f"<ThoughtGraph of {len(self)} thoughts and {len(self.calls)} calls>"

    @property
    def thoughts(self) -> tuple[ThoughtStreamEvent, ...]:
        """Thoughts in order."""
        nodes = (self._store.nodes[index] for index in self._store.thoughts[: self._thoughts])
        return tuple(node for node in nodes if isinstance(node, ThoughtStreamEvent))

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """Tool calls in event order."""
        return tuple(node for node in self._store.nodes[: self._length] if isinstance(node, ToolCall))

    @property
    def edges(self) -> tuple[Edge, ...]:
        """Graph edges, ordered by target thought."""
        nodes = self._store.nodes
        return tuple(
            Edge(get_id(nodes[source]), get_id(nodes[target]), kind)
            for source, target, kind in self._links(self._parents())
        )

    def grown(self, before: ThoughtGraph, dangling: Iterable[int] = ()) -> tuple[dict[int, Node], list[Link]]:
        """Return the nodes and edges that an earlier version of this graph does not have.

        Args:
            before: The earlier version.
            dangling: Indices of its thoughts with unresolved references. Other thoughts cannot gain edges.
        """
        nodes = {index: self._store.nodes[index] for index in range(before._length, self._length)}
        links: list[Link] = []
        for index in (*dangling, *nodes):
            if (parent := self._parent(index)) is not None:
                links.append(self._link(parent, index))
            if index in nodes:
                links += self._iterate_session_links(index)
        return nodes, links

    def chains(self) -> list[list[Node]]:
        """Return all root-to-leaf paths.

        Cycles are split at the first thought. Unreferenced tool calls are omitted.
        """
        parents = _break_cycles(self._parents())
        inner = set(parents.values())
        drawn = {*self._store.thoughts[: self._thoughts], *inner}
        chains: list[list[Node]] = []
        for leaf in sorted(drawn - inner):
            line = [leaf]
            while (above := parents.get(line[-1])) is not None:
                line.append(above)
            chains.append([self._store.nodes[index] for index in reversed(line)])
        return chains

    def tree(self, width: int = 80) -> str:
        """Render the graph as a text tree for terminals.

        Tool calls are also placed below the last thought of the same message, and the first thoughts of a nested
        run below the call that started it. Unreferenced calls in messages without thoughts are omitted. Calls that
        created a thought are merged with that thought.

        Args:
            width: Maximum thought length in characters.
        """
        edges = self._parents()
        parents = edges | self._placements(edges)
        parents = {index: above for index, above in parents.items() if self._is_drawn(index) and self._is_drawn(above)}
        edges = {index: above for index, above in edges.items() if index in parents}
        parents = _break_cycles(parents)
        drawn = {*self._store.thoughts[: self._thoughts], *parents, *parents.values()}
        below: dict[int | None, list[int]] = {}
        for index in sorted(drawn):
            below.setdefault(parents.get(index), []).append(index)

        def label(index: int) -> str:
            node = formats.to_public(self._store.nodes[index]) or self._store.nodes[index]
            text = formats.label(node, width)
            if isinstance(node, ThoughtStreamEvent) and node.related_to and not (index in edges and index in parents):
                text += f" [circle: {to_one_line(node.related_to)}]" if index in edges else _describe_dangling(node)
            return text

        return formats.tree(below, label)

    def to_mermaid(self) -> str:
        """Draw the graph as a Mermaid flowchart.

        Dotted arrows lead from thoughts to the calls of the same message, and from calls to nested runs, as in `tree`.
        """
        return formats.to_mermaid(*self._drawing_with_placements())

    def to_dot(self) -> str:
        """Return the graph in the Graphviz language, with the same nodes and arrows as in `to_mermaid`."""
        return formats.to_dot(*self._drawing_with_placements())

    def to_json(self) -> bytes:
        """Serialize the graph to JSON. Nodes have a unique `key`, and edges refer to node keys."""
        return formats.json(*self._drawing())

    def to_html(self, title: str = "Thoughts") -> str:
        """Return the graph as one HTML file for any browser. A click on a node shows its full text.

        Args:
            title: Title of the page.
        """
        # Imported lazily, because most programs do not need the large template.
        from rxloop.thinking.graph.html import html

        return html(*self._drawing_with_placements(), title)

    def _drawing(self) -> tuple[dict[int, Node], list[Link]]:
        """Return visible nodes by index, along with their edges.

        Hidden tool calls are omitted because drawings are public.
        """
        parents = self._parents()
        drawn = sorted({*self._store.thoughts[: self._thoughts], *parents.values()})
        nodes = {index: node for index in drawn if (node := formats.to_public(self._store.nodes[index])) is not None}
        return nodes, [
            link for link in self._links(parents) if self._is_drawn(link.source) and self._is_drawn(link.target)
        ]

    def _drawing_with_placements(self) -> tuple[dict[int, Node], list[Link], list[tuple[int, int]]]:
        """Return visible nodes, edges, and the pairs of nodes that only `tree` connects."""
        nodes, links = self._drawing()
        parents = self._parents()
        placed = {
            index: above
            for index, above in self._placements(parents).items()
            if self._is_drawn(index) and self._is_drawn(above) and parents.get(above) != index
        }
        for index in sorted({*nodes, *placed, *placed.values()}):
            nodes[index] = nodes.pop(index, self._store.nodes[index])
        return nodes, links, [(above, index) for index, above in sorted(placed.items())]

    def _is_drawn(self, index: int) -> bool:
        """Return True if a node is drawn."""
        return formats.to_public(self._store.nodes[index]) is not None

    def _links(self, parents: dict[int, int]) -> list[Link]:
        """Yield the edges between indices in the order of the thoughts: sources and revised thoughts."""
        links: list[Link] = []
        for index in self._store.thoughts[: self._thoughts]:
            if (parent := parents.get(index)) is not None:
                links.append(self._link(parent, index))
            links += self._iterate_session_links(index)
        return links

    def _link(self, parent: int, index: int) -> Link:
        return Link(parent, index, _kind(self._store.nodes[parent], self._store.nodes[index]))

    def _iterate_session_links(self, index: int) -> Iterator[Link]:
        """Yield revision and merge links of a session thought."""
        thought = self._store.nodes[index]
        if not isinstance(thought, ThoughtStreamEvent) or thought.session is None:
            return
        named: list[tuple[EdgeKind, str | None]] = [
            ("revision", thought.session.revises_id),
            ("merge", thought.session.merges_id),
        ]
        for kind, source in named:
            if source is None:
                continue
            before = self._store.indices.get((thought.task_id, source), [])
            count = bisect_left(before, index)
            target = before[count - 1] if count > 0 else self._in_earlier_run(source, index)
            if target is not None:
                yield Link(target, index, kind)

    def _parents(self) -> dict[int, int]:
        """Map each thought index to its source index."""
        thoughts = self._store.thoughts[: self._thoughts]
        return {index: parent for index in thoughts if (parent := self._parent(index)) is not None}

    def _parent(self, index: int) -> int | None:
        """Return the index of a thought's source."""
        store = self._store
        thought = store.nodes[index]
        if not isinstance(thought, ThoughtStreamEvent) or not thought.related_to:
            return None
        named = store.indices.get((thought.task_id, thought.related_to), [])
        at = bisect_left(named, index)
        if thought.related_to == thought.tool_call_id and at > 0:
            # Skip the call that created this thought. Some vendors reuse call ids, so an older call may have the same
            # id.
            at -= store.messages[named[at - 1]] == store.messages[index]
        if at > 0:
            return named[at - 1]
        earlier = self._in_earlier_run(thought.related_to, index)
        if earlier is not None:
            return earlier
        return next((other for other in named if index < other < self._length), None)

    def _in_earlier_run(self, name: str, index: int) -> int | None:
        """Return the most recent matching index from an earlier run in the same conversation."""
        store = self._store
        named = store.find_named(store.conversations[index], name)
        run = store.messages[index][0]
        before = (named[at] for at in range(bisect_left(named, index) - 1, -1, -1))
        return next((other for other in before if store.messages[other][0] != run), None)

    def _placements(self, parents: dict[int, int]) -> dict[int, int]:
        """Place calls below the last thought of their message, and nested runs below their call.

        Calls that created a thought are omitted.
        """
        store = self._store
        placed: dict[int, int] = {}
        last: dict[tuple[str, str | None], int] = {}
        created: set[tuple[tuple[str, str | None], str | None]] = set()
        for index in store.thoughts[: self._thoughts]:
            last[store.messages[index]] = index
            node = store.nodes[index]
            if isinstance(node, ThoughtStreamEvent):
                created.add((store.messages[index], node.tool_call_id))
            caller = store.nested.get(store.messages[index][0])
            if caller is not None and caller < index and index not in parents:
                placed[index] = caller
        for index in range(self._length):
            node = store.nodes[index]
            message = store.messages[index]
            if isinstance(node, ToolCall) and message in last and (message, node.id) not in created:
                placed[index] = last[message]
        return placed


def _break_cycles(parents: dict[int, int]) -> dict[int, int]:
    """Convert the graph to a forest by breaking cycles at their first node."""
    result = dict(parents)
    finished: set[int] = set()
    for start in parents:
        path: dict[int, None] = {}
        node: int | None = start
        while node is not None and node not in path and node not in finished:
            path[node] = None
            node = result.get(node)
        if node is not None and node in path:
            line = list(path)
            del result[min(line[line.index(node) :])]
        finished.update(path)
    return result


def _kind(source: Node, target: Node) -> EdgeKind:
    if isinstance(source, ToolCall):
        return "call"
    session = target.session if isinstance(target, ThoughtStreamEvent) else None
    return "branch" if session is not None and session.branch_from is not None else "thought"


def _describe_dangling(thought: ThoughtStreamEvent) -> str:
    """Return a note on a reference that cannot be resolved."""
    related_to = thought.related_to or ""
    itself = related_to in (thought.thought_id, thought.tool_call_id)
    return " [refers to itself]" if itself else f" [refers to {to_one_line(related_to)}, which is not here]"
