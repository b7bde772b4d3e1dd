"""Fold of a run's public events into steps, text, reasoning and calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Literal, Protocol, TypeVar

import orjson
from reactivex import compose

from rxloop.operators.views import View
from rxloop.operators.views.make_view import ViewOutput, make_view
from rxloop.pipeline.edited_calls import is_edited
from rxloop.protocol.events import (
    ContentCompleteEvent,
    ContentDeltaEvent,
    Event,
    LLMCallEvent,
    QuestionEvent,
    StatusUpdateEvent,
    ThoughtDeltaEvent,
    ThoughtStreamEvent,
    ToolCallDeltaEvent,
    ToolCompleteEvent,
    ToolProgressEvent,
    ToolStartEvent,
    ends_attempt,
)
from rxloop.protocol.messages import ToolCall
from rxloop.server.core import chat_changes as to
from rxloop.server.core.chat_changes import Change

Emit = Callable[[Change | Event], object]
T = TypeVar("T")
_ToolEvent = ToolStartEvent | ToolProgressEvent | ToolCompleteEvent


class ChatFold:
    """State of the open steps and calls of a run. Pass its public events to `take` in order."""

    def __init__(self, emit: Emit) -> None:
        """Initialize the fold.

        Args:
            emit: Function that receives the changes, and the events that are not converted to changes.
        """
        self._emit = emit
        self._open: dict[tuple[str, str | None], _Step] = {}
        """Open steps by run and step."""
        self._attempts: Counter[tuple[str, str | None]] = Counter()
        self._model_calls: Counter[tuple[str, str | None]] = Counter()
        """Number of model calls per step. Call ids contain this number, because it is the same for all readers."""
        self._calls: dict[tuple[str, str | None, int], _Call] = {}
        """Latest call by run, step and index."""

    def take_public(self, event: Event) -> None:
        """Fold the public form of the next event. Internal events are skipped."""
        public_event = event.to_public()
        if public_event is not None:
            self.take(public_event)

    def take(self, event: Event) -> None:
        """Fold the next event."""
        match event:
            case ContentDeltaEvent():
                self._get_step(event).write(event, event.delta)
            case ThoughtDeltaEvent():
                self._get_step(event).think(event, event.delta)
            case ToolCallDeltaEvent():
                self._call(event, event.index, event.name).write(event, event.fragment)
            case LLMCallEvent():
                self._begin(event)
            case ContentCompleteEvent():
                self._complete(event)
            case ToolStartEvent() | ToolProgressEvent() | ToolCompleteEvent():
                self._take_tool_event(event)
            case ThoughtStreamEvent() if event.source in ("reasoning", "tag"):
                self._get_step(event).complete_thought(event)
            case StatusUpdateEvent() if ends_attempt(event):
                # Open steps exist only if the reader missed their end.
                for key in [key for key in self._open if key[0] == event.task_id]:
                    self._end(key, event, "canceled")
                self._emit(event)
            case _:
                if isinstance(event, QuestionEvent):
                    self._revise(event)
                self._emit(event)

    def _revise(self, event: QuestionEvent) -> None:
        """Emit arguments shown in a question to a person."""
        question = event.input
        call = self._calls.get((event.task_id, question.step, question.index))
        # A question about a client tool may add default values, so use the arguments of its `tool-start` event.
        if call is not None and question.call is not None and question.input_kind != "tool":
            call.revise(event, question.call)

    def _begin(self, event: Event) -> _Step:
        key = event.task_id, event.step
        if key in self._open:
            self._end(key, event, "discarded")
        self._attempts[key] += 1
        self._model_calls[key] += isinstance(event, LLMCallEvent)
        base_id = event.task_id if event.step is None else f"{event.task_id}:{event.step}"
        calls_id = _append_number(base_id, self._model_calls[key] or 1)
        step = self._open[key] = _Step(self._emit, _append_number(base_id, self._attempts[key]), calls_id)
        self._emit(to.StepBegan(event, step.id))
        return step

    def _get_step(self, event: Event) -> _Step:
        """Return the open step of an event, starting a step if the reader missed its start."""
        return self._open.get((event.task_id, event.step)) or self._begin(event)

    def _end(
        self,
        key: tuple[str, str | None],
        event: Event,
        outcome: Literal["complete", "canceled", "discarded"],
        kept_indices: frozenset[int] = frozenset(),
    ) -> None:
        step = self._open.pop(key)
        step.close(event)
        for index, call in step.calls.items():
            if index not in kept_indices and call.result is None:
                call.discard(event)
        self._emit(to.StepEnded(event, step.id, outcome))

    def _complete(self, event: ContentCompleteEvent) -> None:
        key = event.task_id, event.step
        before = step = self._get_step(event)
        omitted = set(event.left_out)
        indices = (index for index in range(len(event.tool_calls) + len(omitted)) if index not in omitted)
        final_calls = dict(zip(indices, event.tool_calls, strict=False))
        if not (event.content.startswith(step.text) and step.fits(final_calls)):
            # Discard the emitted content, because it differs or the reader joined in the middle.
            self._end(key, event, "discarded")
            before, step = step, self._begin(event)
            for thought in before.thoughts:
                step.think(event, thought)
                step.close(event)
        if event.reasoning and not step.has_reasoning:
            step.think(event, event.reasoning)
        step.write(event, event.content[len(step.text) :])
        for index, call in final_calls.items():
            target = self._call(event, index, call.name)
            target.complete(event, call)
            if step is not before and index in before.calls and (result := before.calls[index].result) is not None:
                # The tool finished before the message was complete, so no later event reports the result.
                target.answer(result)
        canceled = event.finish_reason == "canceled"
        kept_indices = frozenset[int]() if canceled else frozenset(final_calls)
        self._end(key, event, "canceled" if canceled else "complete", kept_indices)

    def _call(self, event: Event, index: int, name: str) -> _Call:
        step = self._get_step(event)
        call = step.calls.get(index)
        if call is None:
            step.close(event)
            call = step.calls[index] = _Call(self._emit, event, step, index, name)
            self._calls[event.task_id, event.step, index] = call
        return call

    def _take_tool_event(self, event: _ToolEvent) -> None:
        call = self._calls.get((event.task_id, event.step, event.index))
        if call is None:
            # No event has announced this call, because its message is incomplete or does not exist.
            is_standalone = (event.task_id, event.step) not in self._open
            call = self._call(event, event.index, event.name)
            if is_standalone:
                call.complete(event, event.call)
                self._end((event.task_id, event.step), event, "complete", frozenset((event.index,)))
        call.complete(event, event.call)
        call.revise(event, event.call)
        match event:
            case ToolStartEvent():
                self._emit(to.CallStarted(event, call.id))
            case ToolProgressEvent():
                self._emit(to.CallProgress(event, call.id))
            case ToolCompleteEvent():
                call.answer(event)


def _append_number(id: str, number: int) -> str:
    """Append a number to an id, except to the first id."""
    return id if number == 1 else f"{id}:{number}"


class _Step:
    """A single step attempt."""

    __slots__ = (
        *("_chunks", "_emit", "_is_partial", "_is_writing", "_reasoning", "_segments", "_thought_chunks"),
        *("calls", "calls_id", "id", "has_reasoning", "thoughts"),
    )

    def __init__(self, emit: Emit, id: str, calls_id: str) -> None:
        self._emit = emit
        self.id, self.calls_id = id, calls_id
        self.thoughts: list[str] = []
        """Completed thoughts."""
        self._is_partial = False
        """True if the start of a thought is missing."""
        self.calls: dict[int, _Call] = {}
        self.has_reasoning = False
        self._chunks: list[str] = []
        self._is_writing = False
        self._reasoning: str | None = None
        """Id of the open reasoning segment."""
        self._segments = 0
        """Number of reasoning segments."""
        self._thought_chunks: list[str] = []
        """Chunks of reasoning emitted since the last completed thought."""

    @property
    def text(self) -> str:
        """Text emitted so far."""
        if len(self._chunks) > 1:
            self._chunks = ["".join(self._chunks)]
        return self._chunks[0] if self._chunks else ""

    def write(self, event: Event, delta: str) -> None:
        """Emit a text chunk."""
        if not delta:
            return
        if not self._is_writing:
            self.close(event)
            self._is_writing = True
            self._emit(to.TextBegan(event, self.id))
        self._chunks.append(delta)
        self._emit(to.TextDelta(event, self.id, delta))

    def think(self, event: Event, delta: str) -> None:
        """Emit a chunk of reasoning."""
        if not delta:
            return
        if self._reasoning is None:
            self.close(event)
            self.has_reasoning = True
            self._segments += 1
            self._reasoning = _append_number(f"{self.id}:reasoning", self._segments)
            self._emit(to.ReasoningBegan(event, self._reasoning))
        self._thought_chunks.append(delta)
        self._emit(to.ReasoningDelta(event, self._reasoning, delta))

    def complete_thought(self, event: ThoughtStreamEvent) -> None:
        """Complete a thought, emitting any reasoning that was not streamed."""
        emitted = "".join(self._thought_chunks)
        self.thoughts.append(event.content)
        if event.content.startswith(emitted):
            self.think(event, event.content[len(emitted) :])
        # Keep trimmed or rephrased reasoning unchanged.
        elif event.content.strip() != emitted.strip() and event.content.rstrip().endswith(emitted.rstrip()):
            self._is_partial = True
        self._thought_chunks.clear()
        if self._reasoning is not None:
            self.close(event)

    def fits(self, calls: Mapping[int, ToolCall]) -> bool:
        """Return True if the emitted reasoning and calls are complete from their start."""
        return not self._is_partial and all(
            call.fits(calls[index]) for index, call in self.calls.items() if index in calls
        )

    def close(self, event: Event) -> None:
        """Close the open text or reasoning segment."""
        if self._is_writing:
            self._is_writing = False
            self._emit(to.TextEnded(event, self.id))
        if self._reasoning is not None:
            segment, self._reasoning = self._reasoning, None
            self._emit(to.ReasoningEnded(event, segment))


class _Call:
    """A tool call."""

    __slots__ = ("_call", "_chunks", "_emit", "_is_complete", "id", "result")

    def __init__(self, emit: Emit, event: Event, step: _Step, index: int, name: str) -> None:
        self._emit = emit
        self._is_complete = False
        self._call: ToolCall | None = None
        self.result: ToolCompleteEvent | None = None
        self._chunks: list[str] = []
        self.id = f"{step.calls_id}:{index}"
        emit(to.CallBegan(event, self.id, name, step.id, index))

    def write(self, event: Event, fragment: str) -> None:
        """Emit an argument chunk."""
        if fragment and not self._is_complete:
            self._chunks.append(fragment)
            self._emit(to.CallDelta(event, self.id, fragment))

    def fits(self, call: ToolCall) -> bool:
        """Return True if the emitted arguments match the call."""
        emitted = "".join(self._chunks)
        if self._is_complete or emitted in ("", call.raw):
            return True
        parsed = ToolCall.parse(call.id, call.name, emitted)
        return (parsed.arguments, parsed.error is None) == (call.arguments, call.error is None)

    def complete(self, event: Event, call: ToolCall) -> None:
        """Complete the call with final arguments."""
        if self._is_complete:
            return
        if not self._chunks:
            self.write(event, call.raw if call.raw is not None else orjson.dumps(call.arguments).decode())
        self._is_complete = True
        self._call = call
        self._emit(to.CallEnded(event, self.id, call))

    def revise(self, event: Event, call: ToolCall) -> None:
        """Emit the call's changed arguments."""
        if self._call is not None and is_edited(self._call, call):
            self._call = call
            self._emit(to.CallRevised(event, self.id, call))

    def answer(self, result: ToolCompleteEvent) -> None:
        """Emit the call's result."""
        self.result = result
        self._emit(to.CallResult(result, self.id))

    def discard(self, event: Event) -> None:
        """Withdraw the call."""
        self._is_complete = True
        self._emit(to.CallDiscarded(event, self.id))


def chat() -> View[Event, Change | Event]:
    """Return a view of a run as chat changes and other public events.

    ::

        source     --l-----d(He)-----d(y)---c-------x--w--|      l llm-call, d content-delta, c content-complete
        chat()     --S-----(B,T)-----T------(E,N)---R--w--|      S StepBegan, B TextBegan, T TextDelta, E TextEnded,
                                                                 N StepEnded, R CallResult

    The view needs a run from its first event (`runtime.follow(task_id)`); skip the output that the client already has.
    Readers without deltas receive each message as a single chunk. If the complete message differs from its deltas, the
    step is discarded and emitted again.

    Returns:
        A view of changes and public events. Its input contains one run with all nested runs. Internal events in the
        input are skipped.
    """

    def write(out: ViewOutput[Change | Event]) -> Callable[[Event], None]:
        return ChatFold(out.emit).take_public

    return make_view(write)


class ProtocolFold(Protocol):
    """Fold of chat changes and events into a protocol's output."""

    @property
    def is_complete(self) -> bool:
        """True if the client's output is complete."""
        ...

    def take(self, item: Change | Event, /) -> None:
        """Process the next change or event."""
        ...


def make_protocol_view(make: Callable[[Callable[[T], None]], ProtocolFold]) -> View[Event, T]:
    """Create a view that converts a run to a protocol. The view completes when its fold is complete.

    Args:
        make: Function that creates a fold for each subscriber. It receives the function that emits output.
    """

    def write(out: ViewOutput[T]) -> Callable[[Change | Event], None]:
        fold = make(out.emit)

        def take(item: Change | Event) -> None:
            fold.take(item)
            if fold.is_complete:
                out.complete()

        return take

    return compose(chat(), make_view(write))
