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

Emit = Callable[[Change | Event], None]
T = TypeVar("T")
_ToolEvent = ToolStartEvent | ToolProgressEvent | ToolCompleteEvent


class ChatFold:
    """State of the open steps and calls of a run. Pass its public events to `take` in order."""

    def __init__(self, emit: Emit) -> None:
        """Initialize the fold.

        Args:
            emit: Called with each change, and with each event that does not become a change.
        """
        self._emit = emit
        self._open: dict[tuple[str, str | None], _Step] = {}
        """Open steps by run and step."""
        self._tries: Counter[tuple[str, str | None]] = Counter()
        self._asked: Counter[tuple[str, str | None]] = Counter()
        """Number of model calls per step. Call ids contain this number, because it is the same for all readers."""
        self._calls: dict[tuple[str, str | None, int], _Call] = {}
        """Latest call for each run, step and index."""

    def take(self, event: Event) -> None:
        """Fold the next event."""
        match event:
            case ContentDeltaEvent():
                self._step(event).write(event, event.delta)
            case ThoughtDeltaEvent():
                self._step(event).think(event, event.delta)
            case ToolCallDeltaEvent():
                self._call(event, event.index, event.name).write(event, event.fragment)
            case LLMCallEvent():
                self._begin(event)
            case ContentCompleteEvent():
                self._complete(event)
            case ToolStartEvent() | ToolProgressEvent() | ToolCompleteEvent():
                self._work(event)
            case ThoughtStreamEvent() if event.source in ("reasoning", "tag"):
                self._step(event).thought(event)
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
            self._end(key, event, "void")
        self._tries[key] += 1
        self._asked[key] += isinstance(event, LLMCallEvent)
        place = event.task_id if event.step is None else f"{event.task_id}:{event.step}"
        calls = _numbered(place, self._asked[key] or 1)
        step = self._open[key] = _Step(self._emit, _numbered(place, self._tries[key]), calls)
        self._emit(to.StepBegan(event, step.id))
        return step

    def _step(self, event: Event) -> _Step:
        """Return the open step of an event, starting a step if the reader missed its start."""
        return self._open.get((event.task_id, event.step)) or self._begin(event)

    def _end(
        self,
        key: tuple[str, str | None],
        event: Event,
        outcome: Literal["complete", "canceled", "void"],
        kept: frozenset[int] = frozenset(),
    ) -> None:
        step = self._open.pop(key)
        step.close(event)
        for place, call in step.calls.items():
            if place not in kept and call.result is None:
                call.void(event)
        self._emit(to.StepEnded(event, step.id, outcome))

    def _complete(self, event: ContentCompleteEvent) -> None:
        key = event.task_id, event.step
        before = step = self._step(event)
        left_out = set(event.left_out)
        places = (place for place in range(len(event.tool_calls) + len(left_out)) if place not in left_out)
        shown = dict(zip(places, event.tool_calls, strict=False))
        if not (event.content.startswith(step.text) and step.fits(shown)):
            # Discard the shown content, because it differs or the reader joined in the middle.
            self._end(key, event, "void")
            before, step = step, self._begin(event)
            for each in before.thoughts:
                step.think(event, each)
                step.close(event)
        if event.reasoning and not step.reasoned:
            step.think(event, event.reasoning)
        step.write(event, event.content[len(step.text) :])
        for place, call in shown.items():
            made = self._call(event, place, call.name)
            made.complete(event, call)
            if step is not before and place in before.calls and (result := before.calls[place].result) is not None:
                # The tool finished before the message was complete, so no later event reports the result.
                made.answer(result)
        canceled = event.finish_reason == "canceled"
        kept = frozenset[int]() if canceled else frozenset(shown)
        self._end(key, event, "canceled" if canceled else "complete", kept)

    def _call(self, event: Event, place: int, name: str) -> _Call:
        step = self._step(event)
        call = step.calls.get(place)
        if call is None:
            step.close(event)
            call = step.calls[place] = _Call(self._emit, event, step, place, name)
            self._calls[event.task_id, event.step, place] = call
        return call

    def _work(self, event: _ToolEvent) -> None:
        call = self._calls.get((event.task_id, event.step, event.index))
        if call is None:
            # This call is unannounced, either because its message is incomplete or because it has no message.
            apart = (event.task_id, event.step) not in self._open
            call = self._call(event, event.index, event.name)
            if apart:
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


def _numbered(id: str, number: int) -> str:
    """Append a number to an id, except to the first id."""
    return id if number == 1 else f"{id}:{number}"


class _Step:
    """A single step attempt."""

    __slots__ = (
        *("_emit", "_reasoning", "_thought", "_thoughts", "_torn", "_writing", "_written"),
        *("calls", "calls_id", "id", "reasoned", "thoughts"),
    )

    def __init__(self, emit: Emit, id: str, calls_id: str) -> None:
        self._emit = emit
        self.id, self.calls_id = id, calls_id
        self.thoughts: list[str] = []
        """Completed thoughts."""
        self._torn = False
        """True if the start of a thought is missing."""
        self.calls: dict[int, _Call] = {}
        self.reasoned = False
        self._written: list[str] = []
        self._writing = False
        self._reasoning: str | None = None
        """Id of the open reasoning segment."""
        self._thoughts = 0
        self._thought: list[str] = []
        """Chunks of reasoning emitted since the last completed thought."""

    @property
    def text(self) -> str:
        """Text emitted so far."""
        if len(self._written) > 1:
            self._written = ["".join(self._written)]
        return self._written[0] if self._written else ""

    def write(self, event: Event, delta: str) -> None:
        """Emit a text chunk."""
        if not delta:
            return
        if not self._writing:
            self.close(event)
            self._writing = True
            self._emit(to.TextBegan(event, self.id))
        self._written.append(delta)
        self._emit(to.TextDelta(event, self.id, delta))

    def think(self, event: Event, delta: str) -> None:
        """Emit a chunk of reasoning."""
        if not delta:
            return
        if self._reasoning is None:
            self.close(event)
            self.reasoned = True
            self._thoughts += 1
            self._reasoning = _numbered(f"{self.id}:reasoning", self._thoughts)
            self._emit(to.ReasoningBegan(event, self._reasoning))
        self._thought.append(delta)
        self._emit(to.ReasoningDelta(event, self._reasoning, delta))

    def thought(self, event: ThoughtStreamEvent) -> None:
        """Complete a thought, emitting any reasoning that was not streamed."""
        shown = "".join(self._thought)
        self.thoughts.append(event.content)
        if event.content.startswith(shown):
            self.think(event, event.content[len(shown) :])
        # Keep trimmed or rephrased reasoning unchanged.
        elif event.content.strip() != shown.strip() and event.content.rstrip().endswith(shown.rstrip()):
            self._torn = True
        self._thought.clear()
        if self._reasoning is not None:
            self.close(event)

    def fits(self, calls: Mapping[int, ToolCall]) -> bool:
        """True if the emitted reasoning and calls are complete from their start."""
        return not self._torn and all(call.fits(calls[place]) for place, call in self.calls.items() if place in calls)

    def close(self, event: Event) -> None:
        """Close the open text or reasoning segment."""
        if self._writing:
            self._writing = False
            self._emit(to.TextEnded(event, self.id))
        if self._reasoning is not None:
            ended, self._reasoning = self._reasoning, None
            self._emit(to.ReasoningEnded(event, ended))


class _Call:
    """A tool call."""

    __slots__ = ("_call", "_emit", "_ended", "_written", "id", "result")

    def __init__(self, emit: Emit, event: Event, step: _Step, place: int, name: str) -> None:
        self._emit = emit
        self._ended = False
        self._call: ToolCall | None = None
        self.result: ToolCompleteEvent | None = None
        self._written: list[str] = []
        self.id = f"{step.calls_id}:{place}"
        emit(to.CallBegan(event, self.id, name, step.id, place))

    def write(self, event: Event, fragment: str) -> None:
        """Emit an argument chunk."""
        if fragment and not self._ended:
            self._written.append(fragment)
            self._emit(to.CallDelta(event, self.id, fragment))

    def fits(self, call: ToolCall) -> bool:
        """True if the emitted arguments match the call."""
        written = "".join(self._written)
        if self._ended or written in ("", call.raw):
            return True
        read = ToolCall.parse(call.id, call.name, written)
        return (read.arguments, read.error is None) == (call.arguments, call.error is None)

    def complete(self, event: Event, call: ToolCall) -> None:
        """Complete the call with final arguments."""
        if self._ended:
            return
        if not self._written:
            self.write(event, call.raw if call.raw is not None else orjson.dumps(call.arguments).decode())
        self._ended = True
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

    def void(self, event: Event) -> None:
        """Withdraw the call."""
        self._ended = True
        self._emit(to.CallVoided(event, self.id))


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
        fold = ChatFold(out.emit)

        def take(event: Event) -> None:
            shown = event.to_public()
            if shown is not None:
                fold.take(shown)

        return take

    return make_view(write)


class ProtocolFold(Protocol):
    """Fold of chat changes and events into a protocol's output."""

    @property
    def over(self) -> bool:
        """True if the client's output is complete."""
        ...

    def take(self, item: Change | Event, /) -> None:
        """Process the next change or event."""
        ...


def make_protocol_view(make: Callable[[Callable[[T], None]], ProtocolFold]) -> View[Event, T]:
    """Create a protocol view of a run, completing it with its fold.

    Args:
        make: Creates a fold for each subscriber. The argument is the function that emits output.
    """

    def write(out: ViewOutput[T]) -> Callable[[Change | Event], None]:
        fold = make(out.emit)

        def take(item: Change | Event) -> None:
            fold.take(item)
            if fold.over:
                out.complete()

        return take

    return compose(chat(), make_view(write))
