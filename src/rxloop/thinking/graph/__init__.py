"""Graph of the thoughts of a run, a fold of its events."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import NamedTuple, overload

from rxloop.protocol.events import ContentCompleteEvent, Event, ThoughtStreamEvent, ToolStartEvent
from rxloop.protocol.messages import ToolCall
from rxloop.support.text import to_one_line
from rxloop.thinking.graph import formats
from rxloop.thinking.graph.formats import EdgeKind, Link, Node


class Edge(NamedTuple):
    """Directed edge of a thought graph. Sources can also be tool calls."""

    source: str
    """Id of the preceding or replaced thought, or of the originating tool call."""
    target: str
    """Id of the target thought."""
    kind: EdgeKind
    """Source type, or the relation for branches, revisions and merges."""


Conversation = tuple[str, str | None]
"""Key of a context and a nested run. References do not cross nested runs."""


class _Store:
    """Append-only store shared by all graph versions. Each version uses a prefix."""

    __slots__ = ("conversations", "messages", "named", "nodes", "places", "thoughts")

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        """Thoughts and tool calls in event order."""
        self.messages: list[tuple[str, str | None]] = []
        """Run id and step of each node. The pair identifies the message."""
        self.thoughts: list[int] = []
        """Indices of the thoughts."""
        self.conversations: list[Conversation] = []
        """Conversation of each node's run."""
        self.places: dict[tuple[str, str], list[int]] = {}
        """Possible targets of references to an id within a run."""
        self.named: dict[tuple[Conversation, str], list[int]] = {}
        """Possible targets of references to earlier runs of a conversation."""


class ThoughtGraph:
    """Thoughts and tool calls of a run, with the edges between them.

    A thought follows the thought or call in its `related_to`: the last one with that id before it in its run, otherwise
    in an earlier run of its conversation, otherwise the first one after it. The id of a call that made a thought refers
    to the thought. References to unknown ids or to the thought itself are not edges. References may form cycles.

    Graphs are immutable: `add` returns a new one. Iteration yields the thoughts in order. `graph["plan"]` is the newest
    thought with that id, and `graph[0]` is the first thought.
    """

    # Graph versions share an append-only store, so `add` on the newest version avoids a copy. Adding to an older
    # version copies the visible prefix.
    __slots__ = ("_length", "_store", "_thoughts")

    def __init__(self) -> None:
        self._store = _Store()
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
            case ToolStartEvent() if not self._has_call(event):
                nodes = [event.call]
            case _:
                return self
        return self._extend(nodes, event) if nodes else self

    def _has_call(self, event: ToolStartEvent) -> bool:
        """True if the graph contains the message of a call.

        A filtered stream may only contain the start of the call.
        """
        places = self._store.places.get((event.task_id, event.call.id), ())
        message = (event.task_id, event.step)
        return any(
            place < self._length
            and self._store.messages[place] == message
            and isinstance(self._store.nodes[place], ToolCall)
            for place in places
        )

    def _extend(self, nodes: list[Node], event: Event) -> ThoughtGraph:
        store = self._store
        # Extending an empty graph creates a new store, because many runs share the same empty graph initially.
        if not 0 < self._length == len(store.nodes):
            store = _Store()
            for place, node in enumerate(self._store.nodes[: self._length]):
                _append(store, node, self._store.messages[place], self._store.conversations[place])
        for node in nodes:
            _append(store, node, (event.task_id, event.step), (event.context_id, event.parent_task_id))
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
        found = [thought for thought in reversed(self.thoughts) if thought.thought_id == key]
        if not found:
            raise KeyError(key)
        # Nested runs number their thoughts separately.
        return next((thought for thought in found if thought.parent_task_id is None), found[0])

    def __repr__(self) -> str:
        return f"<ThoughtGraph of {len(self)} thoughts and {len(self.calls)} calls>"

    @property
    def thoughts(self) -> tuple[ThoughtStreamEvent, ...]:
        """Thoughts in order."""
        nodes = (self._store.nodes[place] for place in self._store.thoughts[: self._thoughts])
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
            Edge(_id(nodes[source]), _id(nodes[target]), kind) for source, target, kind in self._links(self._parents())
        )

    def grown(self, before: ThoughtGraph, dangling: Iterable[int] = ()) -> tuple[dict[int, Node], list[Link]]:
        """Return the nodes and edges that an earlier version of this graph does not have.

        Args:
            before: The earlier version.
            dangling: Indices of its thoughts with unresolved references. Other thoughts cannot gain edges.
        """
        nodes = {place: self._store.nodes[place] for place in range(before._length, self._length)}
        links: list[Link] = []
        for place in (*dangling, *nodes):
            if (parent := self._parent(place)) is not None:
                links.append(self._link(parent, place))
            if place in nodes:
                links += self._iterate_session_links(place)
        return nodes, links

    def chains(self) -> list[list[Node]]:
        """Return all root-to-leaf paths.

        Cycles are split at the first thought. Unreferenced tool calls are omitted.
        """
        parents = _without_circles(self._parents())
        inner = set(parents.values())
        drawn = {*self._store.thoughts[: self._thoughts], *inner}
        chains: list[list[Node]] = []
        for leaf in sorted(drawn - inner):
            line = [leaf]
            while (above := parents.get(line[-1])) is not None:
                line.append(above)
            chains.append([self._store.nodes[place] for place in reversed(line)])
        return chains

    def tree(self, width: int = 80) -> str:
        """Render the graph as a text tree for terminals.

        Tool calls are additionally placed below the last thought of the same message. Unreferenced calls in messages
        without thoughts are omitted. Calls that created a thought are merged with that thought.

        Args:
            width: Maximum thought length in characters.
        """
        parents = self._parents()
        self._place_calls(parents)
        parents = {place: above for place, above in parents.items() if self._is_drawn(place) and self._is_drawn(above)}
        edges = dict(parents)
        parents = _without_circles(parents)
        drawn = {*self._store.thoughts[: self._thoughts], *parents, *parents.values()}
        below: dict[int | None, list[int]] = {}
        for place in sorted(drawn):
            below.setdefault(parents.get(place), []).append(place)

        def label(place: int) -> str:
            node = formats.to_public(self._store.nodes[place]) or self._store.nodes[place]
            text = formats.label(node, width)
            if isinstance(node, ThoughtStreamEvent) and node.related_to and place not in parents:
                text += f" [circle: {to_one_line(node.related_to)}]" if place in edges else _dangling(node)
            return text

        return formats.tree(below, label)

    def to_mermaid(self) -> str:
        """Draw the graph as a Mermaid flowchart."""
        return formats.mermaid(*self._drawing())

    def to_dot(self) -> str:
        """Return the graph in the Graphviz language."""
        return formats.dot(*self._drawing())

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

        return html(*self._drawing(), title)

    def _drawing(self) -> tuple[dict[int, Node], list[Link]]:
        """Return visible nodes by index, along with their edges.

        Hidden tool calls are omitted because drawings are public.
        """
        parents = self._parents()
        drawn = sorted({*self._store.thoughts[: self._thoughts], *parents.values()})
        nodes = {place: node for place in drawn if (node := formats.to_public(self._store.nodes[place])) is not None}
        return nodes, [
            link for link in self._links(parents) if self._is_drawn(link.source) and self._is_drawn(link.target)
        ]

    def _is_drawn(self, place: int) -> bool:
        """True if a node is drawn."""
        return formats.to_public(self._store.nodes[place]) is not None

    def _links(self, parents: dict[int, int]) -> list[Link]:
        """Yield the edges between indices in the order of the thoughts: sources and revised thoughts."""
        links: list[Link] = []
        for place in self._store.thoughts[: self._thoughts]:
            if (parent := parents.get(place)) is not None:
                links.append(self._link(parent, place))
            links += self._iterate_session_links(place)
        return links

    def _link(self, parent: int, place: int) -> Link:
        return Link(parent, place, _kind(self._store.nodes[parent], self._store.nodes[place]))

    def _iterate_session_links(self, place: int) -> Iterator[Link]:
        """Yield revision and merge links of a session thought."""
        thought = self._store.nodes[place]
        if not isinstance(thought, ThoughtStreamEvent) or thought.session is None:
            return
        named: list[tuple[EdgeKind, str | None]] = [
            ("revision", thought.session.revises_id),
            ("merge", thought.session.merges_id),
        ]
        for kind, source in named:
            if source is None:
                continue
            before = self._store.places.get((thought.task_id, source), [])
            at = bisect_left(before, place)
            found = before[at - 1] if at > 0 else self._in_earlier_run(source, place)
            if found is not None:
                yield Link(found, place, kind)

    def _parents(self) -> dict[int, int]:
        """Map each thought index to its source index."""
        places = self._store.thoughts[: self._thoughts]
        return {place: parent for place in places if (parent := self._parent(place)) is not None}

    def _parent(self, place: int) -> int | None:
        """Return the index of a thought's source."""
        store = self._store
        thought = store.nodes[place]
        if not isinstance(thought, ThoughtStreamEvent) or not thought.related_to:
            return None
        named = store.places.get((thought.task_id, thought.related_to), [])
        at = bisect_left(named, place)
        if thought.related_to == thought.tool_call_id and at > 0:
            # Skip the call that created this thought. Some vendors reuse call ids, so an older call may have the same
            # id.
            at -= store.messages[named[at - 1]] == store.messages[place]
        if at > 0:
            return named[at - 1]
        earlier = self._in_earlier_run(thought.related_to, place)
        if earlier is not None:
            return earlier
        return next((other for other in named if place < other < self._length), None)

    def _in_earlier_run(self, name: str, place: int) -> int | None:
        """Return the most recent matching index from an earlier run in the same conversation."""
        store = self._store
        named = store.named.get((store.conversations[place], name), [])
        run = store.messages[place][0]
        before = (named[at] for at in range(bisect_left(named, place) - 1, -1, -1))
        return next((other for other in before if store.messages[other][0] != run), None)

    def _place_calls(self, parents: dict[int, int]) -> None:
        """Attach tool calls to the last thought in their message."""
        store = self._store
        last: dict[tuple[str, str | None], int] = {}
        made: set[tuple[tuple[str, str | None], str | None]] = set()
        for place in store.thoughts[: self._thoughts]:
            last[store.messages[place]] = place
            node = store.nodes[place]
            if isinstance(node, ThoughtStreamEvent):
                made.add((store.messages[place], node.tool_call_id))
        for place in range(self._length):
            node = store.nodes[place]
            message = store.messages[place]
            if isinstance(node, ToolCall) and message in last and (message, node.id) not in made:
                parents[place] = last[message]


def _append(store: _Store, node: Node, message: tuple[str, str | None], conversation: Conversation) -> None:
    place = len(store.nodes)
    store.nodes.append(node)
    store.messages.append(message)
    store.conversations.append(conversation)
    names = {_id(node)}
    if isinstance(node, ThoughtStreamEvent):
        store.thoughts.append(place)
        if node.tool_call_id is not None:
            names.add(node.tool_call_id)
    for name in names:
        store.places.setdefault((message[0], name), []).append(place)
        if conversation[0]:
            store.named.setdefault((conversation, name), []).append(place)


def _without_circles(parents: dict[int, int]) -> dict[int, int]:
    """Convert the graph to a forest by breaking cycles at their first node."""
    result = dict(parents)
    finished: set[int] = set()
    for start in parents:
        path: dict[int, None] = {}
        at: int | None = start
        while at is not None and at not in path and at not in finished:
            path[at] = None
            at = result.get(at)
        if at is not None and at in path:
            line = list(path)
            del result[min(line[line.index(at) :])]
        finished.update(path)
    return result


def _id(node: Node) -> str:
    return node.thought_id if isinstance(node, ThoughtStreamEvent) else node.id


def _kind(source: Node, target: Node) -> EdgeKind:
    if isinstance(source, ToolCall):
        return "call"
    place = target.session if isinstance(target, ThoughtStreamEvent) else None
    return "branch" if place is not None and place.branch_from is not None else "thought"


def _dangling(thought: ThoughtStreamEvent) -> str:
    """Return a note on a reference that cannot be resolved."""
    related_to = thought.related_to or ""
    itself = related_to in (thought.thought_id, thought.tool_call_id)
    return " [refers to itself]" if itself else f" [refers to {to_one_line(related_to)}, which is not here]"
