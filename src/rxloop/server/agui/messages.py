"""Messages that the client has, and from where on it is told of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rxloop.server.agui.frames import Data

Base = Callable[[], list[Data]]
"""What the client has had before, read when it is needed."""


class Messages:
    """The messages of a client, each under its id, in the order in which it has them."""

    def __init__(
        self,
        base: Iterable[str] = (),
        written: Base = list,
        answered: Mapping[str, Any] | None = None,
        named: Mapping[str, str] | None = None,
    ) -> None:
        """Begin with what the client has.

        Args:
            base: The ids of its messages.
            written: Gives these messages.
            answered: By call: what it has itself answered.
            named: By call: under which id it has the answer to it.
        """
        self.answered = answered or {}
        self._named = named or {}
        self.base = set(base)
        """The ids of what it has had, as far as the run has said nothing of it."""
        self.had = bool(self.base)
        """Whether it has any."""
        self._written = written
        self._own: dict[str, Data] = {}
        self._texts: dict[str, list[str]] = {}
        self._results: dict[str, list[str]] = {}
        """By the message of a call: the answers to its calls."""
        self._place: dict[str, str] = {}
        """By call: its message."""

    def __contains__(self, id: str) -> bool:
        return id in self._own or id in self.base

    def put(self, id: str, role: str, content: Any = None, **fields: Any) -> Data:
        """Have a message, in place of one that the client had under that id."""
        self.base.discard(id)
        made = {"id": id, "role": role, **{name: value for name, value in fields.items() if value is not None}}
        if content is not None:
            made["content"] = content
        self._own[id] = made
        return made

    def open(self, id: str, role: str, owner: str | None) -> list[str]:
        """Let text be written into a message; gives where the pieces go."""
        if id not in self._own:
            self.put(id, role, subagentRunId=owner)
        return self._texts.setdefault(id, [])

    def begin_call(self, id: str, name: str, message: str, owner: str | None) -> list[str]:
        """Let a call be written into a message; gives where the pieces of its arguments go."""
        if message not in self._own:
            self.put(message, "assistant", subagentRunId=owner)
        call = {"id": id, "type": "function", "function": {"name": name, "arguments": ""}}
        self._own[message].setdefault("toolCalls", []).append(call)
        self._place[id] = message
        return self._texts.setdefault(f"call {id}", [])

    def revise_call(self, id: str, arguments: str) -> None:
        """Replace the arguments of a call."""
        self._texts[f"call {id}"] = [arguments]

    def answer(self, id: str, call: str, content: Any, owner: str | None) -> None:
        """Have the answer to a call, behind its message."""
        named = self._named.get(call, id)
        self.put(named, "tool", content, toolCallId=call, subagentRunId=owner)
        self._results.setdefault(self._place.get(call, ""), []).append(named)

    def drop(self, ids: Iterable[str]) -> None:
        """Let go of messages."""
        for each in ids:
            self._own.pop(each, None)
            self._texts.pop(each, None)

    def drop_call(self, id: str) -> None:
        """Let go of a call, and of its message if there is nothing else in it."""
        message = self._own.get(self._place.pop(id, ""))
        if message is None:
            return
        message["toolCalls"] = [call for call in message["toolCalls"] if call["id"] != id]
        if not message["toolCalls"]:
            del message["toolCalls"]
            if not self._texts.get(message["id"]):
                self.drop([message["id"]])

    def all(self, *, activities: bool) -> list[Data]:
        """Give all messages, in order; with the activities or without them."""
        own: list[Data] = []
        behind = {each for results in self._results.values() for each in results}
        for name, message in self._own.items():
            if name in behind or (message["role"] == "activity" and not activities):
                continue
            own.append(self._whole(message))
            own += [{**self._own[each]} for each in self._results.get(name, ()) if each in self._own]
        own += [{**self._own[each]} for each in self._results.get("", ()) if each in self._own]
        before = self._written()
        # A result that the client has under an id of its own stays under that.
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
    """What a client is told of a run, and from where on.

    Attributes:
        thread_id: The conversation.
        run_id: What the client calls this attempt.
        messages: Makes what the client has had before.
        after: The client has the durable events up to this one, or gets what they come to by a snapshot.
        restated: Whether it gets them by a snapshot.
        reasoning: The ids of the reasoning that it has.
        state: The name of the custom event that has the state of the application.
    """

    thread_id: str
    run_id: str
    messages: Callable[[], Messages] = Messages
    after: int = 0
    restated: bool = False
    activities: bool = False
    """Whether the snapshot has all activities of the conversation, too."""
    reasoning: frozenset[str] = field(default_factory=frozenset[str])
    state: str | None = None
