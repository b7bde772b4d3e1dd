"""Append-only store of the nodes of a graph."""

from __future__ import annotations

from bisect import bisect_left

from rxloop.protocol.events import Event, SubtaskEvent, ThoughtStreamEvent
from rxloop.protocol.messages import ToolCall
from rxloop.thinking.graph.formats import Node

Conversation = tuple[str, str | None]
"""Key of a context and a nested run. References do not cross nested runs."""


class Store:
    """Append-only store shared by all graph versions. Each version uses a prefix."""

    __slots__ = ("conversations", "indices", "messages", "named", "nested", "nodes", "thoughts")

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
        self.named: dict[tuple[Conversation, str], list[int]] = {}
        """Possible targets of references to earlier runs of a conversation."""
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
        names = {get_id(node)}
        if isinstance(node, ThoughtStreamEvent):
            self.thoughts.append(index)
            if node.tool_call_id is not None:
                names.add(node.tool_call_id)
        for name in names:
            self.indices.setdefault((message[0], name), []).append(index)
            if conversation[0]:
                self.named.setdefault((conversation, name), []).append(index)

    def find_call(self, event: Event, call_id: str | None, length: int) -> int | None:
        """Find a call that was requested by the same message as an event."""
        indices = self.indices.get((event.task_id, call_id or ""), [])
        message = (event.task_id, event.step)
        calls = (index for index in indices[: bisect_left(indices, length)] if self.messages[index] == message)
        return next((index for index in calls if isinstance(self.nodes[index], ToolCall)), None)

    def add_nested_run(self, event: SubtaskEvent, length: int) -> None:
        """Store the call that started a nested run."""
        call = self.find_call(event, event.tool_call_id, length)
        if call is not None:
            self.nested[event.subtask_id] = call


def get_id(node: Node) -> str:
    """Return the id of a thought or call."""
    return node.thought_id if isinstance(node, ThoughtStreamEvent) else node.id
