"""Append-only message history and open tool call batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar, cast, overload

from rxloop.protocol.events import PendingInput, ToolCompleteEvent
from rxloop.protocol.messages import Content, Media, Message, TextPart, ToolCall
from rxloop.protocol.model import FrozenList, make_unchecked
from rxloop.support.threads import free_in_thread

K = TypeVar("K")

V = TypeVar("V")

T = TypeVar("T")


class StoredMessages:
    """Messages that are only parsed on first access. Their metadata are stored separately."""

    __slots__ = ("count", "data", "newest_user", "pinned", "read", "size")

    def __init__(
        self,
        data: bytes,
        read: Callable[[bytes], list[Message]],
        count: int,
        size: int,
        newest_user: int | None,
        pinned: Sequence[int],
    ) -> None:
        self.data = data
        self.read = read
        self.count = count
        self.size = size
        """Total size in characters, as computed by `History`."""
        self.newest_user = newest_user
        """Index of the newest user message in this group."""
        self.pinned = pinned
        """Indexes of pinned messages in this group."""


class _Storage:
    """Storage of all versions of a history, which is freed in a thread."""

    __slots__ = ("items",)

    def __init__(self, items: list[Message | StoredMessages]) -> None:
        self.items = items

    def __del__(self) -> None:
        holder = [self.items]
        del self.items
        free_in_thread(holder)


class History(Sequence[Message]):
    """Immutable version of a conversation's messages."""

    __slots__ = ("_derived", "_items", "_length", "_storage", "newest_user", "pinned", "size")

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        messages = list(messages)
        self._items: list[Message | StoredMessages] = list(messages)
        self._storage = _Storage(self._items)
        self._length = len(self._items)
        self._derived: dict[type, tuple[object, int, object]] = {}
        self.size = 0
        """Total size in characters, used for estimates."""
        self.newest_user: int | None = None
        """Index of the newest user message."""
        self.pinned: tuple[int, ...] = ()
        """Indexes of messages that must stay in all requests."""
        self._add_metadata(messages, 0)

    def append(self, *messages: Message) -> History:
        """Return a new version with additional messages. This version does not change."""
        if not messages:
            return self
        items = self._items if 0 < self._length == len(self._items) else self._items[: self._length]
        items.extend(messages)
        longer = self._make_longer(items, self.size, self.newest_user, self.pinned)
        longer._add_metadata(messages, self._length)
        return longer

    def append_stored(self, stored: Iterable[StoredMessages]) -> History:
        """Return a new version with stored messages, without parsing them. This version does not change."""
        items = self._items if 0 < self._length == len(self._items) else self._items[: self._length]
        size, newest_user, pinned = self.size, self.newest_user, list(self.pinned)
        for chunk in stored:
            first = len(items)
            # Repeat the group once per message. The first access replaces all copies by the parsed messages.
            items += [chunk] * chunk.count
            size += chunk.size
            if chunk.newest_user is not None:
                newest_user = first + chunk.newest_user
            if chunk.pinned:
                pinned += [first + index for index in chunk.pinned]
        return self._make_longer(items, size, newest_user, tuple(pinned))

    def _make_longer(
        self, items: list[Message | StoredMessages], size: int, newest_user: int | None, pinned: tuple[int, ...]
    ) -> History:
        longer = History.__new__(History)
        longer._items, longer._length = items, len(items)
        longer._storage = self._storage if items is self._items else _Storage(items)
        longer._derived = self._derived
        longer.size, longer.newest_user, longer.pinned = size, newest_user, pinned
        return longer

    def _item(self, index: int) -> Message:
        item = self._items[index]
        if isinstance(item, StoredMessages):
            try:
                first = self._items.index(item, max(0, index + 1 - item.count), index + 1)
            except ValueError:
                # Another thread parsed the messages in the meantime.
                return self._item(index)
            self._items[first : first + item.count] = item.read(item.data)
            return self._item(index)
        return item

    def extends(self, other: object) -> bool:
        """Return True if this is `other` or a later version of it. The messages are not compared."""
        return isinstance(other, History) and other._items is self._items and other._length <= self._length

    def _add_metadata(self, messages: Sequence[Message], first: int) -> None:
        """Update the metadata for messages that start at index `first`."""
        for index, message in enumerate(messages, first):
            self.size += measure_message(message)
            if message.role == "user":
                self.newest_user = index
            if message.pinned:
                self.pinned = (*self.pinned, index)

    def get_derived(self, key: object, kind: type[T]) -> tuple[int, T] | None:
        """Return a cached value and the number of messages it was computed from, or None if the key differs.

        Args:
            key: Key of the value, including all settings that affect it.
            kind: Type of the value. There is one value per type.
        """
        entry = self._derived.get(kind)
        return None if entry is None or entry[0] != key else (entry[1], cast("T", entry[2]))

    def set_derived(self, key: object, count: int, value: object) -> None:
        """Cache a value computed from the first messages, for this version and later ones.

        It replaces the last value of the same type.

        Args:
            key: Key of the value.
            count: Number of messages from which it was computed.
            value: Immutable value, which is shared by all versions.
        """
        # Earlier versions keep their values.
        self._derived = {**self._derived, type(value): (key, count, value)}

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        if isinstance(index, slice):
            # Do not slice a copy of the list, because that would cost time for all messages.
            return [self._item(position) for position in range(self._length)[index]]
        if not -self._length <= index < self._length:
            raise IndexError(f"message index {index} is out of range, the history has length {self._length}")
        return self._item(index if index >= 0 else self._length + index)

    def __iter__(self) -> Iterator[Message]:
        items = self._items
        for index in range(self._length):
            item = items[index]
            # Avoid extra calls, because compressors should be able to count all messages quickly.
            yield self._item(index) if isinstance(item, StoredMessages) else item

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)  # pyright: ignore[reportUnknownArgumentType]

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return f"<History of {self._length} messages>"


def measure_message(message: Message) -> int:
    """Return the size of a message in characters, for estimates."""
    size = len(message.text) + 8
    for call in message.tool_calls:
        size += len(call.name) + len(call.raw or "")
    return size


class Ledger(Mapping[K, V], Generic[K, V]):
    """Immutable version of an append-only mapping. If a key is added again, its first value is kept."""

    __slots__ = ("_length", "_store")

    def __init__(self) -> None:
        self._store: dict[K, tuple[int, V]] = {}
        self._length = 0

    def add(self, key: K, value: V) -> Ledger[K, V]:
        """Return a new version with one more entry. This version does not change."""
        if key in self:
            return self
        longer = object.__new__(type(self))
        store = self._store
        if not 0 < self._length == len(store):
            store = {key: entry for key, entry in store.items() if entry[0] < self._length}
        store[key] = (self._length, value)
        longer._store = store
        longer._length = self._length + 1
        return longer

    def add_all(self, entries: Iterable[tuple[K, V]]) -> Ledger[K, V]:
        """Return a new version with more entries. This version does not change."""
        store, length = self._store, self._length
        if not 0 < length == len(store):
            store = {key: entry for key, entry in store.items() if entry[0] < length}
        for key, value in entries:
            if key not in store:
                store[key] = (length, value)
                length += 1
        longer = object.__new__(type(self))
        longer._store, longer._length = store, length
        return longer

    def __getitem__(self, key: K) -> V:
        position, value = self._store[key]
        if position >= self._length:
            raise KeyError(key)
        return value

    def __contains__(self, key: object) -> bool:
        entry = self._store.get(key)  # pyright: ignore[reportArgumentType, reportCallIssue]
        return entry is not None and entry[0] < self._length

    def __iter__(self) -> Iterator[K]:
        for key, (position, _) in self._store.items():
            if position >= self._length:
                return
            yield key

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        return f"<Ledger of {self._length}>"


_message = make_unchecked(Message)

THINK_ALOUD = "think_aloud"

CANCELED_CALL = "The call was cancelled before it had a result."

NEVER_BEGAN = "The call was cancelled before it began: nothing was done."

UNKNOWN_EFFECT = "effect unknown: it was started, and it is not known whether it had its effect"

FIND_OUT = "Find out what happened before you repeat it."

INTERRUPTED = f"This call was interrupted, {UNKNOWN_EFFECT}. It was not made again. {FIND_OUT}"

Slot = tuple[str, int]


def make_content(text: str, parts: Sequence[Media]) -> Content:
    """Combine text and media parts into message content."""
    return FrozenList([TextPart(text=text), *parts] if text else parts)


@dataclass(frozen=True, slots=True)
class Batch:
    """Batch of tool calls that is not completely answered."""

    step: str
    message: Message
    answers: Ledger[int, ToolCompleteEvent] = field(default_factory=Ledger[int, ToolCompleteEvent])
    started: int = 0
    """Bit mask of started calls, excluding calls interrupted by a question."""
    left_out: tuple[int, ...] = ()
    """Indexes of hidden calls that are missing from the message. Only set for clients."""

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """Ordered tool calls."""
        return self.message.tool_calls

    @property
    def open(self) -> list[int]:
        """Indexes of unanswered calls."""
        return [index for index in range(len(self.calls)) if index not in self.answers]

    def is_open(self, index: int) -> bool:
        """Return True if a call is unanswered."""
        return 0 <= index < len(self.message.tool_calls) and index not in self.answers

    def find_open(self, step: str | None, position: int) -> ToolCall | None:
        """Find an unanswered call by step and event index."""
        index = self.find_index(position) if self.left_out else position
        calls = self.message.tool_calls
        if step != self.step or not 0 <= index < len(calls) or index in self.answers:
            return None
        return calls[index]

    def find_index(self, position: int) -> int:
        """Convert a call's index in events to its index in `calls`, or return -1 if the call is hidden."""
        if not self.left_out:
            return position
        return -1 if position in self.left_out else position - sum(each < position for each in self.left_out)

    def _positions(self) -> Iterable[int]:
        """Return call indexes used in events."""
        every = range(len(self.message.tool_calls) + len(self.left_out))
        return (position for position in every if position not in self.left_out) if self.left_out else every

    @property
    def thought_only(self) -> bool:
        """True if all calls are `think_aloud`."""
        return all(call.name == THINK_ALOUD for call in self.message.tool_calls)

    def messages(self, pending: Iterable[PendingInput] = ()) -> list[Message]:
        """Return the assistant message, one result per call in order, and additional messages from the tools."""
        waiting = self.find_waiting_calls(pending)
        results: list[Message] = []
        additional: list[Message] = []
        for index, (position, call) in enumerate(zip(self._positions(), self.message.tool_calls, strict=False)):
            message_id = f"{self.message.message_id}:{position}"
            content: Content
            if index in self.answers:
                answer = self.answers[index]
                content = make_content(answer.content, answer.parts) if answer.parts else answer.content
                for number, message in enumerate(answer.messages):
                    name = message.message_id or f"{message_id}:{number}"
                    additional.append(message.model_copy(update={"message_id": name}))
            else:
                content = self.explain_missing(index, waiting)
            results.append(_message(role="tool", tool_call_id=call.id, content=content, message_id=message_id))
        return [self.message, *results, *additional]

    def explain_missing(self, index: int, waiting: int, *, idempotent: bool = False) -> str:
        """Return the message that replaces a missing result.

        Args:
            index: Index of the call.
            waiting: Bit mask of calls that wait for an answer, by index.
            idempotent: Whether the call can be repeated safely.
        """
        if waiting >> index & 1:
            return CANCELED_CALL
        if not self.started >> index & 1:
            return NEVER_BEGAN
        return CANCELED_CALL if idempotent else INTERRUPTED

    def find_waiting_calls(self, pending: Iterable[PendingInput]) -> int:
        """Return a bit mask of calls waiting for an answer."""
        mask = 0
        for question in pending:
            if question.call is not None and question.task_id is None and question.step == self.step:
                index = self.find_index(question.index)
                mask |= 1 << index if index >= 0 else 0
        return mask
