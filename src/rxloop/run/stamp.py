"""Numbers, ids and timestamps of events, and the order in which events may come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rxloop.errors import InvalidEvent
from rxloop.protocol.envelope import ROOT, check_time
from rxloop.protocol.events import (
    ContentCompleteEvent,
    ContentDeltaEvent,
    Event,
    EventTable,
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
    normalise,
)
from rxloop.protocol.model import EMPTY_DICT, FrozenDict, FrozenList, mutable_fields
from rxloop.state.history import Slot
from rxloop.state.run_state import RunState

Rule = Callable[[RunState, Any], str | None]
"""Returns the reason why an event cannot follow the events of its branch, or None."""


class Numbering:
    """Last numbers of a stream and its clock, shared by a run and the runs nested in it."""

    __slots__ = ("now", "seq", "sub")

    def __init__(self, now: Callable[[], int]) -> None:
        self.seq = 0
        self.sub = 0
        self.now = now
        """Function that returns the current time, in milliseconds."""


class EventStamp:
    """Writes numbers, ids and timestamps into the events of one attempt."""

    __slots__ = ("_started", "ids", "numbering", "task_id")

    def __init__(self, task_id: str, context_id: str, numbering: Numbering) -> None:
        self.task_id = task_id
        self.numbering = numbering
        self.ids: dict[str, Any] = {"attempt": 1, "task_id": task_id, "context_id": context_id}
        """Ids that are written into most events."""
        # An empty set would take 216 bytes per run.
        self._started: set[Slot] | None = None

    def apply(self, event: Event, traits: EventTraits) -> Event:
        """Write numbers, ids and a timestamp into an event, and return it. An event that was published is copied."""
        if event.attempt:
            event = event.model_copy()
        fields = mutable_fields(event)
        # Most tokens are deltas in ASCII without metadata, which need no normalisation.
        text = fields.get(traits.text)
        if text is None or not text.isascii() or fields["metadata"] is not EMPTY_DICT:
            normalise(event)
        numbering = self.numbering
        if fields["timestamp"]:
            check_time(fields["timestamp"])
        else:
            fields["timestamp"] = numbering.now()
        if fields["task_id"] or fields["context_id"]:
            self.adopt(event)
        else:
            fields.update(self.ids)
        if event.durable:
            numbering.seq += 1
            fields["sub"] = numbering.sub = 0
        else:
            fields["sub"] = numbering.sub = numbering.sub + 1
        fields["seq"] = numbering.seq
        return event

    def adopt(self, event: Event) -> None:
        """Set the ids of an event that already has some, because a nested or foreign run published it."""
        fields = mutable_fields(event)
        if fields["task_id"] and fields["task_id"] != self.task_id and fields["parent_task_id"] is None:
            # A forwarded event of another run: publish it as the event of a nested run.
            event.check_ids()
            fields["parent_task_id"] = self.task_id
        elif fields["task_id"] and fields["parent_task_id"] not in (None, self.task_id):
            fields["metadata"] = FrozenDict({**fields["metadata"], ROOT: self.task_id})
        own = {name: fields[name] for name in ("task_id", "context_id") if fields[name]}
        fields.update(self.ids | own)

    def find_misorder(self, state: RunState | None, event: Event, traits: EventTraits) -> str | None:
        """Return the reason why an event is out of order, or None. Events of nested runs are always in order.

        Args:
            state: State of the event's branch, or None if this is the first event of the branch.
            event: Event that is not stamped yet.
            traits: Traits of its class.
        """
        if state is None or traits.rule is None:
            return None
        reason = traits.rule(state, event)
        if reason is None and not traits.begins:
            return None
        if event.parent_task_id is not None or event.task_id not in ("", self.task_id):
            return None
        if reason is None and isinstance(event, ToolStartEvent):
            # The state cannot detect this, because an attempt may restart calls of earlier attempts.
            slot = (event.step or "", event.index)
            if self._started is None:
                self._started = set()
            if slot in self._started:
                reason = f"call {event.index} of step {event.step} begins twice"
            self._started.add(slot)
        return reason


def fill_references(event: ThoughtStreamEvent | SubtaskEvent, main: RunState) -> None:
    """Set the id and index of a thought and list the hidden calls that an event refers to.

    Args:
        event: Stamped event.
        main: State of the main branch before the event.
    """
    fields = mutable_fields(event)
    named = [event.tool_call_id]
    if isinstance(event, ThoughtStreamEvent):
        if not event.thought_id:
            fields["thought_id"] = main.make_thought_id()
        if event.index < 0:
            fields["index"] = main.thought_count
        named.append(event.related_to)
    hidden = [call for call in named if call is not None and call in main.calls and main.calls[call].hidden]
    if hidden:
        fields["hidden_calls"] = FrozenList(hidden)


def check_publisher(event: Event) -> None:
    """Reject events that only the run itself may publish.

    Raises:
        InvalidEvent: The event starts or ends a run.
    """
    if isinstance(event, TaskEvent):
        raise InvalidEvent("a `task` event begins a run, and this one has begun: emit an event of another kind")
    if isinstance(event, StatusUpdateEvent) and event.final:
        raise InvalidEvent(
            "a final `status-update` is the end of a run, which only the run itself can tell: return or raise to "
            "end your part, or cancel the run by its handle"
        )


# -- rules: each returns the reason why an event cannot follow the events of its branch


def _check_delta(state: RunState, event: Event) -> str | None:
    if event.step is None or event.step == state.open_step:
        return None
    return f"a {event.kind} of step {event.step}, whose message is not open"


def _check_call(state: RunState, event: LLMCallEvent) -> str | None:
    # The second request of a step is sent while its message is open.
    if event.step == state.open_step or state.last is None or event.step != state.last.step:
        return None
    return f"step {event.step} is asked for again, though its message is complete"


def _check_message(state: RunState, event: ContentCompleteEvent) -> str | None:
    if event.step == state.open_step or state.last is None or event.step != state.last.step:
        return None
    return f"the message of step {event.step} is complete twice"


def _check_result(state: RunState, event: ToolCompleteEvent) -> str | None:
    return _check_slot(state, event) or (
        f"call {event.index} of step {event.step} is answered by its tool, and has not begun"
        if event.duration and not _has_begun(state, event)
        else None
    )


def _check_slot(state: RunState, event: ToolStartEvent | ToolProgressEvent | ToolCompleteEvent) -> str | None:
    batch = state.batch
    if batch is not None and batch.step == event.step and batch.is_open(batch.find_index(event.index)):
        return None
    return f"a {event.kind} of call {event.index} of step {event.step}, which has its answer or was never asked for"


def _has_begun(state: RunState, event: ToolStartEvent | ToolCompleteEvent) -> bool:
    batch = state.batch
    return batch is not None and bool(batch.started >> batch.find_index(event.index) & 1)


_RULES = EventTable[Rule](
    {
        ContentDeltaEvent: _check_delta,
        ThoughtDeltaEvent: _check_delta,
        ToolCallDeltaEvent: _check_delta,
        LLMCallEvent: _check_call,
        ContentCompleteEvent: _check_message,
        ToolStartEvent: _check_slot,
        ToolProgressEvent: _check_slot,
        ToolCompleteEvent: _check_result,
    }
)
_TEXT: dict[type[Event], str] = {
    ContentDeltaEvent: "delta",
    ThoughtDeltaEvent: "delta",
    ToolCallDeltaEvent: "fragment",
}


@dataclass(frozen=True, slots=True)
class EventTraits:
    """Properties of an event class. Calling `isinstance` for each event would cost more than stamping it."""

    is_event: bool
    """False for other objects that a loop may emit."""
    rule: Rule | None
    """Order rule, or None for events that can come at any time."""
    begins: bool
    """True for the start of a tool call."""
    text: str
    """Field of a delta that holds text of a model; empty for other events."""
    by_run: bool
    """True for the start and the end of a run."""
    refers: bool
    """True for events that refer to tool calls."""
    drawn: bool
    """True for events that may be part of the thought graph."""


class _Traits(dict[type, EventTraits]):
    def __missing__(self, cls: type) -> EventTraits:
        traits = self[cls] = EventTraits(
            is_event=issubclass(cls, Event),
            rule=_RULES[cls],
            begins=issubclass(cls, ToolStartEvent),
            text=_TEXT.get(cls, ""),
            by_run=issubclass(cls, (TaskEvent, StatusUpdateEvent)),
            refers=issubclass(cls, (ThoughtStreamEvent, SubtaskEvent)),
            drawn=issubclass(cls, (ThoughtStreamEvent, ContentCompleteEvent, ToolStartEvent)),
        )
        return traits


TRAITS = _Traits()
"""Traits by event class, computed once for each class."""
