"""Pairs of corresponding events of two runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, Literal, NamedTuple, cast

from rxloop.operators.views.compare import by_branch, is_same
from rxloop.protocol.events import ContentCompleteEvent, Event, LLMCallEvent
from rxloop.protocol.messages import Message

MAX_MATCHES = 200_000
"""Maximum number of pairs of equal steps for which steps are aligned. It bounds the time for runs with many equal
steps, whose steps correspond by their position instead."""


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

    Events correspond if they have the same kind, step, tool call and branch. Steps are aligned by their messages and
    the names of their calls, so that an additional step does not change the pairs after it. The number and the size of
    an aligned request are not compared. An event that only the second run has is yielded after its predecessor.

    Args:
        a: Comparable events of the first run, see `filter_comparable`.
        b: Comparable events of the second run.
        before_a: Messages of the conversation before the first run.
        before_b: Messages of the conversation before the second run.
    """
    slots_a = [*_list_slots(by_branch(a))]
    slots_b = [*_list_slots(_StepAlignment(a, b).translate(b))]
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
        yield EventPair(event, other, is_same(event, _shift(other, event), before_a, before_b))
    for index in range(following, len(b)):
        if slots_b[index] not in paired:
            yield EventPair(None, b[index])


def _shift(event: Event, counterpart: Event) -> Event:
    """Return an event with the step of its counterpart."""
    if event.step == counterpart.step:
        return event
    changes: dict[str, Any] = {"step": counterpart.step}
    if isinstance(event, LLMCallEvent) and isinstance(counterpart, LLMCallEvent):
        changes |= {"iteration": counterpart.iteration, "message_count": counterpart.message_count}
    return event.model_copy(update=changes)


def _list_slots(events: Iterable[tuple[Any, Event] | tuple[Any, Event, Hashable]]) -> Iterator[Hashable]:
    """Yield a key for each event. Corresponding events of other runs have the same key."""
    counts = Counter[Hashable]()
    for key, event, *steps in events:
        slot = (*key, event.kind, *(steps or (event.step,)), getattr(event, "index", None))
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


# -- steps


class _Step(NamedTuple):
    """Message of a step, used to find its counterpart."""

    names: tuple[str, ...]
    """Names of the calls."""
    content: str = ""
    arguments: tuple[str, ...] = ()


_Steps = dict[str, _Step]


class _StepAlignment:
    """Correspondence between the steps of two runs, for each nested run and branch."""

    def __init__(self, a: Sequence[Event], b: Sequence[Event]) -> None:
        self._steps_a, self._steps_b = _list_steps(a), _list_steps(b)
        self._found: dict[Any, Mapping[str, str]] = {}

    def translate(self, events: Sequence[Event]) -> Iterator[tuple[Any, Event, Hashable]]:
        """Yield each event of the second run with its key and step in the first run."""
        for key, event in by_branch(events):
            run, branch = key
            yield (self._translate_run(run), branch), event, self._translate_step(key, event.step)

    def _translate_run(self, run: Any) -> Any:
        # The key of a nested run contains the step of its call.
        if not isinstance(run, tuple):
            return run
        parent, branch, step, index = cast("tuple[Any, str | None, str | None, int]", run)
        return self._translate_run(parent), branch, self._translate_step((parent, branch), step), index

    def _translate_step(self, key: Any, step: str | None) -> Hashable:
        if step is None:
            return None
        steps = self._found.get(key)
        if steps is None:
            run, branch = key
            own = self._steps_a.get((self._translate_run(run), branch), {})
            steps = self._found[key] = _align(own, self._steps_b.get(key, {}))
        # The first run may have a step with this name that corresponds to another one.
        return steps.get(step) or ("only", step)


def _list_steps(events: Sequence[Event]) -> dict[Any, _Steps]:
    """Return the steps of each branch in order."""
    steps: dict[Any, _Steps] = {}
    for key, event in by_branch(events):
        if event.step is None:
            continue
        own = steps.setdefault(key, {})
        if isinstance(event, ContentCompleteEvent):
            calls = event.tool_calls
            names = tuple(call.name for call in calls)
            own[event.step] = _Step(names, event.content, tuple(repr(call.arguments) for call in calls))
        else:
            own.setdefault(event.step, _Step(()))
    return steps


def _align(a: _Steps, b: _Steps) -> dict[str, str]:
    """Return the corresponding step of the first run for each step of the second run that has one."""
    pairs: dict[str, str] = {}
    for rest_a, rest_b in _match([*a.items()], [*b.items()], pairs, lambda item: item[1]):
        for last_a, last_b in _match(rest_a, rest_b, pairs, lambda item: item[1].names):
            # Steps between equal ones have been replaced one by one.
            pairs.update((name_b, name_a) for (name_a, _), (name_b, _) in zip(last_a, last_b, strict=False))
    return pairs


_Item = tuple[str, _Step]


def _match(
    a: Sequence[_Item], b: Sequence[_Item], pairs: dict[str, str], get_key: Callable[[_Item], Hashable]
) -> Iterator[tuple[Sequence[_Item], Sequence[_Item]]]:
    """Add the pairs of steps with equal keys, and yield the steps between them."""
    keys_a, keys_b = [get_key(item) for item in a], [get_key(item) for item in b]
    counts = Counter(keys_b)
    if sum(counts[key] for key in keys_a) > MAX_MATCHES:
        yield a, b
        return
    for tag, i, i_end, j, j_end in SequenceMatcher(None, keys_a, keys_b, autojunk=False).get_opcodes():
        if tag == "equal":
            pairs.update((b[j + k][0], a[i + k][0]) for k in range(i_end - i))
        else:
            yield a[i:i_end], b[j:j_end]
