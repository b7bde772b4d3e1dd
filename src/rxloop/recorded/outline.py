"""Fold of the events of a run to an outline, which has no texts and is much smaller."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rxloop.operators.views.cost import Spending
from rxloop.protocol.events import (
    WAITING,
    ArtifactUpdateEvent,
    AuthRequiredEvent,
    CheckpointEvent,
    ContentCompleteEvent,
    ContextCompressedEvent,
    CustomEvent,
    Event,
    EventTable,
    InputReceivedEvent,
    InputRequiredEvent,
    LLMCallEvent,
    LLMFailedEvent,
    LLMNoticeEvent,
    MemoryNotedEvent,
    MessageAddedEvent,
    ServerToolEvent,
    StageEvent,
    StatusUpdateEvent,
    SubtaskEvent,
    TaskEvent,
    ThoughtStreamEvent,
    ToolCompleteEvent,
    ToolStartEvent,
    ToolsUnavailableEvent,
    ToolVoidedEvent,
    UsageEvent,
)
from rxloop.protocol.finish import is_complete
from rxloop.protocol.http_api.inspection import (
    FAILED,
    HIDDEN,
    HIDDEN_KIND,
    MAX_LABEL,
    REFUSED,
    RETRIED,
    TRUNCATED,
    UNKNOWN_TIME,
    VOIDED,
    WAITS,
    Outline,
    OutlineNames,
)
from rxloop.protocol.messages import Message, ToolCall, public_question
from rxloop.recorded.history_counts import HistoryCounts
from rxloop.recorded.summary import shorten_line

_LABEL_SOURCE = 4 * MAX_LABEL
"""Maximum number of characters used to create a label."""


class Position(NamedTuple):
    """Position of the last folded event. The timestamp detects events that were replaced by a rollback of the log."""

    seq: int
    attempt: int
    timestamp: int


_BEGINNING = Position(0, 0, 0)


@dataclass(frozen=True, slots=True)
class OutlineState:
    """State of the fold, used to continue on the next page."""

    position: Position = _BEGINNING
    open: Mapping[tuple[Any, ...], int] = field(default_factory=dict[tuple[Any, ...], int])
    """Sequence numbers of events that started something which has not ended yet."""
    thoughts: Mapping[str, int] = field(default_factory=dict[str, int])
    """Sequence numbers of thoughts by thought id, and of the thoughts that led to tool calls by call id."""
    counts: HistoryCounts = field(default_factory=HistoryCounts)
    spending: Spending = field(default_factory=lambda: Spending(None))


class OutlineFold:
    """Fold of a run's events into a page of its outline.

    The page and the next state only depend on the previous state and on the events.
    """

    def __init__(self, state: OutlineState, *, internal: bool) -> None:
        """Start a page.

        Args:
            state: State after the previous page.
            internal: Whether to include data that clients must not receive.
        """
        self._internal = internal
        self._position = state.position
        self._open, self._thoughts = dict(state.open), dict(state.thoughts)
        self._counts, self._spending = state.counts, state.spending.copy()
        self.reset()

    def reset(self) -> None:
        """Start a new page after the events added so far."""
        self._first = self._position.seq + 1
        self._start = self._position.timestamp
        self._attempts: list[tuple[int, int]] = []
        self._rows: list[tuple[Any, ...]] = []
        self._dollars: dict[int, float] = {}
        self._names = {name: dict[Any, int]({() if name == "path" else "": 0}) for name in OutlineNames.model_fields}

    @property
    def state(self) -> OutlineState:
        """State after all added events."""
        spending = self._spending.copy()
        return OutlineState(self._position, dict(self._open), dict(self._thoughts), self._counts, spending)

    def add(self, events: Iterable[Event]) -> None:
        """Add durable events in order."""
        for event in events:
            self._add(event)

    def _add(self, event: Event) -> None:
        before, time = self._position, event.timestamp
        if not before.seq:
            self._start = time
        if event.attempt != before.attempt or not self._rows:
            self._attempts.append((event.seq, event.attempt))
        elapsed = time - before.timestamp if before.seq else 0
        self._position = Position(event.seq, event.attempt, time)
        opens, flags = self._pair(event)
        spent = self._spending.dollars
        is_priced = self._spending.add(event)
        self._counts = self._counts.add(event)
        counts = [each.all if self._internal else each.public for each in (self._counts.messages, self._counts.calls)]
        shown = event.to_public()
        if shown is None or _is_partial(shown, event):
            flags |= HIDDEN
        if self._internal:
            shown = event
        names, index = self._names, _intern
        if shown is None:
            kind = index(names["kind"], HIDDEN_KIND)
            self._rows.append((elapsed, kind, 0, 0, 0, 0, 0, 0, 0, 0, HIDDEN, 0, 0, *counts, ""))
            return
        if is_priced:
            self._dollars[event.seq] = round(self._spending.dollars - spent, 9)
        a, b = (_NUMBERS[type(shown)] or _no_numbers)(shown)
        label = _LABELS[type(shown)]
        if isinstance(shown, ThoughtStreamEvent):
            a, b = self._find_thoughts(shown)
        self._rows.append(
            (
                elapsed,
                index(names["kind"], shown.kind),
                index(names["name"], (_NAMES[type(shown)] or _no_text)(shown)),
                index(names["step"], shown.step or ""),
                index(names["branch"], shown.branch or ""),
                index(names["path"], shown.agent_path),
                index(names["model"], _find_model(shown)),
                index(names["run"], "" if shown.parent_task_id is None else shown.task_id),
                index(names["code"], (shown.code or "") if isinstance(shown, ToolCompleteEvent) else ""),
                opens,
                flags,
                a,
                b,
                *counts,
                shorten_line(label(shown) if label else shown.describe(), MAX_LABEL),
            )
        )

    def _pair(self, event: Event) -> tuple[int, int]:
        """Return the `seq` of the event that this event ends or repeats, or 0, and the flags of this event."""
        opened = self._open
        match event:
            case LLMCallEvent():
                key = ("call", event.task_id, event.step)
                earlier, opened[key] = opened.get(key, 0), event.seq
                opened.pop(("thought", event.task_id), None)
                return earlier, RETRIED if earlier else 0
            case LLMFailedEvent():
                retried = 0 if event.retry_in is None else RETRIED
                return opened.get(("call", event.task_id, event.step), 0), FAILED | retried
            case ContentCompleteEvent():
                flags = 0 if is_complete(event) else TRUNCATED
                return opened.pop(("call", event.task_id, event.step), 0), flags
            case ToolStartEvent():
                opened["tool", event.task_id, event.step, event.index] = event.seq
                # Thoughts about a call follow the last thought of the message that contains the call.
                self._thoughts[event.call.id] = opened.get(("thought", event.task_id), 0)
            case ToolCompleteEvent():
                start = opened.pop(("tool", event.task_id, event.step, event.index), 0)
                is_refused = not start and "canceled" not in (event.code, event.error)
                return start, 0 if event.success else FAILED | (REFUSED if is_refused else 0)
            case ToolVoidedEvent():
                return opened.pop(("tool", event.task_id, event.step, event.index), 0), VOIDED
            case ServerToolEvent():
                key = ("server", event.task_id, event.tool_call_id)
                if event.phase == "complete":
                    return opened.pop(key, 0), 0 if event.success else FAILED
                opened[key] = event.seq
            case InputRequiredEvent() | AuthRequiredEvent():
                opened["input", event.input_id] = event.seq
                return 0, WAITS
            case InputReceivedEvent():
                return opened.pop(("input", event.input_id), 0), 0
            case SubtaskEvent():
                key = ("run", event.subtask_id)
                if event.state != "working":
                    return opened.pop(key, 0), FAILED if event.state == "failed" else 0
                opened[key] = event.seq
            case StatusUpdateEvent():
                key = ("attempt", event.task_id)
                if event.final:
                    failed, waits = event.state == "failed", event.state in WAITING
                    return opened.pop(key, 0), (FAILED if failed else 0) | (WAITS if waits else 0)
                opened[key] = event.seq
            case ThoughtStreamEvent():
                merged = None if event.session is None else event.session.merges_id
                last = self._thoughts.get(merged or "", 0)
                self._thoughts[event.thought_id] = opened["thought", event.task_id] = event.seq
                return last, 0
            case ContextCompressedEvent(budget_unmet=True):
                return 0, TRUNCATED
            case _:
                return 0, FAILED if event.kind in ("thinking-failed", "tools-unavailable") else 0
        return 0, 0

    def _find_thoughts(self, event: ThoughtStreamEvent) -> tuple[int, int]:
        """Return the `seq` of the related thought and of the replaced thought."""
        revised = None if event.session is None else event.session.revises_id
        return self._thoughts.get(event.related_to or "", 0), self._thoughts.get(revised or "", 0)

    def make_page(self, task_id: str, *, seq: int, final: bool) -> Outline:
        """Return the page of the added events.

        Args:
            task_id: Task id of the run.
            seq: `seq` of the newest event in the log.
            final: True if the run is over and the page contains its last event.
        """
        columns: Sequence[Sequence[Any]] = [*zip(*self._rows, strict=True)] or [()] * len(_COLUMNS)
        names = OutlineNames(**{name: [*values] for name, values in self._names.items()})
        values: dict[str, Any] = {name: [*column] for name, column in zip(_COLUMNS, columns, strict=True)}
        return Outline(
            task_id=task_id,
            first=self._first,
            last=self._position.seq,
            seq=max(seq, self._position.seq),
            final=final,
            start=self._start,
            attempts=self._attempts,
            **values,
            dict=names,
            dollars=self._dollars,
        )


_COLUMNS = (
    *("dt", "kind", "name", "step", "branch", "path", "model", "run", "code"),
    *("opens", "flags", "a", "b", "messages", "calls", "label"),
)


def _intern(values: dict[Any, int], value: Any) -> int:
    return values.setdefault(value, len(values))


def _is_partial(public: Event, event: Event) -> bool:
    """Return True if the public form of an event lacks hidden calls or the text of a hidden question."""
    match event:
        case ContentCompleteEvent():
            return any(call.hidden for call in event.tool_calls)
        case InputRequiredEvent():
            return public_question(event.input) is not event.input
        case ThoughtStreamEvent() | SubtaskEvent():
            return bool(event.hidden_calls)
        case _:
            return False


# -- numbers


def _no_numbers(event: Any) -> tuple[int, int]:
    return 0, 0


def _to_milliseconds(seconds: float | None) -> int:
    return UNKNOWN_TIME if seconds is None else round(seconds * 1000)


_NUMBERS = EventTable[Callable[[Any], tuple[int, int]]](
    {
        LLMCallEvent: lambda event: (event.estimated_input_tokens, event.message_count),
        LLMFailedEvent: lambda event: (event.status or 0, _to_milliseconds(event.retry_in)),
        UsageEvent: lambda event: (event.input_tokens, event.output_tokens),
        ContentCompleteEvent: lambda event: (
            _to_milliseconds(event.first_token),
            _to_milliseconds(event.longest_silence),
        ),
        ToolCompleteEvent: lambda event: (_to_milliseconds(event.duration), len(event.content.encode())),
        ContextCompressedEvent: lambda event: (event.tokens_before, event.tokens_after),
        CheckpointEvent: lambda event: (event.iteration, event.message_count),
        ArtifactUpdateEvent: lambda event: (event.size, 0),
    }
)


# -- names and labels


def _no_text(event: Any) -> str:
    return ""


def _name_call(event: Any) -> str:
    return event.call.name


_NAMES = EventTable[Callable[[Any], str]](
    {
        TaskEvent: lambda event: event.agent_name,
        StatusUpdateEvent: lambda event: event.state,
        ToolStartEvent: _name_call,
        ToolCompleteEvent: _name_call,
        ToolVoidedEvent: _name_call,
        ServerToolEvent: lambda event: event.name,
        ThoughtStreamEvent: lambda event: event.thought_type,
        MessageAddedEvent: lambda event: event.cause,
        SubtaskEvent: lambda event: event.agent_name,
        StageEvent: lambda event: event.strategy,
        InputRequiredEvent: lambda event: "" if event.input.call is None else event.input.call.name,
        AuthRequiredEvent: lambda event: event.provider,
        ArtifactUpdateEvent: lambda event: event.name or event.artifact_id,
        ToolsUnavailableEvent: lambda event: event.toolset,
        LLMNoticeEvent: lambda event: event.code,
        LLMFailedEvent: lambda event: event.error.code,
        MemoryNotedEvent: lambda event: event.note_kind,
        CustomEvent: lambda event: event.name,
    }
)


def _find_model(event: Event) -> str:
    match event:
        case LLMCallEvent() | TaskEvent():
            return event.model
        case ContextCompressedEvent():
            return event.thinking_model or ""
        case _:
            return ""


def _describe_value(value: Any) -> str:
    # Converting a large value would take longer than the whole page.
    if isinstance(value, str):
        return value[:_LABEL_SOURCE]
    return repr(value) if isinstance(value, int | float | None) else f"[{len(value)}]"


def _describe_call(event: Any) -> str:
    call: ToolCall = event.call
    pairs = [*call.arguments.items()][:8]
    return ", ".join(f"{name}={_describe_value(value)}" for name, value in pairs)


def _describe_message(event: ContentCompleteEvent) -> str:
    if event.content or not event.tool_calls:
        return event.content or event.finish_reason
    return ", ".join(call.name for call in event.tool_calls[:8])


def _describe_task(event: TaskEvent) -> str:
    return event.messages[-1].text if event.messages else ""


def _describe_status(event: StatusUpdateEvent) -> str:
    if event.error is not None:
        return event.error.message
    return event.reason or (event.content or "" if event.final else "")


_LABELS = EventTable[Callable[[Any], str]](
    {
        TaskEvent: _describe_task,
        StatusUpdateEvent: _describe_status,
        LLMCallEvent: _no_text,
        ContentCompleteEvent: _describe_message,
        ThoughtStreamEvent: lambda event: event.content,
        ToolStartEvent: _describe_call,
        ToolVoidedEvent: _describe_call,
        ToolCompleteEvent: lambda event: event.content,
        MessageAddedEvent: lambda event: Message(role="user", content=event.content).text,
        InputReceivedEvent: lambda event: "" if event.value is None else _describe_value(event.value),
    }
)
