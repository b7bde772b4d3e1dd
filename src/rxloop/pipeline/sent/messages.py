"""Records of messages that operators removed, edited or added."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from rxloop.pipeline.requests import ModelRequest
from rxloop.pipeline.sent.requests import SentMessages, SentRequests
from rxloop.pipeline.sent.texts import PARTS, dump_message, get_origin
from rxloop.protocol.messages import Message
from rxloop.protocol.model import FrozenList, make_unchecked
from rxloop.protocol.step_events import RecordedPart
from rxloop.state.history import measure_message
from rxloop.state.run_state import RunState

_MAX_ITEMS = 6
"""Maximum number of items in a record. Longer records refer to the previous record of the branch."""
_TASK, _HISTORY = PARTS.index("task"), PARTS.index("history")
_make_part = make_unchecked(RecordedPart)


def record_messages(
    request: ModelRequest, state: RunState, sent: SentRequests
) -> tuple[SentMessages, dict[str, Any], dict[str, Any]]:
    """Match the messages of a request with the history.

    Returns:
        The messages for the next request, fields of the record, and texts by digest.
    """
    history, messages = state.messages, request.messages
    previous = sent.newest.get(request.branch)
    same = 0
    if previous is not None and history.extends(previous.history):
        same = previous.count_same(messages)
    else:
        previous = None
    matcher = _Matcher(state, sent.find_task(history), messages)
    if previous is not None and same == len(previous.messages):
        matcher.refs, matcher.sizes, matcher.position = list(previous.refs), list(previous.sizes), previous.position
    matcher.add_all(messages)
    refs = matcher.refs
    items, changes = encode_refs(refs), dict[str, Any]()
    if len(items) > _MAX_ITEMS and previous is not None and previous.event is not None and same:
        # Equal messages may have other references after an edit.
        same = next((index for index in range(same) if refs[index] != previous.refs[index]), same)
        changes = {"base": previous.event.seq, "same": same}
        items = encode_refs(refs[same:])
    newest = SentMessages(None, history, tuple(messages), refs, matcher.position, matcher.sizes)
    return newest, {**changes, "messages": FrozenList(items)}, matcher.texts


def encode_refs(refs: Iterable[int | RecordedPart]) -> list[tuple[int, int] | RecordedPart]:
    """Combine consecutive indexes to ranges."""
    items: list[tuple[int, int] | RecordedPart] = []
    first = last = -2
    for ref in refs:
        # Faster than `isinstance` for each message of each request.
        if type(ref) is int:
            if ref != last + 1 or first < 0:
                items.append((ref, ref))
                first = ref
            else:
                items[-1] = first, ref
            last = ref
        else:
            items.append(cast("RecordedPart", ref))
            first = last = -2
    return items


class _Matcher:
    """Matches sent messages with the history."""

    def __init__(self, state: RunState, task: range, messages: Sequence[Message]) -> None:
        self.refs: list[int | RecordedPart] = []
        self.sizes = [0] * len(PARTS)
        self.position = 0
        """History index after the last match."""
        self.texts: dict[str, Any] = {}
        self._state, self._history, self._task, self._messages = state, state.messages, task, messages
        self._indexes: dict[int, int] | None = None
        self._sent: set[int] = set()

    def add_all(self, messages: Sequence[Message]) -> None:
        """Add the messages after those that have been added."""
        history = self._history
        for message in messages[len(self.refs) :]:
            if self.position < len(history) and history[self.position] is message:
                self._add(message, self.position)
            else:
                self._search(message)

    def _add(self, message: Message, index: int) -> None:
        self.refs.append(index)
        self.position = index + 1
        self.sizes[_TASK if index in self._task else _HISTORY] += measure_message(message)

    def _search(self, message: Message) -> None:
        if self._indexes is None:
            self._indexes = {id(each): index for index, each in enumerate(self._history)}
            self._sent = {id(each) for each in self._messages}
        index = self._indexes.get(id(message))
        if index is not None:
            self._add(message, index)
            return
        origin = get_origin(message)
        if origin is None and self._is_summary(message):
            origin = "summary"
        index = self._find_replaced(message) if origin is None else None
        if index is not None and self._history[index] == message:
            self._add(message, index)
            return
        digest, data = dump_message(message)
        if origin != "memory":
            self.texts[digest] = data
        if index is None:
            part = origin or "note"
        else:
            self.position = index + 1
            part = "task" if index in self._task else "history"
        self.sizes[PARTS.index(part)] += measure_message(message)
        self.refs.append(_make_part(text=digest, index=index, origin=part if index is None else None))

    def _is_summary(self, message: Message) -> bool:
        compressed = self._state.compressed
        is_text = message.role in ("user", "system") and compressed is not None and bool(message.text)
        return is_text and compressed is not None and message.text in compressed.summary

    def _find_replaced(self, message: Message) -> int | None:
        """Return the index of the history message that an operator has replaced by this message, or None."""
        for index in range(self.position, len(self._history)):
            original = self._history[index]
            if id(original) in self._sent:
                # An operator inserted the message before this one.
                if not message.tool_call_id:
                    return None
            elif message.role == original.role and _has_same_calls(message, original):
                return index
        return None


def _has_same_calls(message: Message, original: Message) -> bool:
    """Return True if an edited message belongs to the same calls."""
    if message.role == "tool":
        return message.tool_call_id == original.tool_call_id
    return [call.id for call in message.tool_calls] == [call.id for call in original.tool_calls]
