"""The view that compares a run with a recorded one, without the ids, numbers and times that differ."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
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

_Line = tuple[Any, str | None]
"""A run, by the call that it is nested in or else by its place among those in a stream, and a branch of it."""


def comparable(events: Sequence[Event]) -> list[Event]:
    """The events that count, with those of each batch of calls in call order."""
    void = _void(events)
    kept = [
        event
        for event in events
        if (counts(event) and event.seq not in void) or (event is events[-1] and ends_attempt(event))
    ]
    out: list[Event] = []
    batches: dict[tuple[str, str | None], _Batch] = {}
    for event in kept:
        line = (event.task_id, event.branch)
        batch = batches.get(line)
        if batch is not None:
            if batch.takes(event):
                continue
            out += batch.emptied()
        out.append(event)
        if isinstance(event, ContentCompleteEvent):
            batches[line] = _Batch(event)
    for batch in batches.values():
        out += batch.emptied()
    return out


class _Batch:
    """What belongs to the calls of a message, sorted by call."""

    def __init__(self, message: ContentCompleteEvent) -> None:
        self._message = message
        self._events: list[tuple[int, Event]] = []

    def takes(self, event: Event) -> bool:
        """Take an event, if it belongs to one of the calls."""
        place = _place(event, self._message)
        if place is not None:
            self._events.append((place, event))
        return place is not None

    def emptied(self) -> list[Event]:
        """The events so far, in call order."""
        events, self._events = self._events, []
        return [event for _, event in sorted(events, key=lambda pair: pair[0])]


def parted(
    a: Sequence[Event],
    b: Sequence[Event],
    before_a: Sequence[Message] = (),
    before_b: Sequence[Message] = (),
) -> tuple[list[Event], list[Event]]:
    """What is left of two runs from their first difference on; it begins with the two events that differ.

    Nested runs, and lines of a strategy, go on side by side: how they mix is chance, and so each is compared by itself.
    What was said before the runs is the conversation before each of them.
    """
    theirs: dict[_Line, deque[Event]] = {}
    for line, event in _by_line(b):
        theirs.setdefault(line, deque()).append(event)
    same: set[int] = set()
    first: Event | None = None
    rest: Sequence[Event] = ()
    for place, (line, event) in enumerate(_by_line(a)):
        queue = theirs.get(line)
        first = queue.popleft() if queue else None
        if first is None or fact(event, before_a) != fact(first, before_b):
            rest = a[place:]
            break
        same.add(id(first))
        first = None
    left = [event for event in b if id(event) not in same and event is not first]
    return [*rest], left if first is None else [first, *left]


def _by_line(events: Sequence[Event]) -> Iterable[tuple[_Line, Event]]:
    # By the calls that they are nested in, and not by their order, which is chance as well.
    nested = {each.subtask_id: each for each in events if isinstance(each, SubtaskEvent)}
    runs: dict[str, Any] = {}

    def place_of(run: str) -> Any:
        if run not in runs:
            runs[run] = len(runs)
            if (call := nested.get(run)) is not None:
                runs[run] = (place_of(call.task_id), call.branch, call.step, call.index)
        return runs[run]

    for event in events:
        yield (place_of(event.task_id), event.branch), event


def counts(event: Event) -> bool:
    """Tell whether an event says what happened, and is not bookkeeping."""
    if isinstance(event, CheckpointEvent | UsageEvent | LLMFailedEvent | LLMNoticeEvent | ToolVoidedEvent):
        return False
    if isinstance(event, SubtaskEvent):
        return event.state not in WAITING
    # A nested run that waits ends no more than the one around it.
    rests = isinstance(event, StatusUpdateEvent) and (event.state in ("working", *WAITING) or ends_attempt(event))
    return not rests


def _void(events: Iterable[Event]) -> set[int]:
    """The beginnings that do not count, where one attempt began something and a later one began it again."""
    calls: dict[tuple[str, str | None], int] = {}
    starts: set[tuple[str, str | None, int]] = set()
    nested: set[tuple[str, str]] = set()
    void: set[int] = set()
    for event in events:
        if isinstance(event, LLMCallEvent):
            # The last one, which is the one that was answered: it may be another model's.
            earlier = calls.get((event.task_id, event.step))
            if earlier is not None:
                void.add(earlier)
            calls[event.task_id, event.step] = event.seq
        elif isinstance(event, SubtaskEvent):
            said = (event.subtask_id, event.state)
            if said in nested:
                void.add(event.seq)
            nested.add(said)
        elif isinstance(event, ToolStartEvent):
            # The first one: questions of the tool, and their answers, come after it.
            slot = (event.task_id, event.step, event.index)
            if slot in starts:
                void.add(event.seq)
            starts.add(slot)
    return void


def _place(event: Event, message: ContentCompleteEvent) -> int | None:
    """The place of the call that an event belongs to; None for what belongs to no call of the message."""
    if isinstance(event, ToolStartEvent | ToolCompleteEvent | SubtaskEvent):
        return event.index if event.step == message.step else None
    call_id = event.tool_call_id if isinstance(event, ThoughtStreamEvent) else None
    return next((place for place, call in enumerate(message.tool_calls) if call.id == call_id), None)


_CALL: Any = {"id", "raw", "hidden"}
_NESTED: dict[str, Any] = {"call": _CALL, "tool_calls": {"__all__": _CALL}, "input": {"call": _CALL}}
_ENVELOPE = Event.model_fields.keys() - {"kind", "step", "branch"}


def fact(event: Event, before: Sequence[Message]) -> dict[str, Any]:
    """What an event says, without ids, numbers and times."""
    if isinstance(event, TaskEvent):
        # A fork has the history of its conversation in its own task. The model is named by each of its calls.
        messages = [*before, *event.messages]
        return {"kind": event.kind, "messages": [_message(message) for message in messages]}
    incidental = {name for cls in type(event).__mro__ for name in vars(cls).get("incidental_fields", ())}
    exclude = {**_NESTED, **dict.fromkeys(_ENVELOPE | incidental, True)}
    return event.model_dump(mode="json", by_alias=False, exclude=exclude)


def _message(message: Message) -> dict[str, Any]:
    ids = dict.fromkeys(("provider_state", "tool_call_id", "message_id"), True)
    exclude: Any = {**ids, "tool_calls": {"__all__": _CALL}}
    return message.model_dump(mode="json", by_alias=False, exclude=exclude)


def line(event: Event) -> str:
    """An event in one line, for people: its number, its kind and what it says."""
    step = f" {event.step}" if event.step else ""
    text = event.describe()
    return f"{event.seq:>4} {event.kind}{step}{': ' if text else ''}{_short(text)}"


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 80 else text[:77].rstrip() + "..."


def compare(recording: Recording) -> EventView:
    """Pass all events, and fail at the end of the stream if they are not what was recorded.

    What is compared is what happened, as `rxloop.diff` does it: messages, calls, results, thoughts, models, the end.
    Ids, numbers, times, tokens and deltas do not count, and neither does the order in which the calls of one message
    ended, nor how lines of a strategy are mixed that went on side by side. The error is a `RecordingMismatch`, which
    is an `AssertionError`, and shows both sides of the first difference.

    ::

        source              --t--w--l--d--c--F|
        compare(same)       --t--w--l--d--c--F|
        compare(other)      --t--w--l--d--c--F#

    Example:
        >>> await Agent(recorded("run.jsonl"), tools=tools).run("Weather?").pipe(op.compare("run.jsonl"))

    Args:
        recording: The recorded events, or the JSONL file that `op.record` made of them.

    Returns:
        A view of all events, in order.

    Raises:
        ConfigurationError: The file cannot be read; raised at once.
    """
    recorded = comparable([event for event in read_recording(recording) if event.durable])

    def compare_at_end(out: ViewOutput[Event]) -> Callable[[Event], None]:
        seen: list[Event] = []

        def take(event: Event) -> None:
            if event.durable:
                seen.append(event)
            out.emit(event)

        def end() -> None:
            try:
                _check(recorded, comparable(seen))
            except RecordingMismatch as error:
                out.fail(error)

        out.on_end(end)
        return take

    return cast("EventView", make_view(compare_at_end))


def _check(recorded: Sequence[Event], seen: Sequence[Event]) -> None:
    """Compare event by event.

    Raises:
        RecordingMismatch: At the first difference.
    """
    left, right = parted(recorded, seen)
    if not left and not right:
        return
    expected, happened = next(iter(left), None), next(iter(right), None)
    place = len(recorded) - len(left)
    message = [
        f"the run parts from the recording at event {place + 1} of {len(recorded)} that count",
        f"recorded  {line(expected).lstrip() if expected is not None else 'had ended'}",
        f"happened  {line(happened).lstrip() if happened is not None else 'has ended'}",
    ]
    if expected is not None and happened is not None and expected.kind == happened.kind:
        then, now = fact(expected, ()), fact(happened, ())
        message += [f"  {name}: {then[name]!r} != {now[name]!r}" for name in then if then[name] != now.get(name)]
    raise RecordingMismatch("\n".join(message), position=place, expected=expected, actual=happened)
