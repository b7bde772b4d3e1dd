"""Whether an event may come now: what an operator doubles, drops or holds back tells what did not happen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rxloop.protocol.events import (
    ContentCompleteEvent,
    ContentDeltaEvent,
    Event,
    LLMCallEvent,
    ThoughtDeltaEvent,
    ToolCallDeltaEvent,
    ToolCompleteEvent,
    ToolProgressEvent,
    ToolStartEvent,
)
from rxloop.state.by_class import ByClass
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
