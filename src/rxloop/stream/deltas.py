"""Deltas: how they are made cheaply, and merged, the only way in which a stream may get shorter and lose nothing."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import Any, TypeVar

from pydantic import BaseModel

from rxloop.events import ContentDeltaEvent, Event, ThoughtDeltaEvent, ToolCallDeltaEvent


def delta_text(event: object) -> str | None:
    """The text of a delta that can be merged with its neighbours, or None."""
    if isinstance(event, ContentDeltaEvent | ThoughtDeltaEvent):
        return event.delta
    if isinstance(event, ToolCallDeltaEvent):
        return event.fragment
    return None


def same_run_of_deltas(first: Event, second: Event) -> bool:
    """Whether two adjacent deltas are pieces of the same text."""
    return (
        type(first) is type(second)
        and first.step == second.step
        and first.branch == second.branch
        and first.task_id == second.task_id
        and first.seq == second.seq
        and (not isinstance(first, ToolCallDeltaEvent) or first.index == second.index)  # type: ignore[attr-defined]
    )


def merged(newest: Event, texts: Iterable[str]) -> Event:
    """The newest of some deltas with the text of all of them."""
    name = "fragment" if isinstance(newest, ToolCallDeltaEvent) else "delta"
    return newest.model_copy(update={name: "".join(texts)})


def merge_adjacent(events: Iterable[Event]) -> list[Event]:
    """The events with each run of adjacent deltas as one."""
    out: list[Event] = []
    texts: list[str] = []

    def close() -> None:
        if len(texts) > 1:
            out[-1] = merged(out[-1], texts)
        texts.clear()

    for event in events:
        text = delta_text(event)
        if text is not None and texts and same_run_of_deltas(out[-1], event):
            out[-1] = event
            texts.append(text)
            continue
        close()
        out.append(event)
        if text is not None:
            texts.append(text)
    close()
    return out


class PackedDeltas:
    """Deltas of one text that came one after the other, in a twentieth of their memory; `events` makes them anew."""

    __slots__ = ("_first", "_lengths", "_times", "text")

    def __init__(self, deltas: Sequence[ContentDeltaEvent | ThoughtDeltaEvent]) -> None:
        self._first = deltas[0]
        self._lengths = array("I", [len(each.delta) for each in deltas])
        self._times = array("q", [each.timestamp for each in deltas])
        self.text = "".join(each.delta for each in deltas)

    @property
    def kind(self) -> str:
        """That of the events."""
        return self._first.kind

    def __len__(self) -> int:
        return len(self._times)

    def events(self) -> Iterator[Event]:
        """The deltas as they were."""
        bounds = pairwise(accumulate(self._lengths, initial=0))
        for number, (start, end) in enumerate(bounds):
            yield self._delta(number, self.text[start:end])

    def merged(self) -> Event:
        """The newest of them with the text of all."""
        return self._delta(len(self) - 1, self.text)

    def _delta(self, number: int, text: str) -> Event:
        first = self._first
        changes: dict[str, Any] = {"delta": text, "timestamp": self._times[number]}
        changes |= {"index": first.index + number, "sub": first.sub + number}
        return first.model_copy(update=changes)


_COUNTED = {"delta", "index", "sub", "timestamp"}
# What packed deltas have in common.
_COMMON = {cls: itemgetter(*cls.model_fields.keys() - _COUNTED) for cls in (ContentDeltaEvent, ThoughtDeltaEvent)}


def packed(events: Iterable[Event]) -> list[Event | PackedDeltas]:
    """The events with each run of deltas, whose numbers have no gap, packed."""
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
            continue
        fields = vars(event)
        own = getter(fields)
        if not run or own != common or fields["index"] != index + 1 or fields["sub"] != sub + 1:
            close()
            common = own
        run.append(event)
        index, sub = fields["index"], fields["sub"]
    close()
    return out


def _template(cls: type[Event]) -> dict[str, Any]:
    return {name: field.get_default() for name, field in cls.model_fields.items() if field.default_factory is None}


_Delta = TypeVar("_Delta", ContentDeltaEvent, ThoughtDeltaEvent)
_TEXT_DELTA = {cls: _template(cls) for cls in (ContentDeltaEvent, ThoughtDeltaEvent)}
_NO_FIELDS: set[str] = set()
# The slots of a model, looked up once: they are what a constructor that validates nothing has to fill.
_set_dict, _set_fields_set, _set_extra, _set_private = (
    BaseModel.__dict__[name].__set__
    for name in ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
)
_new = object.__new__


def text_delta(cls: type[_Delta], delta: str, index: int, step: str | None) -> _Delta:
    """A delta event without validation, for the text that a provider has decoded: a third of the constructor's cost."""
    event = _new(cls)
    fields = _TEXT_DELTA[cls].copy()
    fields["delta"] = delta
    fields["index"] = index
    fields["step"] = step
    fields["metadata"] = {}
    _set_dict(event, fields)
    _set_fields_set(event, _NO_FIELDS)
    _set_extra(event, None)
    _set_private(event, None)
    return event
