"""Client messages and event stream parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rxloop.server.agui.frames import Data

LoadMessages = Callable[[], list[Data]]
"""Lazily loaded messages that the client already has."""


class Messages:
    """Ordered client messages by id."""

    def __init__(
        self,
        client_ids: Iterable[str] = (),
        load: LoadMessages = list,
        client_results: Mapping[str, Any] | None = None,
        result_ids: Mapping[str, str] | None = None,
    ) -> None:
        """Initialize with the existing messages of the client.

        Args:
            client_ids: Ids of the existing messages.
            load: Loads the existing messages.
            client_results: Results that the client itself provided, by call.
            result_ids: Ids of the client's tool messages, by call.
        """
        self.client_results = client_results or {}
        self._result_ids = result_ids or {}
        self.client_ids = set(client_ids)
        """Existing message ids not yet replaced by the run."""
        self.has_client_messages = bool(self.client_ids)
        """True if the client already had messages."""
        self._load = load
        self._messages: dict[str, Data] = {}
        self._texts: dict[str, list[str]] = {}
        """Deltas of open messages by id."""
        self._arguments: dict[str, list[str]] = {}
        """Argument deltas for each open call."""
        self._calls: dict[str, Data] = {}
        self._results: dict[str, list[str]] = {}
        """Call results by message id."""
        self._callers: dict[str, str] = {}
        """Message ids by call id."""

    def __contains__(self, id: str) -> bool:
        return id in self._messages or id in self.client_ids

    def add(self, id: str, role: str, content: Any = None, **fields: Any) -> Data:
        """Add a message, replacing an existing message with the same id."""
        self.client_ids.discard(id)
        message = {"id": id, "role": role, **{name: value for name, value in fields.items() if value is not None}}
        if content is not None:
            message["content"] = content
        self._messages[id] = message
        return message

    def open(self, id: str, role: str, owner: str | None) -> list[str]:
        """Open a message for text and return its list of deltas."""
        if id not in self._messages:
            self.add(id, role, subagentRunId=owner)
        return self._texts.setdefault(id, [self._messages[id].get("content", "")])

    def close(self, id: str) -> None:
        """Store the complete text of a message, so snapshots need not join deltas."""
        if (deltas := self._texts.pop(id, None)) is not None and id in self._messages:
            self._messages[id]["content"] = "".join(deltas)

    def start_call(self, id: str, name: str, message: str, owner: str | None) -> list[str]:
        """Add a call to a message, returning the list for argument deltas."""
        if message not in self._messages:
            self.add(message, "assistant", subagentRunId=owner)
        call = {"id": id, "type": "function", "function": {"name": name, "arguments": ""}}
        self._messages[message].setdefault("toolCalls", []).append(call)
        self._callers[id], self._calls[id] = message, call
        return self._arguments.setdefault(id, [])

    def close_call(self, id: str) -> None:
        """Join a call's argument deltas."""
        if (deltas := self._arguments.pop(id, None)) is not None:
            self._calls[id]["function"]["arguments"] = "".join(deltas)

    def revise_call(self, id: str, arguments: str) -> None:
        """Replace a call's arguments."""
        self._arguments.pop(id, None)
        if id in self._calls:
            self._calls[id]["function"]["arguments"] = arguments

    def answer(self, id: str, call: str, content: Any, owner: str | None) -> None:
        """Add a call's result after the calling message."""
        message_id = self._result_ids.get(call, id)
        self.add(message_id, "tool", content, toolCallId=call, subagentRunId=owner)
        self._results.setdefault(self._callers.get(call, ""), []).append(message_id)

    def drop(self, ids: Iterable[str]) -> None:
        """Remove messages by id."""
        for each in ids:
            self._messages.pop(each, None)
            self._texts.pop(each, None)

    def drop_call(self, id: str) -> None:
        """Remove a call, including its message if nothing else remains."""
        message = self._messages.get(self._callers.pop(id, ""))
        self._calls.pop(id, None)
        self._arguments.pop(id, None)
        if message is None:
            return
        message["toolCalls"] = [call for call in message["toolCalls"] if call["id"] != id]
        if not message["toolCalls"]:
            del message["toolCalls"]
            if not self._read_text(message):
                self.drop([message["id"]])

    def all(self, *, activities: bool) -> list[Data]:
        """Return all messages in order. Do not change them, because complete messages are not copied."""
        own: list[Data] = []
        unfinished = {*self._texts, *(self._callers[call] for call in self._arguments)}
        # Results follow their calls.
        omitted = {"tool"} if activities else {"tool", "activity"}
        for name, message in self._messages.items():
            if message["role"] in omitted:
                continue
            own.append(self._join_deltas(message) if name in unfinished else message)
            own += [self._messages[each] for each in self._results.get(name, ()) if each in self._messages]
        own += [self._messages[each] for each in self._results.get("", ()) if each in self._messages]
        existing = self._load()
        if not existing:
            return own
        # Keep the client's own ids for tool results.
        result_ids = {message["toolCallId"]: message["id"] for message in existing if message.get("role") == "tool"}
        own = [
            {**message, "id": result_ids.get(message["toolCallId"], message["id"])}
            if message["role"] == "tool"
            else message
            for message in own
        ]
        ids = {message["id"] for message in own}
        first = [message for message in existing if message["id"] not in ids and message["id"] not in self._messages]
        return [*first, *own]

    def _read_text(self, message: Data) -> str:
        deltas = self._texts.get(message["id"])
        return message.get("content", "") if deltas is None else "".join(deltas)

    def _join_deltas(self, message: Data) -> Data:
        message = dict(message)
        if message["id"] in self._texts:
            message["content"] = self._read_text(message)
        if "toolCalls" in message:
            message["toolCalls"] = [self._join_arguments(call) for call in message["toolCalls"]]
        return message

    def _join_arguments(self, call: Data) -> Data:
        deltas = self._arguments.get(call["id"])
        return call if deltas is None else {**call, "function": {**call["function"], "arguments": "".join(deltas)}}


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Parameters of an AG-UI event stream.

    Attributes:
        thread_id: Conversation id.
        run_id: Client's id for this attempt.
        make_messages: Creates the messages that the client already has.
        after: Sequence number of the last durable event that the client has, or receives in a snapshot.
        snapshot: True if the stream starts with a snapshot.
        reasoning: Ids of reasoning messages that the client has.
        state: Name of the custom event that contains the application state.
        is_legacy: True for clients before AG-UI 1.0, which reject the fields and outcomes that 1.0 added.
    """

    thread_id: str
    run_id: str
    make_messages: Callable[[], Messages] = Messages
    after: int = 0
    snapshot: bool = False
    activities: bool = False
    """True if the snapshot also includes all activities of the conversation."""
    reasoning: frozenset[str] = field(default_factory=frozenset[str])
    state: str | None = None
    is_legacy: bool = False
