"""Merging of adjacent deltas: the only way in which a stream may get shorter without losing anything."""

from __future__ import annotations

from collections.abc import Iterable

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
