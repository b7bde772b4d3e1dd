"""Event numbering, timestamps and order checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rxloop.errors import InvalidEvent
from rxloop.protocol.envelope import ROOT, check_time
from rxloop.protocol.events import (
    CheckpointEvent,
    ContentCompleteEvent,
    ContentDeltaEvent,
    Event,
    EventTable,
    InputReceivedEvent,
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
    UsageEvent,
    normalise,
)
from rxloop.protocol.model import EMPTY_DICT, FrozenDict, FrozenList, mutable_fields
from rxloop.state.history import Slot
from rxloop.state.run_state import RunState

Rule = Callable[[RunState, Any], str | None]
"""Function that explains why an event is out of order. None if it is in order."""
RepetitionRule = Callable[["EventStamp", RunState, Any], str | None]
"""Function that returns an error message for a repeated event, or None."""


class Numbering:
    """Current event numbers and clock, shared between a run and its nested runs."""

    __slots__ = ("now", "seq", "sub")

    def __init__(self, now: Callable[[], int]) -> None:
        self.seq = 0
        self.sub = 0
        self.now = now
        """Function returning the current time in milliseconds."""


class EventStamp:
    """Stamp adding numbers, ids and timestamps to an attempt's events."""

    __slots__ = ("_completed", "_started", "ids", "numbering", "owner", "task_id")

    def __init__(self, task_id: str, context_id: str, owner: str | None, numbering: Numbering) -> None:
        self.task_id = task_id
        self.owner = owner
        """Owner of the run, which is a part of the conversation's key."""
        self.numbering = numbering
        self.ids: dict[str, Any] = {"attempt": 1, "task_id": task_id, "context_id": context_id}
        """Default ids for new events."""
        # Even an empty set would take 216 bytes per run.
        self._started: set[Slot] | None = None
        self._completed: dict[str | None, set[str | None]] = {}
        """Steps of earlier complete messages by branch, excluding each branch's newest message."""

    def apply(self, event: Event, properties: EventProperties) -> Event:
        """Add numbers, ids and a timestamp to an event. Copies the event first if it was published before."""
        fields = mutable_fields(event)
        if fields["attempt"]:
            event = event.model_copy()
            fields = mutable_fields(event)
        # Most tokens are ASCII deltas without metadata, and don't need to be normalised.
        text = fields.get(properties.text)
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
        if properties.durable:
            numbering.seq += 1
            fields["sub"] = numbering.sub = 0
        else:
            fields["sub"] = numbering.sub = numbering.sub + 1
        fields["seq"] = numbering.seq
        return event

    def adopt(self, event: Event) -> None:
        """Complete the ids of an event published by a nested or foreign run."""
        fields = mutable_fields(event)
        if fields["task_id"] and fields["task_id"] != self.task_id and fields["parent_task_id"] is None:
            # Publish forwarded events of another run as if it was nested.
            event.check_ids()
            fields["parent_task_id"] = self.task_id
        elif fields["task_id"] and fields["parent_task_id"] not in (None, self.task_id):
            fields["metadata"] = FrozenDict({**fields["metadata"], ROOT: self.task_id})
        existing_ids = {name: fields[name] for name in ("task_id", "context_id") if fields[name]}
        fields.update(self.ids | existing_ids)

    def check_own_event(
        self, reason: str | None, state: RunState, event: Event, properties: EventProperties
    ) -> str | None:
        """Return why an event of this run is out of order or repeated, or None. Events of other runs are not checked.

        Args:
            reason: Result of the order rule.
            state: State of the event's branch.
            event: Event that hasn't been stamped yet.
            properties: Properties of the event's class.
        """
        # The attributes of pydantic models are slower than the items of their dicts.
        fields = mutable_fields(event)
        # Events that a nested run has published before have the id of its parent run.
        if fields["task_id"] != self.task_id and (fields["task_id"] or fields["parent_task_id"] is not None):
            return None
        if reason is not None or properties.find_repetition is None:
            return reason
        return properties.find_repetition(self, state, event)

    def find_repeated_start(self, state: RunState, event: ToolStartEvent) -> str | None:
        """Return an error message for a repeated call start, or None."""
        # The state can't detect this, because calls from earlier attempts may be restarted.
        slot = (event.step or "", event.index)
        if self._started is None:
            self._started = set()
        if slot in self._started:
            return f"call {event.index} of step {event.step} started twice"
        self._started.add(slot)
        return None

    def find_repeated_step(self, state: RunState, event: LLMCallEvent | ContentCompleteEvent) -> str | None:
        """Return an error message for a repeated step, or None."""
        step, last = event.step, state.last
        # This check was already done for the request of an open step.
        if last is None or step == last.step or (step is not None and step == state.open_step):
            return None
        # The state only retains the newest message.
        completed = self._completed.setdefault(event.branch, set())
        completed.add(last.step)
        return f"{event.kind} of step {step}, which has a complete message" if step in completed else None


def fill_references(event: ThoughtStreamEvent | SubtaskEvent, main: RunState) -> None:
    """Fill in a thought's id and index, and list any hidden calls referenced by the event.

    Args:
        event: Stamped event.
        main: Main branch state before this event.
    """
    fields = mutable_fields(event)
    call_ids = [event.tool_call_id]
    if isinstance(event, ThoughtStreamEvent):
        if not event.thought_id:
            fields["thought_id"] = main.make_thought_id()
        if event.index < 0:
            fields["index"] = main.thought_count
        call_ids.append(event.related_to)
    hidden = [call for call in call_ids if call is not None and call in main.calls and main.calls[call].hidden]
    if hidden:
        fields["hidden_calls"] = FrozenList(hidden)


def check_publisher(event: Event) -> None:
    """Reject events that only the run itself may publish.

    Raises:
        InvalidEvent: The event starts or ends a run.
    """
    if isinstance(event, TaskEvent):
        raise InvalidEvent("cannot emit a `task` event after starting a run: emit another kind of event")
    if isinstance(event, StatusUpdateEvent) and event.final:
        raise InvalidEvent(
            "a final `status-update` can only be emitted by the run itself: return or raise to end your part, or "
            "cancel the run using its handle"
        )


# -- order rules


def _check_delta(state: RunState, event: Event) -> str | None:
    if event.step is None or event.step == state.open_step:
        return None
    return f"{event.kind} for step {event.step}, which has no open message"


def _check_once(state: RunState, event: Event) -> str | None:
    # Publishing sets the attempt.
    return f"{event.kind} of step {event.step} emitted twice" if event.attempt else None


def _check_usage(state: RunState, event: UsageEvent) -> str | None:
    step = event.step
    if step is None or step == state.open_step:
        return _check_once(state, event)
    requested = (state.open_step, state.last.step if state.last is not None else None)
    # Tools use sub-steps of their own step for model calls, such as those of MCP sampling.
    if any(known is not None and f"{step}/".startswith(f"{known}/") for known in requested):
        return _check_once(state, event)
    return f"usage of step {step}, which was not requested"


def _check_call(state: RunState, event: LLMCallEvent) -> str | None:
    if event.attempt:
        return _check_once(state, event)
    # A step's second request may be sent while its message is still open.
    if event.step == state.open_step or state.last is None or event.step != state.last.step:
        return None
    return f"step {event.step} requested again after completing its message"


def _check_message(state: RunState, event: ContentCompleteEvent) -> str | None:
    if event.step == state.open_step or state.last is None or event.step != state.last.step:
        return None
    return f"message of step {event.step} completed twice"


def _check_result(state: RunState, event: ToolCompleteEvent) -> str | None:
    error = _check_slot(state, event)
    if error is None and event.duration and not _has_started(state, event):
        return f"call {event.index} of step {event.step} completed without being started"
    return error


def _check_slot(state: RunState, event: ToolStartEvent | ToolProgressEvent | ToolCompleteEvent) -> str | None:
    call = None if state.batch is None else state.batch.find_open(event.step, event.index)
    if call is None:
        return (
            f"{event.kind} for call {event.index} of step {event.step}, which was already completed or never requested"
        )
    if call.id != event.call.id:
        return f"{event.kind} for call {event.index} of step {event.step} with the id of another call"
    return None


def _check_answer(state: RunState, event: InputReceivedEvent) -> str | None:
    return None if event.input_id in state.pending else f"answer to question {event.input_id}, which is not pending"


def _has_started(state: RunState, event: ToolStartEvent | ToolCompleteEvent) -> bool:
    batch = state.batch
    return batch is not None and bool(batch.started >> batch.find_index(event.index) & 1)


_RULES = EventTable[Rule](
    {
        ContentDeltaEvent: _check_delta,
        ThoughtDeltaEvent: _check_delta,
        ToolCallDeltaEvent: _check_delta,
        LLMCallEvent: _check_call,
        UsageEvent: _check_usage,
        CheckpointEvent: _check_once,
        ContentCompleteEvent: _check_message,
        ToolStartEvent: _check_slot,
        ToolProgressEvent: _check_slot,
        ToolCompleteEvent: _check_result,
        InputReceivedEvent: _check_answer,
    }
)
_REPETITION_RULES = EventTable[RepetitionRule](
    {
        LLMCallEvent: EventStamp.find_repeated_step,
        ContentCompleteEvent: EventStamp.find_repeated_step,
        ToolStartEvent: EventStamp.find_repeated_start,
    }
)
_TEXT: dict[type[Event], str] = {
    ContentDeltaEvent: "delta",
    ThoughtDeltaEvent: "delta",
    ToolCallDeltaEvent: "fragment",
}


@dataclass(frozen=True, slots=True)
class EventProperties:
    """Properties of an event class, cached because `isinstance` checks would take longer than stamping."""

    is_event: bool
    """False for any other object a loop may emit."""
    durable: bool
    rule: Rule | None
    """Order rule, or None if the event is always allowed."""
    find_repetition: RepetitionRule | None
    """Repetition rule, or None if the event may be repeated."""
    text: str
    """Delta field containing model text. Empty for other events."""
    is_reserved: bool
    """True for events starting or ending a run."""
    has_references: bool
    """True for events referring to tool calls."""
    in_graph: bool
    """True for events that may appear in the thought graph."""


class _PropertyCache(dict[type, EventProperties]):
    def __missing__(self, cls: type) -> EventProperties:
        properties = self[cls] = EventProperties(
            is_event=issubclass(cls, Event),
            durable=getattr(cls, "durable", False),
            rule=_RULES[cls],
            find_repetition=_REPETITION_RULES[cls],
            text=_TEXT.get(cls, ""),
            is_reserved=issubclass(cls, (TaskEvent, StatusUpdateEvent)),
            has_references=issubclass(cls, (ThoughtStreamEvent, SubtaskEvent)),
            in_graph=issubclass(cls, (ThoughtStreamEvent, ContentCompleteEvent, ToolStartEvent, SubtaskEvent)),
        )
        return properties


EVENT_PROPERTIES = _PropertyCache()
"""Cache of properties by event class."""
