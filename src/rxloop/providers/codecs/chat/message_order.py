"""Message order that endpoints require."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

from rxloop.protocol.messages import Message, ToolCall

_NO_RESULT = "There is no result of this call."

_UNDERSTOOD = Message.assistant("Understood.")

_GO_ON = Message.user("Please go on.")

Encode = Callable[[Message], bytes]


class OrderedMessages:
    """Encoded messages in valid order.

    Args:
        in_turns: Use the stricter order required by some endpoints; see `Preset.assistant_after_tool`.
    """

    __slots__ = ("_data", "_in_turns", "_last", "_open", "_strays")

    def __init__(self, *, in_turns: bool) -> None:
        self._in_turns = in_turns
        self._data: list[bytes] = []
        self._open: list[tuple[str, str]] = []
        """Unanswered calls: original and sent ids."""
        self._strays: list[Message] = []
        """Results without calls, converted to user messages."""
        self._last = ""
        """Last message role."""

    def copy(self) -> OrderedMessages:
        """Return an independent copy. The messages so far are joined in both objects, so that a copy is cheap."""
        if len(self._data) > 1:
            self._data = [b",".join(self._data)]
        other = OrderedMessages.__new__(OrderedMessages)
        other._in_turns, other._last = self._in_turns, self._last
        other._data, other._open, other._strays = self._data.copy(), self._open.copy(), self._strays.copy()
        return other

    def add(self, message: Message, encode: Encode, as_text: Callable[[Message], Message]) -> None:
        """Add a message.

        Args:
            message: The message.
            encode: Encodes a message.
            as_text: Converts a result without a call to a user message.
        """
        if message.role == "tool":
            self._add_result(message, encode, as_text)
            return
        if self._open or self._strays:
            self._close_calls(encode)
        self._append(message, encode)
        if message.tool_calls:
            ids = [call.id for call in message.tool_calls]
            self._open = list(zip(ids, make_unique_ids(message.tool_calls), strict=True))

    def finish(self, encode: Encode) -> list[bytes]:
        """Add missing results and return all messages."""
        self._close_calls(encode)
        if self._in_turns and self._last == "assistant":
            self._append(_GO_ON, encode)
        return self._data

    def _add_result(self, message: Message, encode: Encode, as_text: Callable[[Message], Message]) -> None:
        for index, (call_id, sent_id) in enumerate(self._open):
            if call_id == message.tool_call_id:
                del self._open[index]
                # Duplicate ids were renamed.
                self._append(message if sent_id == call_id else Message.tool(sent_id, message.content), encode)
                return
        self._strays.append(as_text(message))

    def _close_calls(self, encode: Encode) -> None:
        for _, sent_id in self._open:
            self._append(Message.tool(sent_id, _NO_RESULT), encode)
        for message in self._strays:
            self._append(message, encode)
        self._open, self._strays = [], []

    def _append(self, message: Message, encode: Encode) -> None:
        if self._in_turns:
            if self._last == "tool" and message.role in ("user", "system"):
                self._data.append(encode(_UNDERSTOOD))
                self._last = "assistant"
            if self._last == "assistant" and message.role == "system":
                message = Message.user(message.content)
        self._data.append(encode(message))
        self._last = message.role


def make_unique_ids(calls: Sequence[ToolCall]) -> list[str]:
    """Return unique call ids. Some vendors use the same id for all calls."""
    ids = [call.id for call in calls]
    used = set(ids)
    if len(used) == len(ids):
        return ids
    seen: set[str] = set()
    for index, call_id in enumerate(ids):
        if call_id in seen:
            ids[index] = next(free for n in count(2) if (free := f"{call_id}_{n}") not in used)
            used.add(ids[index])
        seen.add(call_id)
    return ids
