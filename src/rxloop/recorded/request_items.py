"""Messages of recorded requests: ranges of the history and changed messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from rxloop.context.compression import CompressionState
from rxloop.pipeline.sent.texts import load_message
from rxloop.protocol.events import LLMCallEvent
from rxloop.protocol.messages import Message
from rxloop.protocol.parts import FilePart, ImagePart
from rxloop.protocol.step_events import PartOrigin, RecordedPart, RequestRecord
from rxloop.state.run_state import RunState

_MAX_BASES = 8
"""Number of earlier requests of a branch to which a record can refer."""


@dataclass(frozen=True, slots=True)
class ChangedMessage:
    """Sent message that is missing in the history, or differs from it."""

    key: str
    """Digest of the message, or a substitute for old logs."""
    message: Message | None
    """None if the message was not recorded."""
    index: int | None
    """Index of the history message that it replaces, if any."""
    origin: PartOrigin | None


Item = tuple[int, int] | ChangedMessage


@dataclass(frozen=True, slots=True)
class RequestItems:
    """Messages of a request in a compact form."""

    items: Sequence[Item]
    """Ranges of the history and changed messages, in order."""
    system: Sequence[ChangedMessage] = ()
    tail: Sequence[ChangedMessage] = ()
    exact: bool = True

    def iter_refs(self) -> Iterator[int | ChangedMessage]:
        """Yield the index or the changed message for each message between the layers."""
        for item in self.items:
            if isinstance(item, ChangedMessage):
                yield item
            else:
                yield from range(item[0], item[1] + 1)


def _count(items: Iterable[Item]) -> int:
    return sum(1 if isinstance(item, ChangedMessage) else item[1] - item[0] + 1 for item in items)


def _take(items: Iterable[Item], count: int) -> list[Item]:
    """Return the leading items that contain `count` messages."""
    taken: list[Item] = []
    for item in items:
        if count <= 0:
            break
        if isinstance(item, ChangedMessage):
            taken.append(item)
            count -= 1
        else:
            last = min(item[1], item[0] + count - 1)
            taken.append((item[0], last))
            count -= last - item[0] + 1
    return taken


@dataclass(slots=True)
class RequestItemsReader:
    """Reader of the records in `llm-call` events. Add all events of a run in order."""

    texts: dict[str, Any] = field(default_factory=dict[str, Any])
    """Recorded texts by digest."""
    _bases: dict[Any, dict[int, Sequence[Item]]] = field(default_factory=dict[Any, dict[int, "Sequence[Item]"]])
    """Items of the newest requests by run and branch, and by `seq`."""

    def read(self, event: LLMCallEvent, state: RunState) -> RequestItems:
        """Return the messages of a request.

        Args:
            event: Event of the request.
            state: State of its branch before the event.
        """
        record = event.request
        if record is None:
            return _rebuild_items(state)
        self.texts.update(record.texts)
        history = state.messages
        media = _MediaIndex(history)
        system = [self._load(part, media) for part in record.system]
        tail = [self._load(part, media) for part in record.tail]
        items = self._read_items(event, record, len(history), media)
        if items is None:
            return RequestItems(_rebuild_items(state).items, system, tail, exact=False)
        changed = (*system, *tail, *(item for item in items if isinstance(item, ChangedMessage)))
        is_complete = _count(items) + len(system) + len(tail) == event.message_count
        # The text of notes is deleted with their runs.
        exact = is_complete and all(part.message is not None or part.origin == "memory" for part in changed)
        return RequestItems(items, system, tail, exact=exact and self.has_texts(record))

    def _read_items(
        self, event: LLMCallEvent, record: RequestRecord, length: int, media: _MediaIndex
    ) -> Sequence[Item] | None:
        """Return the items between the layers, or None if the base or a message is unknown."""
        if record.messages is None:
            return [(0, length - 1)] if length else []
        items: list[Item] = []
        for item in record.messages:
            if isinstance(item, RecordedPart):
                items.append(self._load(item, media))
            elif not 0 <= item[0] <= item[1] < length:
                # The log was edited, or the record belongs to another history.
                return None
            else:
                items.append(item)
        bases = self._bases.setdefault((event.task_id, event.branch), {})
        if record.base is not None:
            base = bases.get(record.base)
            if base is None:
                return None
            items = [*_take(base, record.same), *items]
        bases[event.seq] = items
        if len(bases) > _MAX_BASES:
            del bases[next(iter(bases))]
        return items

    def has_texts(self, record: RequestRecord) -> bool:
        """Return True if the tools and the schema of a request are known."""
        digests = [each for each in (record.tools, record.answer_schema) if each is not None]
        if record.tools is not None:
            digests += self.texts.get(record.tools, ())
        return all(digest in self.texts for digest in digests)

    def get_tools(self, record: RequestRecord | None) -> list[tuple[str, dict[str, Any]]]:
        """Return tool definitions with their digests."""
        digests = cast("list[str]", self.texts.get(record.tools or "", ())) if record is not None else ()
        return [(digest, tool if isinstance(tool := self.texts.get(digest), dict) else {}) for digest in digests]

    def _load(self, part: RecordedPart, media: _MediaIndex) -> ChangedMessage:
        data = self.texts.get(part.text)
        message = None
        if data is not None:
            try:
                message = load_message(data, media)
            except ValueError:
                # Custom logs may return texts of other versions.
                message = None
        return ChangedMessage(part.text, message, part.index, part.origin)


class _MediaIndex(dict[str, Any]):
    """Images and files of a history by fingerprint, read on first use."""

    def __init__(self, history: Sequence[Message]) -> None:
        super().__init__()
        self._history: Sequence[Message] | None = history

    def get(self, key: str, default: Any = None) -> Any:
        if self._history is not None:
            # Imported on first use, because most runs have no images.
            from rxloop.protocol.media import fingerprint

            for message in self._history:
                for part in message.media if isinstance(message.content, list) else ():
                    assert isinstance(part, ImagePart | FilePart)
                    self[fingerprint(part)] = part.model_dump(mode="json", by_alias=True, exclude_none=True)
            self._history = None
        return super().get(key, default)


def _rebuild_items(state: RunState) -> RequestItems:
    """Rebuild a request without a record. This is correct if only compressors changed the history."""
    history, compressed = state.messages, state.compressed
    view = CompressionState.load(compressed.view) if compressed is not None and compressed.view else CompressionState()
    if not view.upto or view.upto > len(history):
        return RequestItems([(0, len(history) - 1)] if history else [], exact=False)
    items: list[Item] = []
    position = 0
    for ref in view.view:
        if isinstance(ref, Message):
            index = _find_result(ref, history, position)
            key = f"{ref.role} {index} {ref.text}"
            items.append(ChangedMessage(key, ref, index, "summary" if index is None else None))
            position = position if index is None else index + 1
            continue
        position = ref + 1
        last = items[-1] if items else None
        if isinstance(last, tuple) and last[1] == ref - 1:
            items[-1] = last[0], ref
        else:
            items.append((ref, ref))
    if view.upto < len(history):
        items.append((view.upto, len(history) - 1))
    return RequestItems(items, exact=False)


def _find_result(message: Message, history: Sequence[Message], position: int) -> int | None:
    """Return the index of the tool result that a compressor has shortened."""
    if message.role != "tool":
        return None
    indexes = range(position, len(history))
    return next((index for index in indexes if history[index].tool_call_id == message.tool_call_id), None)
