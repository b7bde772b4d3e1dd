"""Pairs of corresponding events of two runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from rxloop.operators.views.compare import by_branch, is_same
from rxloop.protocol.events import Event
from rxloop.protocol.messages import Message


class EventPair(NamedTuple):
    """Corresponding events of two runs. One of them is None if only the other run has such an event."""

    a: Event | None
    b: Event | None
    is_same: bool = False

    @property
    def change(self) -> Literal["same", "changed", "only"]:
        """Result of the comparison."""
        if self.a is None or self.b is None:
            return "only"
        return "same" if self.is_same else "changed"


class EqualEvents(NamedTuple):
    """Consecutive pairs of equal events."""

    first: EventPair
    last: EventPair
    size: int


def pair_events(
    a: Sequence[Event],
    b: Sequence[Event],
    before_a: Sequence[Message] = (),
    before_b: Sequence[Message] = (),
) -> Iterator[EventPair]:
    """Yield the pairs of two runs, in the order of the first run.

    Events correspond if they have the same kind, step, tool call and branch. An event that only the second run has is
    yielded after its predecessor.

    Args:
        a: Comparable events of the first run, see `filter_comparable`.
        b: Comparable events of the second run.
        before_a: Messages of the conversation before the first run.
        before_b: Messages of the conversation before the second run.
    """
    slots_a, slots_b = [*_list_slots(a)], [*_list_slots(b)]
    positions = {slot: index for index, slot in enumerate(slots_b)}
    paired = positions.keys() & {*slots_a}
    following = 0
    for event, slot in zip(a, slots_a, strict=True):
        index = positions.get(slot)
        if index is None:
            yield EventPair(event, None)
            continue
        while following <= index:
            if slots_b[following] not in paired:
                yield EventPair(None, b[following])
            following += 1
        other = b[index]
        yield EventPair(event, other, is_same(event, other, before_a, before_b))
    for index in range(following, len(b)):
        if slots_b[index] not in paired:
            yield EventPair(None, b[index])


def _list_slots(events: Sequence[Event]) -> Iterator[Hashable]:
    """Yield a key for each event. Corresponding events of other runs have the same key."""
    counts = Counter[Hashable]()
    for key, event in by_branch(events):
        slot = (*key, event.kind, event.step, getattr(event, "index", None))
        yield (*slot, counts[slot])
        counts[slot] += 1


def fold_equal_pairs(pairs: Iterable[EventPair]) -> Iterator[EventPair | EqualEvents]:
    """Replace consecutive pairs of equal events with an `EqualEvents`."""
    equal: EqualEvents | None = None
    for pair in pairs:
        if pair.is_same:
            equal = EqualEvents(pair, pair, 1) if equal is None else EqualEvents(equal.first, pair, equal.size + 1)
            continue
        if equal is not None:
            yield equal
            equal = None
        yield pair
    if equal is not None:
        yield equal
