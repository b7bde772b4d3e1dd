"""View that compares a run with a recording, ignoring ids, numbers and times."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, cast

from rxloop.errors import RecordingMismatch
from rxloop.operators.views import EventView
from rxloop.operators.views.make_view import ViewOutput, make_view
from rxloop.operators.views.record import Recording, read_recording
from rxloop.protocol.events import (
    WAITING,
    CheckpointEvent,
    ContentCompleteEvent,
    Event,
    LLMCallEvent,
    LLMFailedEvent,
    LLMNoticeEvent,
    StatusUpdateEvent,
    SubtaskEvent,
    TaskEvent,
    ThoughtStreamEvent,
    ToolCompleteEvent,
    ToolStartEvent,
    ToolVoidedEvent,
    UsageEvent,
    ends_attempt,
)
from rxloop.protocol.messages import Message

_BranchKey = tuple[Any, str | None]
"""Branch key. Nested runs are identified by their tool call, other runs by stream order."""


def filter_comparable(events: Sequence[Event]) -> list[Event]:
    """Return the events to compare, with each tool batch in call order."""
    repeated = _find_repeated(events)
    compared = [
        event
        for event in events
        if (is_compared(event) and event.seq not in repeated) or (event is events[-1] and ends_attempt(event))
    ]
    out: list[Event] = []
    batches: dict[tuple[str, str | None], _Batch] = {}
    for event in compared:
        key = (event.task_id, event.branch)
        batch = batches.get(key)
        if batch is not None:
            if batch.add(event):
                continue
            out += batch.flush()
        out.append(event)
        if isinstance(event, ContentCompleteEvent):
            batches[key] = _Batch(event)
    for batch in batches.values():
        out += batch.flush()
    return out


class _Batch:
    """Buffer that sorts tool call events by index."""

    def __init__(self, message: ContentCompleteEvent) -> None:
        self._message = message
        self._events: list[tuple[int, Event]] = []

    def add(self, event: Event) -> bool:
        """Add an event and return True if it belongs to a tool call of the message."""
        index = _find_index(event, self._message)
        if index is not None:
            self._events.append((index, event))
        return index is not None

    def flush(self) -> list[Event]:
        """Return the events in call order, and clear the batch."""
        events, self._events = self._events, []
        return [event for _, event in sorted(events, key=lambda pair: pair[0])]


def split_at_difference(
    a: Sequence[Event],
    b: Sequence[Event],
    before_a: Sequence[Message] = (),
    before_b: Sequence[Message] = (),
) -> tuple[list[Event], list[Event]]:
    """Return the events of two runs from their first difference. Each list starts with the event that differs.

    Nested runs and strategy branches are concurrent and interleave randomly, so each of them is compared separately.
    `before_a` and `before_b` are the messages of the conversations before the runs.
    """
    queues: dict[_BranchKey, deque[Event]] = {}
    for key, event in by_branch(b):
        queues.setdefault(key, deque()).append(event)
    same: set[int] = set()
    other: Event | None = None
    rest_of_a: Sequence[Event] = ()
    for index, (key, event) in enumerate(by_branch(a)):
        queue = queues.get(key)
        other = queue.popleft() if queue else None
        if other is None or not is_same(event, other, before_a, before_b):
            rest_of_a = a[index:]
            break
        same.add(id(other))
        other = None
    rest_of_b = [event for event in b if id(event) not in same and event is not other]
    return [*rest_of_a], rest_of_b if other is None else [other, *rest_of_b]


def by_branch(events: Sequence[Event]) -> Iterable[tuple[_BranchKey, Event]]:
    """Yield each event with a key of its run and branch. Corresponding branches of two runs have the same key."""
    # Nested runs start in random order, so identify them by their calls.
    nested = {each.subtask_id: each for each in events if isinstance(each, SubtaskEvent)}
    runs: dict[str, Any] = {}

    for event in events:
        yield (_get_run_key(event.task_id, nested, runs), event.branch), event


def _get_run_key(run: str, nested: Mapping[str, SubtaskEvent], runs: dict[str, Any]) -> Any:
    if run not in runs:
        runs[run] = len(runs)
        if (call := nested.get(run)) is not None:
            runs[run] = (_get_run_key(call.task_id, nested, runs), call.branch, call.step, call.index)
    return runs[run]


def is_compared(event: Event) -> bool:
    """Return True if the event is compared. Bookkeeping events are not."""
    if isinstance(event, CheckpointEvent | UsageEvent | LLMFailedEvent | LLMNoticeEvent | ToolVoidedEvent):
        return False
    if isinstance(event, SubtaskEvent):
        return event.state not in WAITING
    # A waiting nested run has not ended.
    rests = isinstance(event, StatusUpdateEvent) and (event.state in ("working", *WAITING) or ends_attempt(event))
    return not rests


def _find_repeated(events: Iterable[Event]) -> set[int]:
    """Return the seq numbers of events that a later attempt repeated."""
    calls: dict[tuple[str, str | None], int] = {}
    starts: set[tuple[str, str | None, int]] = set()
    nested: set[tuple[str, str]] = set()
    repeated: set[int] = set()
    for event in events:
        if isinstance(event, LLMCallEvent):
            # Keep the final call, which was answered and may use a different model.
            earlier = calls.get((event.task_id, event.step))
            if earlier is not None:
                repeated.add(earlier)
            calls[event.task_id, event.step] = event.seq
        elif isinstance(event, SubtaskEvent):
            transition = (event.subtask_id, event.state)
            if transition in nested:
                repeated.add(event.seq)
            nested.add(transition)
        elif isinstance(event, ToolStartEvent):
            # Keep the initial start, because questions may follow.
            slot = (event.task_id, event.step, event.index)
            if slot in starts:
                repeated.add(event.seq)
            starts.add(slot)
    return repeated


def _find_index(event: Event, message: ContentCompleteEvent) -> int | None:
    """Return an event's tool call index. None for unrelated events."""
    if isinstance(event, ToolStartEvent | ToolCompleteEvent | SubtaskEvent):
        return event.index if event.step == message.step else None
    call_id = event.tool_call_id if isinstance(event, ThoughtStreamEvent) else None
    return next((index for index, call in enumerate(message.tool_calls) if call.id == call_id), None)


_CALL: Any = {"id", "raw", "hidden"}
_NESTED: dict[str, Any] = {"call": _CALL, "tool_calls": {"__all__": _CALL}, "input": {"call": _CALL}}
_ENVELOPE = Event.model_fields.keys() - {"kind", "step", "branch"}


def comparable_data(event: Event, before: Sequence[Message]) -> dict[str, Any]:
    """Return comparable event data, excluding ids, sequence numbers and timestamps."""
    if isinstance(event, TaskEvent):
        # A fork's task includes its conversation. The model is compared in each `llm-call`.
        messages = [*before, *event.messages]
        return {"kind": event.kind, "messages": [_message(message) for message in messages]}
    exclude = {**_NESTED, **dict.fromkeys(_ENVELOPE | _find_incidental(type(event)), True)}
    return event.model_dump(mode="json", by_alias=False, exclude=exclude)


@cache
def _list_compared_fields(event_type: type[Event]) -> tuple[str, ...]:
    return tuple(name for name in event_type.model_fields if name not in _ENVELOPE | _find_incidental(event_type))


def _find_incidental(event_type: type[Event]) -> set[str]:
    return {name for cls in event_type.__mro__ for name in vars(cls).get("incidental_fields", ())}


def is_same(a: Event, b: Event, before_a: Sequence[Message] = (), before_b: Sequence[Message] = ()) -> bool:
    """Return True if two events have the same comparable data.

    Args:
        a: Event of the first run.
        b: Event of the second run.
        before_a: Messages of the conversation before the first run.
        before_b: Messages of the conversation before the second run.
    """
    if type(a) is not type(b):
        return False
    # Most events are equal except for their envelope, which is much faster to check than the data without ids.
    if not isinstance(a, TaskEvent):
        fields_a, fields_b = vars(a), vars(b)
        if all(fields_a.get(name) == fields_b.get(name) for name in _list_compared_fields(type(a))):
            return True
    return comparable_data(a, before_a) == comparable_data(b, before_b)


def _message(message: Message) -> dict[str, Any]:
    ids = dict.fromkeys(("provider_state", "tool_call_id", "message_id"), True)
    exclude: Any = {**ids, "tool_calls": {"__all__": _CALL}}
    return message.model_dump(mode="json", by_alias=False, exclude=exclude)


def format_event(event: Event) -> str:
    """Format an event as a single line with sequence number, kind and content."""
    step = f" {event.step}" if event.step else ""
    text = event.describe()
    return f"{event.seq:>4} {event.kind}{step}{': ' if text else ''}{_short(text)}"


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 80 else text[:77].rstrip() + "..."


def compare(recording: Recording) -> EventView:
    """Pass all events, and fail at the end of the stream if they differ from the recording.

    Like `rxloop.diff`, it compares messages, calls, results, thoughts, models and the end of the run. It ignores ids,
    numbers, times, tokens, deltas, the order in which the calls of a message end, and the interleaving of concurrent
    branches. The error is a `RecordingMismatch`, which is an `AssertionError` and shows both sides of the first
    difference.

    ::

        source              --t--w--l--d--c--F|
        compare(same)       --t--w--l--d--c--F|
        compare(other)      --t--w--l--d--c--F#

    Example:
        >>> await Agent(recorded("run.jsonl"), tools=tools).run("Weather?").pipe(op.compare("run.jsonl"))

    Args:
        recording: Recorded events, or the path of a JSONL file written by `op.record`.

    Returns:
        View of all events, in order.

    Raises:
        ConfigurationError: The file cannot be read. Raised immediately.
    """
    recorded = filter_comparable([event for event in read_recording(recording) if event.durable])

    def compare_at_end(out: ViewOutput[Event]) -> Callable[[Event], None]:
        events: list[Event] = []

        def handle(event: Event) -> None:
            if event.durable:
                events.append(event)
            out.emit(event)

        def end() -> None:
            try:
                _check(recorded, filter_comparable(events))
            except RecordingMismatch as error:
                out.fail(error)

        out.on_end(end)
        return handle

    return cast("EventView", make_view(compare_at_end))


def _check(recorded: Sequence[Event], events: Sequence[Event]) -> None:
    """Compare recorded and actual events.

    Raises:
        RecordingMismatch: Difference between recording and run.
    """
    expected_events, actual_events = split_at_difference(recorded, events)
    if not expected_events and not actual_events:
        return
    expected_event, actual_event = next(iter(expected_events), None), next(iter(actual_events), None)
    index = len(recorded) - len(expected_events)
    message = [
        f"the run differs from the recording at compared event {index + 1} of {len(recorded)}",
        f"recorded  {format_event(expected_event).lstrip() if expected_event is not None else 'had ended'}",
        f"happened  {format_event(actual_event).lstrip() if actual_event is not None else 'has ended'}",
    ]
    if expected_event is not None and actual_event is not None and expected_event.kind == actual_event.kind:
        then, now = comparable_data(expected_event, ()), comparable_data(actual_event, ())
        message += [f"  {name}: {then[name]!r} != {now[name]!r}" for name in then if then[name] != now.get(name)]
    raise RecordingMismatch("\n".join(message), position=index, expected=expected_event, actual=actual_event)
