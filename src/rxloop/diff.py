"""What is different in two runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from rxloop.conversation import conversation, reading
from rxloop.events import (
    CheckpointEvent,
    ContentCompleteEvent,
    ContextCompressedEvent,
    CustomEvent,
    Event,
    InputReceivedEvent,
    InputRequiredEvent,
    LLMCallEvent,
    LLMFailedEvent,
    MessageAddedEvent,
    StageEvent,
    State,
    StatusUpdateEvent,
    TaskEvent,
    ThoughtStreamEvent,
    ToolCompleteEvent,
    ToolStartEvent,
    UsageEvent,
    ends_attempt,
)
from rxloop.messages import Message, ToolCall, Usage
from rxloop.operators.cost import cost
from rxloop.protocols import EventLog
from rxloop.stream.bridges import emit

if TYPE_CHECKING:
    from rxloop.providers.prices import Price

SHOWN = 8
"""Lines of each run that the text of a diff shows."""


@dataclass(frozen=True, slots=True)
class RunCost:
    """What some events of a run cost, nested agents included."""

    model_calls: int
    tool_calls: int
    """Calls that were carried out; one that was refused costs nothing."""
    usage: Usage
    seconds: float
    """Wall time; what lies between two attempts does not count."""
    dollars: float | None
    """None where no model has a price."""

    def __str__(self) -> str:
        money = f", ${self.dollars:.4f}" if self.dollars is not None else ""
        return (
            f"{_many(self.model_calls, 'model call')}, {_many(self.tool_calls, 'tool call')}, "
            f"{self.usage.input_tokens} tokens in, {self.usage.output_tokens} out, {self.seconds:.1f} s{money}"
        )


@dataclass(frozen=True, slots=True)
class RunSide:
    """One of the two runs."""

    task_id: str
    state: State
    """What it came to."""
    events: tuple[Event, ...] = field(repr=False)
    """From the first difference on; the calls of one message in call order, whatever the order they ended in."""
    cost: RunCost
    """Of the whole run; for a fork, with what it has taken over."""
    cost_since: RunCost
    """From the first difference on."""

    def lines(self) -> list[str]:
        """What happened from the first difference on, a line for each event."""
        return [line(event) for event in self.events]


@dataclass(frozen=True, slots=True)
class RunDiff:
    """Where two runs first differ, how each goes on from there, and what each cost."""

    shared: int
    """The events, of those that are compared, that are the same at the beginning."""
    a: RunSide
    b: RunSide

    @property
    def first(self) -> tuple[Event | None, Event | None] | None:
        """The first two events that differ, None for a run that has ended there; None if the runs are the same."""
        pair = (next(iter(self.a.events), None), next(iter(self.b.events), None))
        return None if pair == (None, None) else pair

    def __str__(self) -> str:
        if self.first is None:
            return f"{self.a.task_id} and {self.b.task_id} are the same, event for event\n{self._costs()}"
        parts = [f"The first {_many(self.shared, 'event')} are the same." if self.shared else "Nothing is the same."]
        for side in (self.a, self.b):
            lines = side.lines()
            shown = [f"  {each}" for each in lines[:SHOWN]] or ["  has ended here"]
            more = [f"  ... and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
            parts += ["", f"{side.task_id} ({side.state})", *shown, *more]
        return "\n".join([*parts, "", self._costs()])

    def _costs(self) -> str:
        parts: list[str] = []
        for side in (self.a, self.b):
            parts.append(f"{side.task_id}: {side.cost}")
            if self.first is not None and self.shared:
                parts.append(f"  from the difference on: {side.cost_since}")
        return "\n".join(parts)


async def diff(log: EventLog, a: str, b: str, *, prices: Mapping[str, Price] | None = None) -> RunDiff:
    """Compare two runs.

    What is compared is what happened: messages, calls, results, thoughts, the end. Ids, numbers, times, tokens, and the
    bookkeeping of attempts do not count, and neither does the order in which the calls of one message ended.

    Args:
        log: Holds both.
        a: One run.
        b: The other one.
        prices: What models cost, as for `op.cost`.

    Raises:
        UnknownRun: The log does not hold one of them.
    """
    runs = [await reading(log.read(task_id)) for task_id in (a, b)]
    before = [await conversation(log, events[0].context_id, before=events[0].task_id) for events in runs]
    lines = [_compared(events) for events in runs]
    facts = [
        [_fact(event, state.messages) for event in compared] for compared, state in zip(lines, before, strict=True)
    ]
    shared = 0
    for left, right in zip(*facts, strict=False):
        if left != right:
            break
        shared += 1
    sides = [_side(events, compared, shared, prices) for events, compared in zip(runs, lines, strict=True)]
    return RunDiff(shared, *sides)


def _side(
    events: Sequence[Event], compared: Sequence[Event], shared: int, prices: Mapping[str, Price] | None
) -> RunSide:
    rest = compared[shared:]
    state: State = "submitted"
    for event in events:
        if isinstance(event, StatusUpdateEvent) and event.parent_task_id is None:
            state = event.state
    first = min((event.seq for event in rest), default=events[-1].seq + 1)
    # What is not compared, such as the tokens of an answer, goes with what it stands before.
    begin = 1 + max((event.seq for event in compared if event.seq < first), default=0)
    until = [event for event in events if event.seq < begin]
    since = [event for event in events if event.seq >= begin]
    return RunSide(
        task_id=events[0].task_id,
        state=state,
        events=tuple(rest),
        cost=_cost(events, _dollars(events, prices)),
        cost_since=_cost(since, _difference(_dollars(events, prices), _dollars(until, prices))),
    )


def _cost(events: Sequence[Event], dollars: float | None) -> RunCost:
    usage = Usage()
    for event in events:
        if isinstance(event, UsageEvent):
            usage = usage + event.usage
    millis = sum(
        max(after.timestamp - before.timestamp, 0)
        for before, after in pairwise(events)
        if before.attempt == after.attempt
    )
    return RunCost(
        model_calls=sum(isinstance(event, LLMCallEvent) for event in events),
        tool_calls=sum(isinstance(event, ToolStartEvent) for event in events),
        usage=usage,
        seconds=millis / 1000,
        dollars=dollars,
    )


def _dollars(events: Sequence[Event], prices: Mapping[str, Price] | None) -> float | None:
    sums: list[float] = []
    cost(prices)(emit(*events)).subscribe(sums.append)
    return sums[-1] if sums else None


def _difference(whole: float | None, shared: float | None) -> float | None:
    return None if whole is None else whole - (shared or 0.0)


def _compared(events: Sequence[Event]) -> list[Event]:
    """The events that count, with those of each batch of calls in call order."""
    void = _void(events)
    kept = [
        event
        for event in events
        if (_counts(event) and event.seq not in void) or (event is events[-1] and ends_attempt(event))
    ]
    out: list[Event] = []
    batch: list[tuple[int, Event]] = []
    message: ContentCompleteEvent | None = None
    for event in kept:
        place = None if message is None else _place(event, message)
        if place is None:
            out += _in_order(batch)
            batch = []
            out.append(event)
            if isinstance(event, ContentCompleteEvent):
                message = event if event.tool_calls else None
        else:
            batch.append((place, event))
    return [*out, *_in_order(batch)]


def _counts(event: Event) -> bool:
    if isinstance(event, CheckpointEvent | UsageEvent | LLMFailedEvent):
        return False
    return not isinstance(event, StatusUpdateEvent) or not (event.state == "working" or ends_attempt(event))


def _void(events: Iterable[Event]) -> set[int]:
    """The beginnings that do not count, where one attempt began something and a later one began it again."""
    calls: dict[tuple[str, str | None], int] = {}
    starts: set[tuple[str, str | None, int]] = set()
    void: set[int] = set()
    for event in events:
        if isinstance(event, LLMCallEvent):
            # The last one, which is the one that was answered: it may be another model's.
            earlier = calls.get((event.task_id, event.step))
            if earlier is not None:
                void.add(earlier)
            calls[event.task_id, event.step] = event.seq
        elif isinstance(event, ToolStartEvent):
            # The first one: questions of the tool, and their answers, stand behind it.
            slot = (event.task_id, event.step, event.index)
            if slot in starts:
                void.add(event.seq)
            starts.add(slot)
    return void


def _place(event: Event, message: ContentCompleteEvent) -> int | None:
    """The place of the call that an event belongs to; None for what belongs to no call of the message."""
    if isinstance(event, ToolStartEvent | ToolCompleteEvent):
        return event.index if event.step == message.step and event.parent_task_id is None else None
    call_id = event.tool_call_id if isinstance(event, ThoughtStreamEvent) else None
    return next((place for place, call in enumerate(message.tool_calls) if call.id == call_id), None)


def _in_order(batch: Iterable[tuple[int, Event]]) -> list[Event]:
    return [event for _, event in sorted(batch, key=lambda pair: pair[0])]


_CALL: Any = {"id", "raw"}
_NO_FACTS = {
    *(Event.model_fields.keys() - {"kind", "step", "branch"}),
    *("agent_name", "fork_of", "fork_seq", "resumed", "after_seq", "usage", "pending", "subtask_id"),
    *("estimated_input_tokens", "provider_state", "raw_finish_reason", "thought_id", "related_to", "tool_call_id"),
    *("idempotency_key", "duration"),
}
_EXCLUDE: dict[str, Any] = {
    **dict.fromkeys(_NO_FACTS, True),
    "call": _CALL,
    "tool_calls": {"__all__": _CALL},
    "input": {"call": _CALL},
}


def _fact(event: Event, before: Sequence[Message]) -> dict[str, Any]:
    """What an event says, without ids, numbers and times."""
    if isinstance(event, TaskEvent):
        # A fork has the history of its conversation in its own task. The model is told by each call of it.
        messages = [*before, *event.messages]
        return {"kind": event.kind, "messages": [_message(message) for message in messages]}
    own: dict[str, Any] = {}
    if isinstance(event, ThoughtStreamEvent):
        # Counted over the whole run, in the order in which they happened to come.
        own = {"index": True}
    elif isinstance(event, InputReceivedEvent):
        # Whoever answers at a resume does not say where it was asked.
        own = {"step": True}
    return event.model_dump(mode="json", by_alias=False, exclude={**_EXCLUDE, **own})


def _message(message: Message) -> dict[str, Any]:
    exclude: Any = {"provider_state": True, "tool_call_id": True, "tool_calls": {"__all__": _CALL}}
    return message.model_dump(mode="json", by_alias=False, exclude=exclude)


def line(event: Event) -> str:
    """An event in one line, for people: its number, its kind and what it says."""
    step = f" {event.step}" if event.step else ""
    return f"{event.seq:>4} {event.kind}{step}{_told(event)}"


def _told(event: Event) -> str:
    text = _text(event)
    return f": {_short(text)}" if text else ""


def _text(event: Event) -> str:
    match event:
        case TaskEvent():
            return event.messages[-1].text if event.messages else ""
        case StatusUpdateEvent():
            reason = f" ({event.reason})" if event.reason else ""
            return f"{event.state}{reason}{', ' + event.content if event.content else ''}"
        case LLMCallEvent():
            return f"{event.model}, {event.message_count} messages"
        case ContentCompleteEvent():
            calls = ", ".join(_call(call) for call in event.tool_calls)
            return " -> ".join(part for part in (event.content, calls) if part) or event.finish_reason
        case ToolStartEvent():
            return _call(event.call)
        case ToolCompleteEvent():
            return f"{event.name} {'=' if event.success else 'failed:'} {event.content}"
        case MessageAddedEvent():
            return f"{event.role}: {Message(role=event.role, content=event.content).text}"
        case ThoughtStreamEvent():
            return f"{event.thought_type}: {event.content}"
        case InputRequiredEvent():
            return event.input.prompt
        case InputReceivedEvent():
            return repr(event.value)
        case StageEvent():
            return f"{event.strategy} to {event.to_stage}"
        case ContextCompressedEvent():
            return f"{event.tokens_before} to {event.tokens_after} tokens"
        case CustomEvent():
            return event.name
        case _:
            return ""


def _call(call: ToolCall) -> str:
    return f"{call.name}({', '.join(f'{name}={value!r}' for name, value in call.arguments.items())})"


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 80 else text[:77].rstrip() + "..."


def _many(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
