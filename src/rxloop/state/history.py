"""Append-only history and open tool batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar, cast, overload

from rxloop.protocol.events import PendingInput, ToolCompleteEvent
from rxloop.protocol.messages import Content, Media, Message, TextPart, ToolCall
from rxloop.protocol.model import FrozenList, make_unchecked

K = TypeVar("K")

V = TypeVar("V")

T = TypeVar("T")


class Stored:
    """Messages that stay JSON until somebody looks at one of them; what is to be known of them before stands beside."""

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
        """Characters, as a history counts them."""
        self.newest_user = newest_user
        """The place of the newest message of the user among them."""
        self.pinned = pinned
        """The places of the pinned ones among them."""


class History(Sequence[Message]):
    """The messages of a conversation, as one version of them."""

    __slots__ = ("_built", "_items", "_length", "newest_user", "pinned", "size")

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        messages = list(messages)
        self._items: list[Message | Stored] = list(messages)
        self._length = len(self._items)
        self._built: tuple[object, int, object] | None = None
        self.size = 0
        """Characters of all messages, for estimates."""
        self.newest_user: int | None = None
        """The place of the newest message of the user."""
        self.pinned: tuple[int, ...] = ()
        """The places of the messages that stay in every request."""
        self._note(messages, 0)

    def append(self, *messages: Message) -> History:
        """Make the history with these messages after it; this one stays as it is."""
        if not messages:
            return self
        longer = History.__new__(History)
        items = self._items if 0 < self._length == len(self._items) else self._items[: self._length]
        items.extend(messages)
        longer._items = items
        longer._length = len(items)
        longer._built = self._built
        longer.size, longer.newest_user, longer.pinned = self.size, self.newest_user, self.pinned
        longer._note(messages, self._length)
        return longer

    def append_stored(self, stored: Iterable[Stored]) -> History:
        """Make the history with these messages after it, none of which is read now; this one stays as it is."""
        items = self._items if 0 < self._length == len(self._items) else self._items[: self._length]
        size, newest_user, pinned = self.size, self.newest_user, list(self.pinned)
        for chunk in stored:
            first = len(items)
            # As often as it has messages: the first look at one of them puts them in these places.
            items += [chunk] * chunk.count
            size += chunk.size
            if chunk.newest_user is not None:
                newest_user = first + chunk.newest_user
            if chunk.pinned:
                pinned += [first + place for place in chunk.pinned]
        longer = History.__new__(History)
        longer._items, longer._length = items, len(items)
        longer._built = self._built
        longer.size, longer.newest_user, longer.pinned = size, newest_user, tuple(pinned)
        return longer

    def _item(self, place: int) -> Message:
        item = self._items[place]
        if isinstance(item, Stored):
            first = self._items.index(item, max(0, place + 1 - item.count), place + 1)
            self._items[first : first + item.count] = item.read(item.data)
            return self._item(place)
        return item

    def extends(self, other: object) -> bool:
        """Tell whether this is `other`, or a later version of it, without a look at the messages."""
        return isinstance(other, History) and other._items is self._items and other._length <= self._length

    def _note(self, messages: Sequence[Message], first: int) -> None:
        """Note how long the messages are that begin at `first`, and which of them no request goes without."""
        for place, message in enumerate(messages, first):
            self.size += _size(message)
            if message.role == "user":
                self.newest_user = place
            if message.pinned:
                self.pinned = (*self.pinned, place)

    def built(self, key: object, kind: type[T]) -> tuple[int, T] | None:
        """What somebody has built of the first messages, and of how many; None where nothing is kept under this key.

        Args:
            key: Names what is built, and all of the rules that it depends on.
            kind: The type of what is kept under this key.
        """
        if self._built is None or self._built[0] != key:
            return None
        return self._built[1], cast("T", self._built[2])

    def keep(self, key: object, count: int, built: object) -> None:
        """Keep what was built of the first messages, for this version and later ones, in place of what was kept before.

        Args:
            key: Names it.
            count: Of how many messages it was built.
            built: What must not change any more: the versions share it.
        """
        self._built = (key, count, built)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        if isinstance(index, slice):
            # Not a slice of a copy: each look at the newest messages would cost all of them.
            return [self._item(place) for place in range(self._length)[index]]
        if not -self._length <= index < self._length:
            raise IndexError(f"message {index} of {self._length}")
        return self._item(index if index >= 0 else self._length + index)

    def __iter__(self) -> Iterator[Message]:
        items = self._items
        for index in range(self._length):
            item = items[index]
            # Not by a call for each: a compressor counts all messages before each request.
            yield self._item(index) if isinstance(item, Stored) else item

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)  # pyright: ignore[reportUnknownArgumentType]

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return f"<History of {self._length} messages>"


def _size(message: Message) -> int:
    size = len(message.text) + 8
    for call in message.tool_calls:
        size += len(call.name) + len(call.raw or "")
    return size


class Ledger(Mapping[K, V], Generic[K, V]):
    """A mapping that only grows, as one version of it; a key keeps the value that it had first."""

    __slots__ = ("_length", "_store")

    def __init__(self) -> None:
        self._store: dict[K, tuple[int, V]] = {}
        self._length = 0

    def add(self, key: K, value: V) -> Ledger[K, V]:
        """Make the ledger with this entry; this one stays as it is."""
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
        """Make the ledger with these entries; this one stays as it is."""
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


def content_with(text: str, parts: Sequence[Media]) -> Content:
    """Make the content of a message of its text and of what follows it."""
    return FrozenList([TextPart(text=text), *parts] if text else parts)


@dataclass(frozen=True, slots=True)
class Batch:
    """The tool calls of one assistant message that are not all answered yet."""

    step: str
    message: Message
    answers: Ledger[int, ToolCompleteEvent] = field(default_factory=Ledger[int, ToolCompleteEvent])
    begun: int = 0
    """The calls that were started, a bit for each place, but for those that an attempt has left at a question."""
    left_out: tuple[int, ...] = ()
    """In what clients get: the places of the calls that are not for them, which the message lacks."""

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """All calls that the message has, in its order."""
        return self.message.tool_calls

    @property
    def open(self) -> list[int]:
        """The places of the calls that have no answer."""
        return [index for index in range(len(self.calls)) if index not in self.answers]

    def awaits(self, index: int) -> bool:
        """Tell whether the call at a place has no answer."""
        return 0 <= index < len(self.message.tool_calls) and index not in self.answers

    def index_of(self, place: int) -> int:
        """Where the call is that events name by its place, among those that the message has; -1 if it lacks it."""
        if not self.left_out:
            return place
        return -1 if place in self.left_out else place - sum(each < place for each in self.left_out)

    def _places(self) -> Iterable[int]:
        """The places of the calls, as events name them."""
        every = range(len(self.calls) + len(self.left_out))
        return (place for place in every if place not in self.left_out) if self.left_out else every

    @property
    def thought_only(self) -> bool:
        """Whether every call is `think_aloud`."""
        return all(call.name == THINK_ALOUD for call in self.calls)

    def messages(self, pending: Iterable[PendingInput] = ()) -> list[Message]:
        """Return the assistant message, one result for each call, in call order, and what the tools say beside that."""
        asking = self.asking(pending)
        results = [
            _message(
                role="tool",
                tool_call_id=call.id,
                content=self._answer(index, asking),
                message_id=f"{self.message.message_id}:{place}",
            )
            for index, (place, call) in enumerate(zip(self._places(), self.calls, strict=False))
        ]
        return [self.message, *results, *self._beside()]

    def _beside(self) -> Iterable[Message]:
        for index, place in enumerate(self._places()):
            said = self.answers[index].messages if index in self.answers else ()
            for number, message in enumerate(said):
                name = message.message_id or f"{self.message.message_id}:{place}:{number}"
                yield message.model_copy(update={"message_id": name})

    def _answer(self, index: int, asking: int) -> Content:
        if index not in self.answers:
            return self.unanswered(index, asking)
        answer = self.answers[index]
        return content_with(answer.content, answer.parts) if answer.parts else answer.content

    def unanswered(self, index: int, asking: int, *, idempotent: bool = False) -> str:
        """Return what the model reads of a call that comes to no result.

        Args:
            index: The place of the call.
            asking: The calls that wait for an answer, a bit for each place.
            idempotent: Whether the call may be made again in any case.
        """
        if asking >> index & 1:
            return CANCELED_CALL
        if not self.begun >> index & 1:
            return NEVER_BEGAN
        return CANCELED_CALL if idempotent else INTERRUPTED

    def asking(self, pending: Iterable[PendingInput]) -> int:
        """Return those of the calls that wait for an answer, a bit for each place."""
        places = 0
        for question in pending:
            if question.call is not None and question.task_id is None and question.step == self.step:
                index = self.index_of(question.index)
                places |= 1 << index if index >= 0 else 0
        return places
