"""Deltas that are merged, packed, and retained for late subscribers. No text is lost."""

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
    """Return the text of a delta that can be merged with its neighbours, or None."""
    if isinstance(event, ContentDeltaEvent | ThoughtDeltaEvent):
        return event.delta
    if isinstance(event, ToolCallDeltaEvent):
        return event.fragment
    return None


def same_run_of_deltas(first: Event, second: Event) -> bool:
    """Tell whether two adjacent deltas are pieces of the same text."""
    return (
        type(first) is type(second)
        and first.step == second.step
        and first.branch == second.branch
        and first.task_id == second.task_id
        and first.seq == second.seq
        and (not isinstance(first, ToolCallDeltaEvent) or first.index == second.index)  # type: ignore[attr-defined]
    )


def merged(newest: Event, texts: Iterable[str]) -> Event:
    """Merge deltas: the newest of them gets the text of all."""
    name = "fragment" if isinstance(newest, ToolCallDeltaEvent) else "delta"
    return newest.model_copy(update={name: "".join(texts)})


class PackedDeltas:
    """Deltas of one text that came one after the other, in a twentieth of their memory; `events` makes them again."""

    __slots__ = ("_times", "first", "lengths", "text")

    def __init__(self, deltas: Sequence[ContentDeltaEvent | ThoughtDeltaEvent]) -> None:
        self.first = deltas[0]
        """The others follow it one by one."""
        self.lengths = array("I", [len(delta.delta) for delta in deltas])
        self.text = "".join([delta.delta for delta in deltas])
        self._times = array("q", [delta.timestamp for delta in deltas])

    @property
    def newest(self) -> Event:
        """The last of them."""
        return self._delta(len(self) - 1, self.text[len(self.text) - self.lengths[-1] :])

    @property
    def kind(self) -> str:
        """That of the events."""
        return self.first.kind

    def __len__(self) -> int:
        return len(self._times)

    def take(self, others: PackedDeltas) -> bool:
        """Take the deltas of others, if those follow and there is room; says whether."""
        first, count = self.first, len(self)
        follow = (
            count < _MOST
            and type(others.first) is type(first)
            and (others.first.index, others.first.sub) == (first.index + count, first.sub + count)
            and _COMMON[type(first)](vars(others.first)) == _COMMON[type(first)](vars(first))
        )
        if follow:
            self.lengths.extend(others.lengths)
            self.text += others.text
            self._times.extend(others._times)
        return follow

    def events(self) -> Iterator[Event]:
        """Make the deltas as they were."""
        bounds = pairwise(accumulate(self.lengths, initial=0))
        for number, (start, end) in enumerate(bounds):
            yield self._delta(number, self.text[start:end])

    def _delta(self, number: int, text: str) -> Event:
        first = self.first
        changes: dict[str, Any] = {"delta": text, "timestamp": self._times[number]}
        changes |= {"index": first.index + number, "sub": first.sub + number}
        return first.model_copy(update=changes)


class MergedDeltas:
    """Deltas of one text as one, and where in the text each ended: a reader may have some of them already."""

    __slots__ = ("_before", "_begins", "_ends", "_newest", "_next", "_texts")

    def __init__(self) -> None:
        self._newest: Event | None = None
        self._texts: list[str] = []
        # Places follow one another nearly always: only the gaps are noted, and how many deltas there were before.
        self._begins = array("Q")
        self._before = array("Q")
        self._next = -1
        self._ends = array("I")

    @property
    def seq(self) -> int:
        """That of the newest."""
        return (self._next - 1) >> _SUB_BITS

    def add(self, deltas: PackedDeltas | Event) -> None:
        """Take the deltas that come next."""
        end = self._ends[-1] if self._ends else 0
        if isinstance(deltas, PackedDeltas):
            self._newest = deltas.newest
            self._texts.append(deltas.text)
            self._note(_place(deltas.first), len(deltas))
            self._ends.extend(accumulate(deltas.lengths[1:], initial=end + deltas.lengths[0]))
        else:
            text = delta_text(deltas) or ""
            self._newest = deltas
            self._texts.append(text)
            self._note(_place(deltas), 1)
            self._ends.append(end + len(text))

    def _note(self, place: int, count: int) -> None:
        if place != self._next:
            self._begins.append(place)
            self._before.append(len(self._ends))
        self._next = place + count

    @property
    def text(self) -> str:
        """The text of all of them."""
        if len(self._texts) > 1:
            self._texts = ["".join(self._texts)]
        return self._texts[0]

    def event(self) -> Event:
        """Make the newest of them with the text of all; `rest_after` cuts it."""
        assert self._newest is not None
        event = merged(self._newest, [self.text])
        mutable_fields(event)[_MERGED] = self
        return event

    def length(self, place: int) -> int:
        """Return the length of the text up to a place."""
        run = bisect_right(self._begins, place) - 1
        if run < 0:
            return 0
        end = self._before[run + 1] if run + 1 < len(self._before) else len(self._ends)
        return self._ends[min(self._before[run] + place - self._begins[run], end - 1)]


_MERGED = "_merged"
"""What an event was merged of. No field: it is compared and written like any other."""


def rest_after(event: Event, seq: int, sub: int) -> Event | None:
    """Cut off the part of an event that a reader knows, who has its stream up to a place."""
    if (event.seq, event.sub) <= (seq, sub):
        return None
    deltas: MergedDeltas | None = vars(event).get(_MERGED)
    if deltas is None:
        return event
    text = delta_text(event) or ""
    known = deltas.length(seq << _SUB_BITS | sub)
    # Somebody may have put another text into a copy.
    return merged(event, [text[known:]]) if known and len(text) == deltas.length(_place(event)) else event


_SUB_BITS = 32


def _place(event: Event) -> int:
    return event.seq << _SUB_BITS | event.sub


_MOST = 256
"""So many are packed together at most: what grows is copied."""
_COUNTED = {"delta", "index", "sub", "timestamp"}
# What packed deltas have in common.
_COMMON = {cls: itemgetter(*cls.model_fields.keys() - _COUNTED) for cls in (ContentDeltaEvent, ThoughtDeltaEvent)}


def packed(events: Iterable[Event]) -> list[Event | PackedDeltas]:
    """Pack each run of deltas whose numbers have no gap."""
    out: list[Event | PackedDeltas] = []
    run: list[Any] = []
    common = None
    index = sub = 0

    def close() -> None:
        out.extend([PackedDeltas(run)] if len(run) > 1 else run)
        run.clear()

    for event in events:
        getter = _COMMON.get(type(event))  # pyright: ignore[reportArgumentType]
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


# -- transient events of open messages and calls

Key = tuple[str, str | None]
"""Run, and step of an open message or slot of an open call."""

FRESH = 16
"""Number of newest deltas that are not packed. An event takes a hundred times the memory of a token."""


class OpenMessage:
    """Transient events of one message or call that is not complete."""

    __slots__ = ("_merged", "_packed", "count", "fresh", "thought")

    def __init__(self) -> None:
        self._merged: dict[tuple[str, int], MergedDeltas] = {}
        """Oldest deltas, by kind of text and index of the tool call."""
        self._packed: list[Event | PackedDeltas] = []
        self.fresh: list[Event] = []
        """Newest events, which are not packed yet."""
        self.count = 0
        """Number of events that are not merged."""
        self.thought = 0
        """`seq` of the last complete thought."""

    def shorten(self, limit: int) -> None:
        """Pack the newest events, and merge the older half if more than `limit` events are not merged."""
        fresh = packed(self.fresh)
        self.fresh.clear()
        last = self._packed[-1] if self._packed else None
        if isinstance(last, PackedDeltas) and isinstance(fresh[0], PackedDeltas) and last.take(fresh[0]):
            del fresh[0]
        self._packed += fresh
        if self.count > limit:
            self._merge_oldest(limit // 2)

    def _merge_oldest(self, rest: int) -> None:
        merged = 0
        for item in self._packed:
            if self.count <= rest:
                break
            merged += 1
            self.count -= len(item) if isinstance(item, PackedDeltas) else 1
            # Only the newest progress report matters, but no text may be lost.
            if isinstance(item, PackedDeltas) or delta_text(item) is not None:
                self._merge(item)
        del self._packed[:merged]

    def _merge(self, deltas: Event | PackedDeltas) -> None:
        first = deltas if isinstance(deltas, Event) else deltas.first
        key = (first.kind, first.index if isinstance(first, ToolCallDeltaEvent) else 0)
        text = self._merged.get(key)
        # The next thought is another text, because the last one has a durable event.
        if text is None or (first.kind == "thought-delta" and text.seq < self.thought <= first.seq):
            text = self._merged[key] = MergedDeltas()
        text.add(deltas)

    def events(self) -> Iterator[Event]:
        """Yield the events in order. Merged deltas are one event."""
        yield from sorted((text.event() for text in self._merged.values()), key=event_order)
        for item in self._packed:
            if isinstance(item, PackedDeltas):
                yield from item.events()
            else:
                yield item
        yield from self.fresh

    def text(self) -> str:
        """Return the text of the message so far."""
        pieces = [
            delta_text(item) or "" if isinstance(item, Event) else item.text
            for item in (*self._packed, *self.fresh)
            if item.kind == "content-delta"
        ]
        oldest = self._merged.get(("content-delta", 0))
        return "".join(pieces if oldest is None else (oldest.text, *pieces))

    def reasoning(self) -> str:
        """Return the text of the open thought so far."""
        pieces = [event for event in self.events() if event.kind == "thought-delta" and event.seq >= self.thought]
        return "".join(delta_text(event) or "" for event in pieces)


def release_complete(messages: dict[Key, OpenMessage], event: Event) -> None:
    """Remove the open message or call that a durable event completes."""
    if isinstance(event, ContentCompleteEvent | LLMCallEvent):
        # A second request of a step makes the deltas of the first one invalid.
        messages.pop((event.task_id, event.step), None)
    elif isinstance(event, ToolCompleteEvent):
        messages.pop((event.task_id, slot_name(event)), None)
    elif isinstance(event, ThoughtStreamEvent) and event.source in ("reasoning", "tag"):
        message = messages.get((event.task_id, event.step))
        if message is not None:
            message.thought = event.seq
    elif ends_attempt(event):
        messages.clear()


def make_gap(first: Event, count: int) -> GapEvent:
    """Return the notice that `count` events before the first retained event are missing."""
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
    """Return the key of a tool call among the open messages of a run."""
    return f"{event.step}#{event.index}"


def event_order(event: Event) -> tuple[Any, ...]:
    """Return the sort key of an event in the stream of a run."""
    return event.attempt, event.seq, event.sub
