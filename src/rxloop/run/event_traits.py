"""What the recorder has to know of each event class, and the order in which events may come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from rxloop.protocol.events import (
    ByClass,
    ContentCompleteEvent,
    ContentDeltaEvent,
    Event,
    LLMCallEvent,
    StatusUpdateEvent,
    SubtaskEvent,
    TaskEvent,
    ThoughtDeltaEvent,
    ThoughtStreamEvent,
    ToolCallDeltaEvent,
    ToolCompleteEvent,
    ToolProgressEvent,
    ToolStartEvent,
)
from rxloop.state.run_state import RunState


def _delta(state: RunState, event: Event) -> str | None:
    if event.step is None or event.step == state.open_step:
        return None
    return f"a {event.kind} of step {event.step}, whose message is not open"


def _call(state: RunState, event: LLMCallEvent) -> str | None:
    # A second try of a step comes while its message is open.
    if event.step == state.open_step or state.last is None or event.step != state.last.step:
        return None
    return f"step {event.step} is asked for again, though its message is complete"


def _message(state: RunState, event: ContentCompleteEvent) -> str | None:
    if event.step == state.open_step or state.last is None or event.step != state.last.step:
        return None
    return f"the message of step {event.step} is complete twice"


def _complete(state: RunState, event: ToolCompleteEvent) -> str | None:
    return _place(state, event) or (
        f"call {event.index} of step {event.step} is answered by its tool, and has not begun"
        if event.duration and not _begun(state, event)
        else None
    )


def _place(state: RunState, event: ToolStartEvent | ToolProgressEvent | ToolCompleteEvent) -> str | None:
    batch = state.batch
    if batch is not None and batch.step == event.step and batch.awaits(batch.index_of(event.index)):
        return None
    return f"a {event.kind} of call {event.index} of step {event.step}, which has its answer or was never asked for"


def _begun(state: RunState, event: ToolStartEvent | ToolCompleteEvent) -> bool:
    batch = state.batch
    return batch is not None and bool(batch.begun >> batch.index_of(event.index) & 1)


RULES = ByClass[Callable[[RunState, Any], str | None]](
    {
        ContentDeltaEvent: _delta,
        ThoughtDeltaEvent: _delta,
        ToolCallDeltaEvent: _delta,
        LLMCallEvent: _call,
        ContentCompleteEvent: _message,
        ToolStartEvent: _place,
        ToolProgressEvent: _place,
        ToolCompleteEvent: _complete,
    }
)
"""Why an event of a kind cannot follow what its line has come to; None where it can. A kind with no rule can come at
any time. For events of the run itself, not of one that is nested in it."""

_TEXT: dict[type[Event], str] = {
    ContentDeltaEvent: "delta",
    ThoughtDeltaEvent: "delta",
    ToolCallDeltaEvent: "fragment",
}


class Traits(NamedTuple):
    """What an event is by its class; to ask `isinstance` of each event would cost more than to number it."""

    is_event: bool
    """It is an event, and not something else that came out of the loop."""
    rule: Callable[[RunState, Any], str | None] | None
    """Why it cannot come at any time."""
    begins: bool
    """It begins a call."""
    text: str
    """The one field of a delta that holds what somebody else wrote; empty for other events."""
    by_run: bool
    """It tells where a run begins and ends."""
    refers: bool
    """It names calls."""
    drawn: bool
    """It may have a place in the graph of thoughts."""


class _ByClass(dict[type, Traits]):
    def __missing__(self, cls: type) -> Traits:
        traits = self[cls] = Traits(
            is_event=issubclass(cls, Event),
            rule=RULES[cls],
            begins=issubclass(cls, ToolStartEvent),
            text=_TEXT.get(cls, ""),
            by_run=issubclass(cls, (TaskEvent, StatusUpdateEvent)),
            refers=issubclass(cls, (ThoughtStreamEvent, SubtaskEvent)),
            drawn=issubclass(cls, (ThoughtStreamEvent, ContentCompleteEvent, ToolStartEvent)),
        )
        return traits


TRAITS = _ByClass()
