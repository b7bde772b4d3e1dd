"""The chat fold: public events of a run as steps, texts, reasoning and calls that begin and end once."""

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
    """What has begun in a run and has not ended; `take` is given its public events, in order."""

    def __init__(self, emit: Emit) -> None:
        """Give each change, and each event that is none, to `emit`."""
        self._emit = emit
        self._open: dict[tuple[str, str | None], _Step] = {}
        """By run and step."""
        self._tries: Counter[tuple[str, str | None]] = Counter()
        self._asked: Counter[tuple[str, str | None]] = Counter()
        """How often the model was asked for each step: by this calls have their ids, which all readers share."""
        self._calls: dict[tuple[str, str | None, int], _Call] = {}
        """By run, step and place: the newest call of each slot."""

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
                # All of it is closed by now, but for what the reader has not been told.
                for key in [key for key in self._open if key[0] == event.task_id]:
                    self._end(key, event, "canceled")
                self._emit(event)
            case _:
                if isinstance(event, QuestionEvent):
                    self._revise(event)
                self._emit(event)

    def _revise(self, event: QuestionEvent) -> None:
        """Show the arguments that a person is asked about."""
        question = event.input
        call = self._calls.get((event.task_id, question.step, question.index))
        # The arguments of a client tool are those of its `tool-start`: the question may add default values.
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
        """The open step of an event; one whose beginning the reader was not told begins with it."""
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
            # It came out differently, or the reader has come in the middle of it: what was shown is taken back.
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
                # Its tool did not wait for the message: there is no other event to tell what came of it.
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
            # Nobody has announced it: it begins before its message does, or has none.
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
    """Name the first of several by the id alone."""
    return id if number == 1 else f"{id}:{number}"


class _Step:
    """One try of a step."""

    __slots__ = (
        *("_emit", "_reasoning", "_thought", "_thoughts", "_torn", "_writing", "_written"),
        *("calls", "calls_id", "id", "reasoned", "thoughts"),
    )

    def __init__(self, emit: Emit, id: str, calls_id: str) -> None:
        self._emit = emit
        self.id, self.calls_id = id, calls_id
        self.thoughts: list[str] = []
        """Those that have come whole."""
        self._torn = False
        """Of one of them the beginning was not shown."""
        self.calls: dict[int, _Call] = {}
        self.reasoned = False
        self._written: list[str] = []
        self._writing = False
        self._reasoning: str | None = None
        """The id of the reasoning that is open."""
        self._thoughts = 0
        self._thought: list[str] = []
        """What has been shown of the reasoning since the last thought was complete."""

    @property
    def text(self) -> str:
        """What has been shown of the text."""
        if len(self._written) > 1:
            self._written = ["".join(self._written)]
        return self._written[0] if self._written else ""

    def write(self, event: Event, delta: str) -> None:
        """Show a piece of the text."""
        if not delta:
            return
        if not self._writing:
            self.close(event)
            self._writing = True
            self._emit(to.TextBegan(event, self.id))
        self._written.append(delta)
        self._emit(to.TextDelta(event, self.id, delta))

    def think(self, event: Event, delta: str) -> None:
        """Show a piece of the reasoning."""
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
        """Take the whole of a thought, of which nothing may have been shown yet, or all."""
        shown = "".join(self._thought)
        self.thoughts.append(event.content)
        if event.content.startswith(shown):
            self.think(event, event.content[len(shown) :])
        # What was stripped, or put in other words, is left as it was shown.
        elif event.content.strip() != shown.strip() and event.content.rstrip().endswith(shown.rstrip()):
            self._torn = True
        self._thought.clear()
        if self._reasoning is not None:
            self.close(event)

    def fits(self, calls: Mapping[int, ToolCall]) -> bool:
        """Whether what was shown of the reasoning and of the calls has its beginning."""
        return not self._torn and all(call.fits(calls[place]) for place, call in self.calls.items() if place in calls)

    def close(self, event: Event) -> None:
        """End the text or the reasoning that is open, since something else follows."""
        if self._writing:
            self._writing = False
            self._emit(to.TextEnded(event, self.id))
        if self._reasoning is not None:
            ended, self._reasoning = self._reasoning, None
            self._emit(to.ReasoningEnded(event, ended))


class _Call:
    """One call of a tool."""

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
        """Show a piece of the arguments."""
        if fragment and not self._ended:
            self._written.append(fragment)
            self._emit(to.CallDelta(event, self.id, fragment))

    def fits(self, call: ToolCall) -> bool:
        """Whether the arguments that were shown are those of the call."""
        written = "".join(self._written)
        if self._ended or written in ("", call.raw):
            return True
        read = ToolCall.parse(call.id, call.name, written)
        return (read.arguments, read.error is None) == (call.arguments, call.error is None)

    def complete(self, event: Event, call: ToolCall) -> None:
        """Take the whole of the call."""
        if self._ended:
            return
        if not self._written:
            self.write(event, call.raw if call.raw is not None else orjson.dumps(call.arguments).decode())
        self._ended = True
        self._call = call
        self._emit(to.CallEnded(event, self.id, call))

    def revise(self, event: Event, call: ToolCall) -> None:
        """Show the changed arguments of a call."""
        if self._call is not None and is_edited(self._call, call):
            self._call = call
            self._emit(to.CallRevised(event, self.id, call))

    def answer(self, result: ToolCompleteEvent) -> None:
        """Show what came of the call."""
        self.result = result
        self._emit(to.CallResult(result, self.id))

    def void(self, event: Event) -> None:
        """Take the call back."""
        self._ended = True
        self._emit(to.CallVoided(event, self.id))


def chat() -> View[Event, Change | Event]:
    """Give a run as a chat: what happens in its steps as changes, everything else as the public events.

    ::

        source     --l-----d(He)-----d(y)---c-------x--w--|      l llm-call, d content-delta, c content-complete
        chat()     --S-----(B,T)-----T------(E,N)---R--w--|      S StepBegan, B TextBegan, T TextDelta, E TextEnded,
                                                                 N StepEnded, R CallResult

    It is seeded from the log: give it a run from its first event (`runtime.follow(task_id)`), and leave out what the
    client has already. A reader without deltas gets a whole message as one; where a message comes out differently from
    what was shown of it, what was shown is void.

    Returns:
        A view of changes and public events. It takes the events of one run with all that is nested in it, those that
        are not for clients too: they are left out here.
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
    """What a client of a protocol is told, made of the changes and events of `chat`."""

    @property
    def over(self) -> bool:
        """Whether the client is told nothing more."""
        ...

    def take(self, item: Change | Event, /) -> None:
        """Fold the next change, or the next event that is none."""
        ...


def make_protocol_view(make: Callable[[Callable[[T], None]], ProtocolFold]) -> View[Event, T]:
    """Make a view of a run as a protocol shows it, which completes when its fold is over.

    Args:
        make: Makes the fold of one subscriber, which passes what it writes to the given function.
    """

    def write(out: ViewOutput[T]) -> Callable[[Change | Event], None]:
        fold = make(out.emit)

        def take(item: Change | Event) -> None:
            fold.take(item)
            if fold.over:
                out.complete()

        return take

    return compose(chat(), make_view(write))
