"""Append-only store of the nodes of a graph."""

from __future__ import annotations

from rxloop.protocol.events import Event, SubtaskEvent, ThoughtStreamEvent
from rxloop.protocol.messages import ToolCall
from rxloop.thinking.graph.formats import Node

Conversation = tuple[str, str | None]
"""Key of a context and a nested run. References do not cross nested runs."""


class Store:
    """Append-only store shared by all graph versions. Each version uses a prefix."""

    __slots__ = ("_named", "_named_count", "conversations", "indices", "messages", "nested", "nodes", "thoughts")

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        """Thoughts and tool calls in event order."""
        self.messages: list[tuple[str, str | None]] = []
        """Run id and step of each node. The pair identifies the message."""
        self.thoughts: list[int] = []
        """Indices of the thoughts."""
        self.conversations: list[Conversation] = []
        """Conversation of each node's run."""
        self.indices: dict[tuple[str, str], list[int]] = {}
        """Possible targets of references to an id within a run."""
        self._named: dict[tuple[Conversation, str], list[int]] = {}
        self._named_count = 0
        """Number of nodes in `_named`, which is only filled when a thought refers to an earlier run."""
        self.nested: dict[str, int] = {}
        """Tool calls that started nested runs, by the id of the nested run."""

    def copy(self, length: int) -> Store:
        """Return a store with the first nodes of this store."""
        store = Store()
        for index, node in enumerate(self.nodes[:length]):
            store.append(node, self.messages[index], self.conversations[index])
        store.nested = {task_id: index for task_id, index in self.nested.items() if index < length}
        return store

    def append(self, node: Node, message: tuple[str, str | None], conversation: Conversation) -> None:
        """Add a node."""
        index = len(self.nodes)
        self.nodes.append(node)
        self.messages.append(message)
        self.conversations.append(conversation)
        if isinstance(node, ThoughtStreamEvent):
            self.thoughts.append(index)
        for name in _list_names(node):
            self.indices.setdefault((message[0], name), []).append(index)

    def find_named(self, conversation: Conversation, name: str) -> list[int]:
        """Return the possible targets of a reference to earlier runs of a conversation."""
        for index in range(self._named_count, len(self.nodes)):
            key = self.conversations[index]
            for each in _list_names(self.nodes[index]) if key[0] else ():
                self._named.setdefault((key, each), []).append(index)
        self._named_count = len(self.nodes)
        return self._named.get((conversation, name), [])

    def find_call(self, event: Event, call_id: str | None, length: int) -> int | None:
        """Find a call that was requested by the same message as an event."""
        message = (event.task_id, event.step)
        for index in self.indices.get((event.task_id, call_id or ""), ()):
            if index < length and self.messages[index] == message and isinstance(self.nodes[index], ToolCall):
                return index
        return None

    def add_nested_run(self, event: SubtaskEvent, length: int) -> None:
        """Store the call that started a nested run."""
        call = self.find_call(event, event.tool_call_id, length)
        if call is not None:
            self.nested[event.subtask_id] = call


def _list_names(node: Node) -> list[str]:
    """Return the ids by which thoughts refer to a node."""
    name = get_id(node)
    if isinstance(node, ThoughtStreamEvent) and node.tool_call_id not in (None, name):
        return [name, node.tool_call_id]
    return [name]


def get_id(node: Node) -> str:
    """Return the id of a thought or call."""
    return node.thought_id if isinstance(node, ThoughtStreamEvent) else node.id
