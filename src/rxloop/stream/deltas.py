"""Merging and packing of deltas, and their retention for late subscribers. No text is lost."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import Any

from rxloop.protocol.events import (
    ContentCompleteEvent,
    ContentDeltaEvent,
    Event,
    GapEvent,
    LLMCallEvent,
    ThoughtDeltaEvent,
    ThoughtStreamEvent,
    ToolCallDeltaEvent,
    ToolCompleteEvent,
    ToolProgressEvent,
    ends_attempt,
)
from rxloop.protocol.model import mutable_fields


def delta_text(event: object) -> str | None:
    """Return a delta's text. Return None if the event is not a mergeable delta."""
    if isinstance(event, ContentDeltaEvent | ThoughtDeltaEvent):
        return event.delta
    if isinstance(event, ToolCallDeltaEvent):
        return event.fragment
    return None


def are_mergeable(first: Event, second: Event) -> bool:
    """Return True if two adjacent deltas belong to the same text."""
    return (
        type(first) is type(second)
        and first.step == second.step
        and first.branch == second.branch
        and first.task_id == second.task_id
        and first.seq == second.seq
        and (not isinstance(first, ToolCallDeltaEvent) or first.index == second.index)  # type: ignore[attr-defined]
    )


def merge_deltas(newest: Event, texts: Iterable[str]) -> Event:
    """Return a copy of the newest delta with the text of all merged deltas."""
    name = "fragment" if isinstance(newest, ToolCallDeltaEvent) else "delta"
    return newest.model_copy(update={name: "".join(texts)})


class PackedDeltas:
    """Compact representation of consecutive deltas, using a twentieth of the memory. Use `events` to restore them."""

    __slots__ = ("_times", "first", "lengths", "text")

    def __init__(self, deltas: Sequence[ContentDeltaEvent | ThoughtDeltaEvent]) -> None:
        self.first = deltas[0]
        """First delta. Other deltas have consecutive numbers."""
        self.lengths = array("I", [len(delta.delta) for delta in deltas])
        self.text = "".join([delta.delta for delta in deltas])
        self._times = array("q", [delta.timestamp for delta in deltas])

    @property
    def newest(self) -> Event:
        """Last delta."""
        return self._delta(len(self) - 1, self.text[len(self.text) - self.lengths[-1] :])

    @property
    def kind(self) -> str:
        """Event kind."""
        return self.first.kind

    def __len__(self) -> int:
        return len(self._times)

    def extend(self, others: PackedDeltas) -> bool:
        """Append other deltas if they directly follow these and the limit allows it. Return True if appended."""
        first, count = self.first, len(self)
        fits = (
            count < _MAX_PACKED
            and type(others.first) is type(first)
            and (others.first.index, others.first.sub) == (first.index + count, first.sub + count)
            and _GETTERS[type(first)](vars(others.first)) == _GETTERS[type(first)](vars(first))
        )
        if fits:
            self.lengths.extend(others.lengths)
            self.text += others.text
            self._times.extend(others._times)
        return fits

    def events(self) -> Iterator[Event]:
        """Yield the original deltas."""
        bounds = pairwise(accumulate(self.lengths, initial=0))
        for number, (start, end) in enumerate(bounds):
            yield self._delta(number, self.text[start:end])

    def _delta(self, number: int, text: str) -> Event:
        first = self.first
        changes: dict[str, Any] = {"delta": text, "timestamp": self._times[number]}
        changes |= {"index": first.index + number, "sub": first.sub + number}
        return first.model_copy(update=changes)


class MergedDeltas:
    """Merged deltas, including end offsets. Readers that already received some deltas only get the rest."""

    __slots__ = ("_counts", "_ends", "_newest", "_next", "_starts", "_texts")

    def __init__(self) -> None:
        self._newest: Event | None = None
        self._texts: list[str] = []
        # Positions are usually consecutive, so only store the start and delta count of each consecutive run.
        self._starts = array("Q")
        self._counts = array("Q")
        self._next = -1
        self._ends = array("I")

    @property
    def seq(self) -> int:
        """Newest delta's `seq`."""
        return (self._next - 1) >> _SUB_BITS

    def add(self, deltas: PackedDeltas | Event) -> None:
        """Append the next deltas."""
        end = self._ends[-1] if self._ends else 0
        if isinstance(deltas, PackedDeltas):
            self._newest = deltas.newest
            self._texts.append(deltas.text)
            self._add_position(_position(deltas.first), len(deltas))
            self._ends.extend(accumulate(deltas.lengths[1:], initial=end + deltas.lengths[0]))
        else:
            text = delta_text(deltas) or ""
            self._newest = deltas
            self._texts.append(text)
            self._add_position(_position(deltas), 1)
            self._ends.append(end + len(text))

    def _add_position(self, position: int, count: int) -> None:
        if position != self._next:
            self._starts.append(position)
            self._counts.append(len(self._ends))
        self._next = position + count

    @property
    def text(self) -> str:
        """Merged text."""
        if len(self._texts) > 1:
            self._texts = ["".join(self._texts)]
        return self._texts[0]

    def event(self) -> Event:
        """Return the newest delta with the merged text. `trim_known` can remove its beginning."""
        assert self._newest is not None
        event = merge_deltas(self._newest, [self.text])
        mutable_fields(event)[_MERGED] = self
        return event

    def length(self, position: int) -> int:
        """Return the text length at a position."""
        run = bisect_right(self._starts, position) - 1
        if run < 0:
            return 0
        end = self._counts[run + 1] if run + 1 < len(self._counts) else len(self._ends)
        return self._ends[min(self._counts[run] + position - self._starts[run], end - 1)]


_MERGED = "_merged"
"""Attribute for the merged deltas of an event. It is not a model field, so it is neither compared nor encoded."""


def trim_known(event: Event, seq: int, sub: int) -> Event | None:
    """Remove text that a reader already received up to a position. Return None if nothing remains."""
    if (event.seq, event.sub) <= (seq, sub):
        return None
    deltas: MergedDeltas | None = vars(event).get(_MERGED)
    if deltas is None:
        return event
    text = delta_text(event) or ""
    known = deltas.length(seq << _SUB_BITS | sub)
    # The event might be a copy with a different text.
    return merge_deltas(event, [text[known:]]) if known and len(text) == deltas.length(_position(event)) else event


_SUB_BITS = 32


def _position(event: Event) -> int:
    return event.seq << _SUB_BITS | event.sub


_MAX_PACKED = 256
"""Maximum number of packed deltas, because appending copies them."""
_VARYING = {"delta", "index", "sub", "timestamp"}
# Fields that are equal in all packed deltas.
_GETTERS = {cls: itemgetter(*cls.model_fields.keys() - _VARYING) for cls in (ContentDeltaEvent, ThoughtDeltaEvent)}


def pack_deltas(events: Iterable[Event]) -> list[Event | PackedDeltas]:
    """Pack consecutive deltas without gaps."""
    out: list[Event | PackedDeltas] = []
    run: list[Any] = []
    common = None
    index = sub = 0

    def close() -> None:
        out.extend([PackedDeltas(run)] if len(run) > 1 else run)
        run.clear()

    for event in events:
        getter = _GETTERS.get(type(event))  # pyright: ignore[reportArgumentType]
        if getter is None:
            close()
            out.append(event)
            common = None
            continue
        fields = vars(event)
        own = getter(fields)
        index += 1
        sub += 1
        if own != common or fields["index"] != index or fields["sub"] != sub:
            close()
            common, index, sub = own, fields["index"], fields["sub"]
        run.append(event)
    close()
    return out


# -- Transient events of open messages and calls

Key = tuple[str, str | None]
"""Run id and message step or call slot."""

FRESH = 16
"""Number of newest deltas that are not packed. An unpacked event needs a hundred times the memory of a token."""


class OpenMessage:
    """Transient events before completion."""

    __slots__ = ("_merged", "_packed", "count", "fresh", "thought")

    def __init__(self) -> None:
        self._merged: dict[tuple[str, int], MergedDeltas] = {}
        """Oldest deltas, by event kind and tool call index."""
        self._packed: list[Event | PackedDeltas] = []
        self.fresh: list[Event] = []
        """Newest events, not packed yet."""
        self.count = 0
        """Number of unmerged events."""
        self.thought = 0
        """Last complete thought's `seq`."""

    def shorten(self, limit: int) -> None:
        """Pack the newest events. If more than `limit` events are unmerged, merge the older half."""
        fresh = pack_deltas(self.fresh)
        self.fresh.clear()
        last = self._packed[-1] if self._packed else None
        if isinstance(last, PackedDeltas) and isinstance(fresh[0], PackedDeltas) and last.extend(fresh[0]):
            del fresh[0]
        self._packed += fresh
        if self.count > limit:
            self._merge_oldest(limit // 2)

    def _merge_oldest(self, remaining: int) -> None:
        index = 0
        for item in self._packed:
            if self.count <= remaining:
                break
            index += 1
            self.count -= len(item) if isinstance(item, PackedDeltas) else 1
            # Progress reports replace each other, so old ones may be dropped. Text must be kept.
            if isinstance(item, PackedDeltas) or delta_text(item) is not None:
                self._merge(item)
        del self._packed[:index]

    def _merge(self, deltas: Event | PackedDeltas) -> None:
        first = deltas if isinstance(deltas, Event) else deltas.first
        key = (first.kind, first.index if isinstance(first, ToolCallDeltaEvent) else 0)
        text = self._merged.get(key)
        # Start a new text for the next thought, because the last thought was already published.
        if text is None or (first.kind == "thought-delta" and text.seq < self.thought <= first.seq):
            text = self._merged[key] = MergedDeltas()
        text.add(deltas)

    def events(self) -> Iterator[Event]:
        """Yield all events in order. Merged deltas are yielded as one event."""
        yield from sorted((text.event() for text in self._merged.values()), key=event_order)
        for item in self._packed:
            if isinstance(item, PackedDeltas):
                yield from item.events()
            else:
                yield item
        yield from self.fresh

    def text(self) -> str:
        """Return the message text received so far."""
        pieces = [
            delta_text(item) or "" if isinstance(item, Event) else item.text
            for item in (*self._packed, *self.fresh)
            if item.kind == "content-delta"
        ]
        oldest = self._merged.get(("content-delta", 0))
        return "".join(pieces if oldest is None else (oldest.text, *pieces))

    def reasoning(self) -> str:
        """Return the text received so far for the open thought."""
        pieces = [event for event in self.events() if event.kind == "thought-delta" and event.seq >= self.thought]
        return "".join(delta_text(event) or "" for event in pieces)


def release_complete(messages: dict[Key, OpenMessage], event: Event) -> None:
    """Remove an open message or call if the event completes it."""
    if isinstance(event, ContentCompleteEvent | LLMCallEvent):
        # If a step is retried, previous deltas are invalid.
        messages.pop((event.task_id, event.step), None)
    elif isinstance(event, ToolCompleteEvent):
        messages.pop((event.task_id, slot_name(event)), None)
    elif isinstance(event, ThoughtStreamEvent) and event.source in ("reasoning", "tag"):
        message = messages.get((event.task_id, event.step))
        if message is not None:
            message.thought = event.seq
    elif ends_attempt(event):
        messages.clear()


def make_trimmed_gap(first: Event, count: int) -> GapEvent:
    """Return a gap event for `count` missing events before the first retained event."""
    return GapEvent(
        reason="trimmed",
        count=count,
        context_id=first.context_id,
        task_id=first.root_task_id,
        attempt=first.attempt,
        seq=first.seq - 1,
        sub=1,
        timestamp=first.timestamp,
    )


def slot_name(event: ToolProgressEvent | ToolCompleteEvent) -> str:
    """Return the key for a tool call's slot among the open messages."""
    return f"{event.step}#{event.index}"


def event_order(event: Event) -> tuple[Any, ...]:
    """Return a key for sorting the events of a run."""
    return event.attempt, event.seq, event.sub
