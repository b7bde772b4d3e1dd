"""The order of messages that endpoints require."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

from rxloop.protocol.messages import Message, ToolCall

_NO_RESULT = "There is no result of this call."

_UNDERSTOOD = Message.assistant("Understood.")

_GO_ON = Message.user("Please go on.")

Encode = Callable[[Message], bytes]


class Ordered:
    """The messages of a request in their order, encoded.

    Args:
        in_turns: Whether it is the order that some endpoints insist on; see `Preset.assistant_after_tool`.
    """

    __slots__ = ("_data", "_in_turns", "_last", "_strays", "_waiting")

    def __init__(self, *, in_turns: bool) -> None:
        self._in_turns = in_turns
        self._data: list[bytes] = []
        self._waiting: list[tuple[str, str]] = []
        """The calls without a result: their ids, and those under which they are sent."""
        self._strays: list[Message] = []
        """The results that no call is there for, as messages of the user."""
        self._last = ""
        """The role of the newest message."""

    def copy(self) -> Ordered:
        """One that grows by itself; the messages that are there are joined in both."""
        if len(self._data) > 1:
            self._data = [b",".join(self._data)]
        other = Ordered(in_turns=self._in_turns)
        other._data, other._waiting, other._strays = self._data.copy(), self._waiting.copy(), self._strays.copy()
        other._last = self._last
        return other

    def add(self, message: Message, encode: Encode, as_text: Callable[[Message], Message]) -> None:
        """Add a message.

        Args:
            message: The message.
            encode: Encodes one.
            as_text: Makes a message of the user of a result that no call is there for.
        """
        if message.role == "tool":
            self._add_result(message, encode, as_text)
            return
        if self._waiting or self._strays:
            self._close(encode)
        self._put(message, encode)
        if message.tool_calls:
            ids = [call.id for call in message.tool_calls]
            self._waiting = list(zip(ids, unique_ids(message.tool_calls), strict=True))

    def ended(self, encode: Encode) -> list[bytes]:
        """All of them; the last calls have their results, too."""
        self._close(encode)
        if self._in_turns and self._last == "assistant":
            self._put(_GO_ON, encode)
        return self._data

    def _add_result(self, message: Message, encode: Encode, as_text: Callable[[Message], Message]) -> None:
        for place, (call_id, sent) in enumerate(self._waiting):
            if call_id == message.tool_call_id:
                del self._waiting[place]
                # The second call of an id has another one.
                self._put(message if sent == call_id else Message.tool(sent, message.content), encode)
                return
        self._strays.append(as_text(message))

    def _close(self, encode: Encode) -> None:
        for _, sent in self._waiting:
            self._put(Message.tool(sent, _NO_RESULT), encode)
        for message in self._strays:
            self._put(message, encode)
        self._waiting, self._strays = [], []

    def _put(self, message: Message, encode: Encode) -> None:
        if self._in_turns:
            if self._last == "tool" and message.role in ("user", "system"):
                self._data.append(encode(_UNDERSTOOD))
                self._last = "assistant"
            if self._last == "assistant" and message.role == "system":
                message = Message.user(message.content)
        self._data.append(encode(message))
        self._last = message.role


def unique_ids(calls: Sequence[ToolCall]) -> list[str]:
    """The ids of the calls of a message, of which no two are the same: some vendors give each the same one."""
    ids = [call.id for call in calls]
    taken = set(ids)
    if len(taken) == len(ids):
        return ids
    seen: set[str] = set()
    for place, call_id in enumerate(ids):
        if call_id in seen:
            ids[place] = next(free for n in count(2) if (free := f"{call_id}_{n}") not in taken)
            taken.add(ids[place])
        seen.add(call_id)
    return ids
