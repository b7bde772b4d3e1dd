"""Client messages and event stream parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rxloop.server.agui.frames import Data

Base = Callable[[], list[Data]]
"""Lazily loaded messages that the client already has."""


class Messages:
    """Ordered client messages by id."""

    def __init__(
        self,
        base: Iterable[str] = (),
        written: Base = list,
        answered: Mapping[str, Any] | None = None,
        named: Mapping[str, str] | None = None,
    ) -> None:
        """Initialize with the existing messages of the client.

        Args:
            base: Ids of the existing messages.
            written: Returns the existing messages.
            answered: Results that the client itself provided, by call.
            named: Ids of the client's tool messages, by call.
        """
        self.answered = answered or {}
        self._named = named or {}
        self.base = set(base)
        """Existing message ids not yet replaced by the run."""
        self.had = bool(self.base)
        """True if the client already had messages."""
        self._written = written
        self._own: dict[str, Data] = {}
        self._texts: dict[str, list[str]] = {}
        self._results: dict[str, list[str]] = {}
        """Call results by message id."""
        self._place: dict[str, str] = {}
        """Message ids by call id."""

    def __contains__(self, id: str) -> bool:
        return id in self._own or id in self.base

    def put(self, id: str, role: str, content: Any = None, **fields: Any) -> Data:
        """Add a message, replacing an existing message with the same id."""
        self.base.discard(id)
        made = {"id": id, "role": role, **{name: value for name, value in fields.items() if value is not None}}
        if content is not None:
            made["content"] = content
        self._own[id] = made
        return made

    def open(self, id: str, role: str, owner: str | None) -> list[str]:
        """Open a message for text and return its list of deltas."""
        if id not in self._own:
            self.put(id, role, subagentRunId=owner)
        return self._texts.setdefault(id, [])

    def begin_call(self, id: str, name: str, message: str, owner: str | None) -> list[str]:
        """Add a call to a message, returning the list for argument deltas."""
        if message not in self._own:
            self.put(message, "assistant", subagentRunId=owner)
        call = {"id": id, "type": "function", "function": {"name": name, "arguments": ""}}
        self._own[message].setdefault("toolCalls", []).append(call)
        self._place[id] = message
        return self._texts.setdefault(f"call {id}", [])

    def revise_call(self, id: str, arguments: str) -> None:
        """Replace a call's arguments."""
        self._texts[f"call {id}"] = [arguments]

    def answer(self, id: str, call: str, content: Any, owner: str | None) -> None:
        """Add a call's result after the calling message."""
        named = self._named.get(call, id)
        self.put(named, "tool", content, toolCallId=call, subagentRunId=owner)
        self._results.setdefault(self._place.get(call, ""), []).append(named)

    def drop(self, ids: Iterable[str]) -> None:
        """Remove messages by id."""
        for each in ids:
            self._own.pop(each, None)
            self._texts.pop(each, None)

    def drop_call(self, id: str) -> None:
        """Remove a call, including its message if nothing else remains."""
        message = self._own.get(self._place.pop(id, ""))
        if message is None:
            return
        message["toolCalls"] = [call for call in message["toolCalls"] if call["id"] != id]
        if not message["toolCalls"]:
            del message["toolCalls"]
            if not self._texts.get(message["id"]):
                self.drop([message["id"]])

    def all(self, *, activities: bool) -> list[Data]:
        """Return all messages in order, with or without activities."""
        own: list[Data] = []
        behind = {each for results in self._results.values() for each in results}
        for name, message in self._own.items():
            if name in behind or (message["role"] == "activity" and not activities):
                continue
            own.append(self._whole(message))
            own += [{**self._own[each]} for each in self._results.get(name, ()) if each in self._own]
        own += [{**self._own[each]} for each in self._results.get("", ()) if each in self._own]
        before = self._written()
        # Keep the client's own ids for tool results.
        named = {message["toolCallId"]: message["id"] for message in before if message.get("role") == "tool"}
        for message in own:
            if message["role"] == "tool":
                message["id"] = named.get(message["toolCallId"], message["id"])
        mine = {message["id"] for message in own}
        first = [message for message in before if message["id"] not in mine and message["id"] not in self._own]
        return [*first, *own]

    def _whole(self, message: Data) -> Data:
        made = dict(message)
        if message["id"] in self._texts:
            made["content"] = "".join(self._texts[message["id"]])
        if "toolCalls" in message:
            made["toolCalls"] = [self._whole_call(call) for call in message["toolCalls"]]
        return made

    def _whole_call(self, call: Data) -> Data:
        arguments = "".join(self._texts.get(f"call {call['id']}", ()))
        return {**call, "function": {**call["function"], "arguments": arguments}}


@dataclass(frozen=True, slots=True)
class Telling:
    """Parameters of an AG-UI event stream.

    Attributes:
        thread_id: Conversation id.
        run_id: Client's id for this attempt.
        messages: Creates the messages that the client already has.
        after: Sequence number of the last durable event that the client has, or receives in a snapshot.
        restated: True if the stream starts with a snapshot.
        reasoning: Ids of reasoning messages that the client has.
        state: Name of the custom event that contains the application state.
    """

    thread_id: str
    run_id: str
    messages: Callable[[], Messages] = Messages
    after: int = 0
    restated: bool = False
    activities: bool = False
    """True if the snapshot also includes all activities of the conversation."""
    reasoning: frozenset[str] = field(default_factory=frozenset[str])
    state: str | None = None
