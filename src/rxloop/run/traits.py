"""What an event is by its class, worked out once for each class: a token has no time to be asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from rxloop.protocol.events import (
    ContentCompleteEvent,
    ContentDeltaEvent,
    Event,
    StatusUpdateEvent,
    SubtaskEvent,
    TaskEvent,
    ThoughtDeltaEvent,
    ThoughtStreamEvent,
    ToolCallDeltaEvent,
    ToolStartEvent,
)
from rxloop.state.order import RULES
from rxloop.state.run_state import RunState

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
