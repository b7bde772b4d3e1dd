"""Order that every stream of events keeps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NoReturn

from rxloop.errors import GrammarError
from rxloop.protocol.envelope import UnknownEvent
from rxloop.protocol.events import (
    WAITING,
    AuthRequiredEvent,
    ContentCompleteEvent,
    ContentDeltaEvent,
    Event,
    GapEvent,
    InputReceivedEvent,
    InputRequiredEvent,
    LLMCallEvent,
    QuestionEvent,
    StatusUpdateEvent,
    TaskEvent,
    ThoughtDeltaEvent,
    ToolCallDeltaEvent,
    ToolCompleteEvent,
    ToolProgressEvent,
    ToolStartEvent,
    UsageEvent,
)

Step = tuple[str | None, str | None]
"""A branch, and a step on it."""

Slot = tuple[str | None, str | None, int]
"""A branch, a step on it, and the place of a call in its message."""

Delta = ContentDeltaEvent | ThoughtDeltaEvent | ToolCallDeltaEvent


def broken(rule: str, what: str, event: Event | None, other: Event | None = None) -> NoReturn:
    """Say that a rule is broken.

    Raises:
        GrammarError: Always.
    """
    here = f": {event!r}" if event is not None else ""
    name = "the other event" if event is not None else "the last event"
    there = f"\n  {name}: {other!r}" if other is not None else ""
    raise GrammarError(f"{what} ({rule}){here}{there}", rule=rule, event=event, other=other)


class Grammar:
    """The rules of one stream; `check` takes its events in order, and `end` its end.

    Args:
        whole: Whether the stream begins with its run or attempt.
    """

    def __init__(self, *, whole: bool = True) -> None:
        self._whole = whole
        self._first: Event | None = None
        self._durable: Event | None = None
        self._last: Event | None = None
        self._lost = not whole
        """The next event may have any number."""
        self._runs: dict[str, _Run] = {}
        self._fork_seq = 0

    def check(self, event: Event) -> None:
        """Take the next event.

        Raises:
            GrammarError: It breaks a rule.
        """
        if isinstance(event, GapEvent):
            if event.reason != "dropped":
                # What follows may begin anywhere: of what is open there, nothing is known.
                self._whole = False
                self._lost = True
                self._runs.clear()
            return
        self._begins(event)
        self._numbers(event)
        if event.parent_task_id is None:
            self._belongs(event)
        run = self._runs.get(event.task_id)
        if run is None:
            # Only from its own beginning is all of it known.
            run = self._runs[event.task_id] = _Run(isinstance(event, TaskEvent), event.attempt)
            if event.agent_path:
                run.above = event.parent_task_id
        if _is_final(event):
            self._nested_ended(event)
        run.check(event)
        self._last = event
        self._lost = False

    def end(self) -> None:
        """The stream is complete.

        Raises:
            GrammarError: It ended in the middle of an attempt.
        """
        if self._first is None:
            return
        root = self._runs.get(self._first.task_id)
        if root is not None and root.final is None:
            broken("final-missing", "the stream ended without the final event of the attempt", None, self._last)

    def _begins(self, event: Event) -> None:
        """The first two events, and those that begin an attempt."""
        first = self._first
        if first is None:
            if event.parent_task_id is not None and self._whole:
                broken("task-first", "the first event of a stream is not of a nested run", event)
            if event.parent_task_id is None:
                self._first = event
                if isinstance(event, TaskEvent):
                    self._fork_seq = event.fork_seq or 0
                elif self._whole and not _resumes(event) and not _is_final(event):
                    broken("task-first", "the first event of a run is its task", event)
            return
        if isinstance(event, TaskEvent) and event.parent_task_id is None and not self._lost:
            broken("task-once", "a run has one task", event, first)
        if self._last is first and isinstance(first, TaskEvent) and not self._lost:
            working = isinstance(event, StatusUpdateEvent) and event.state == "working" and not event.final
            if not working or event.parent_task_id is not None:
                broken("working-second", "the task of a run is followed by its status-update (working)", event, first)

    def _belongs(self, event: Event) -> None:
        """Everything but nested runs is of one run, and every attempt has its beginning and its end."""
        first, last = self._first, self._last
        if first is None:
            return
        if (event.task_id, event.context_id) != (first.task_id, first.context_id):
            broken("one-run", "an event of another run, or conversation, names no run it is nested in", event, first)
        root = self._runs.get(first.task_id)
        if last is None or root is None:
            return
        if self._lost:
            root.attempt = event.attempt
        elif _resumes(event):
            self._resumed(event, last, root)
            root.attempt = event.attempt
        elif event.attempt != root.attempt:
            broken("attempt", "an attempt begins with its status-update (working, resumed)", event, last)

    def _nested_ended(self, event: Event) -> None:
        """The runs of nested agents have ended before the run that they are nested in."""
        for run in self._runs.values():
            going_on = run.above == event.task_id and run.final is None
            if going_on and isinstance(event, StatusUpdateEvent) and event.state != "working":
                broken("nested-open", "a run ends, and that of an agent nested in it goes on", event, run.last)

    def _resumed(self, event: Event, last: Event, root: _Run) -> None:
        if event.attempt != root.attempt + 1:
            broken("attempt", f"attempt {root.attempt} is followed by {event.attempt}", event, last)
        after = event.after_seq if isinstance(event, StatusUpdateEvent) else None
        if after != last.seq:
            broken("after-seq", f"an attempt that follows event {last.seq} says that it follows {after}", event, last)
        final = root.final
        over = final is not None and final.state in ("completed", "failed")
        over = over and not (final is not None and final.error is not None and final.error.retryable)
        # A fork goes on after the end of the run that it has taken over.
        if over and self._whole and event.seq > self._fork_seq + 1:
            broken("ended", "a run that has ended for good is not resumed", event, root.final)

    def _numbers(self, event: Event) -> None:
        """`seq` counts the durable events without a gap; `sub` grows after each of them."""
        before, last = self._durable, self._last
        durable = event.durable and not (isinstance(event, UnknownEvent) and event.sub)
        if durable or self._lost:
            self._durable = event
        if durable == bool(event.sub):
            rule = "a durable event has sub 0" if durable else "a transient event has a sub of 1 or more"
            broken("sub", rule, event, last)
        if self._lost:
            return
        if before is None:
            after = event.after_seq if isinstance(event, StatusUpdateEvent) else None
            expected = 1 if isinstance(event, TaskEvent) else (after or 0) + 1
            if event.seq != expected and not _is_final(event):
                broken("seq", f"the first event has seq {event.seq} and not {expected}", event)
        elif durable and event.seq != before.seq + 1:
            broken("seq", f"seq {before.seq} is followed by {event.seq}", event, before)
        elif not durable and event.seq != before.seq:
            broken("seq", f"a transient event after seq {before.seq} has seq {event.seq}", event, before)
        elif not durable and last is not None and event.sub <= last.sub:
            broken("sub", f"sub {last.sub} is followed by {event.sub}", event, last)


def _resumes(event: Event) -> bool:
    return isinstance(event, StatusUpdateEvent) and event.resumed and event.parent_task_id is None


def _is_final(event: Event) -> bool:
    return isinstance(event, StatusUpdateEvent) and event.final


def _unrecorded(event: StatusUpdateEvent) -> bool:
    """Tell whether the attempt is over for its readers but not in the log: the run may go on."""
    return event.state == "working" and event.error is not None and event.error.code in ("log", "conflict")


def _cut_off(begun: Event, end: Event) -> bool:
    """Tell whether a crash cut it off on a line beside the main one: the next attempt need not reach that line."""
    return begun.branch is not None and begun.attempt < end.attempt


@dataclass
class _Call:
    message: ContentCompleteEvent
    started: ToolStartEvent | None = None
    ended: ToolCompleteEvent | None = None


@dataclass
class _Run:
    """What one run has open: a root run or a nested one."""

    whole: bool
    """It was seen from its beginning; otherwise what belongs to something unknown is taken on trust."""
    attempt: int
    asked: dict[Step, LLMCallEvent] = field(default_factory=dict[Step, LLMCallEvent])
    """The model calls that are open."""
    messages: dict[Step, ContentCompleteEvent] = field(default_factory=dict[Step, ContentCompleteEvent])
    calls: dict[Slot, _Call] = field(default_factory=dict[Slot, _Call])
    open: dict[Slot, _Call] = field(default_factory=dict[Slot, _Call])
    """The calls that have no answer."""
    questions: dict[str, QuestionEvent] = field(default_factory=dict[str, QuestionEvent])
    answers: dict[str, InputReceivedEvent] = field(default_factory=dict[str, InputReceivedEvent])
    final: StatusUpdateEvent | None = None
    last: Event | None = None
    """The event before."""
    above: str | None = None
    """The run that the run of a nested agent belongs to."""

    def check(self, event: Event) -> None:
        """Take the next event of the run."""
        if isinstance(event, StatusUpdateEvent):
            self._status(event)
        elif self.final is not None and not self._answers(event):
            broken("final-last", "nothing comes after the final event", event, self.final)
        else:
            self._any_other(event)
        self.last = event

    def _answers(self, event: Event) -> bool:
        """Tell whether an event is what a nested run that waits is told before it goes on."""
        waits = self.final is not None and self.final.state in WAITING
        return self.above is not None and waits and isinstance(event, InputReceivedEvent)

    def _any_other(self, event: Event) -> None:
        match event:
            case LLMCallEvent():
                self._llm_call(event)
            case ContentDeltaEvent() | ThoughtDeltaEvent() | ToolCallDeltaEvent() | UsageEvent():
                self._piece(event)
            case ContentCompleteEvent():
                self._message(event)
            case ToolStartEvent():
                self._tool_start(event)
            case ToolProgressEvent():
                call = self._call(event)
                if call is not None and call.ended is not None:
                    broken("progress-late", "a tool says something when its call has ended", event, call.ended)
            case ToolCompleteEvent():
                self._tool_complete(event)
            case InputRequiredEvent() | AuthRequiredEvent() | InputReceivedEvent():
                self._question(event)
            case _:
                pass

    def _status(self, event: StatusUpdateEvent) -> None:
        before = self.final
        if not event.final:
            if before is not None and not event.resumed:
                broken("final-last", "nothing comes after the final event", event, before)
            # What an attempt that was cut off had open on the main line is taken up again, or closed, by the next one.
            self.final = None
            return
        if before is not None:
            broken("final-once", "an attempt has one final event", event, before)
        if event.state in ("working", "submitted") and not _unrecorded(event):
            broken("final-state", f"a run does not end as {event.state}", event, self.last)
        if not _unrecorded(event):
            self._closed(event)
        self.final = event

    def _closed(self, event: StatusUpdateEvent) -> None:
        for asked in self.asked.values():
            if not _cut_off(asked, event):
                broken("message-open", "the attempt ends, and a message is still open", event, asked)
        if event.state not in WAITING:
            for call in self.open.values():
                begun = call.started or call.message
                if not _cut_off(begun, event):
                    broken("call-open", "the attempt ends, and a call is still open", event, begun)
        elif event.state == "input-required" and self.whole and not self.questions:
            broken("question-none", "the run waits for an answer, and nothing was asked", event, self.last)

    def _llm_call(self, event: LLMCallEvent) -> None:
        step = (event.branch, event.step)
        done = self.messages.get(step)
        if done is not None:
            broken("message-twice", "a step whose message is complete is not asked for again", event, done)
        waiting = next((call for slot, call in self.open.items() if slot[0] == event.branch), None)
        if waiting is not None:
            other = waiting.started or waiting.message
            broken("call-unanswered", "the model is asked before a call of its line is answered", event, other)
        # Once more under the same step: an operator tried again, which makes the deltas of the first void.
        self.asked[step] = event

    def _piece(self, event: Delta | UsageEvent) -> None:
        step = (event.branch, event.step)
        if step in self.asked:
            return
        done = self.messages.get(step)
        if done is not None and not isinstance(event, UsageEvent):
            broken("delta-late", "a delta comes after the content-complete of its message", event, done)
        if done is None and self.whole:
            broken("delta-early", f"a {event.kind} comes before the llm-call of its step", event, self.last)

    def _message(self, event: ContentCompleteEvent) -> None:
        step = (event.branch, event.step)
        done = self.messages.get(step)
        if done is not None:
            broken("message-twice", "a message is complete once", event, done)
        asked = self.asked.pop(step, None)
        if event.finish_reason == "canceled":
            if asked is None and self.whole:
                broken("canceled-nothing", "a message is canceled that was not open", event, self.last)
            return
        # One with no llm-call is the message of a strategy, or of an operator.
        self.messages[step] = event
        for index in range(len(event.tool_calls)):
            slot = (*step, index)
            self.calls[slot] = self.open[slot] = _Call(event)

    def _call(self, event: ToolStartEvent | ToolProgressEvent | ToolCompleteEvent) -> _Call | None:
        """The call that an event belongs to; None if it may be one of before."""
        call = self.calls.get((event.branch, event.step, event.index))
        if call is None:
            message = self.messages.get((event.branch, event.step))
            if self.whole or message is not None:
                what = f"no message has a call {event.index} of step {event.step}"
                broken("call-unknown", what, event, message or self.last)
            return None
        if call.message.tool_calls[event.index].id != event.call.id:
            broken("call-other", "the call is another one than the message has at its place", event, call.message)
        return call

    def _tool_start(self, event: ToolStartEvent) -> None:
        call = self._call(event)
        if call is None:
            return
        if call.ended is not None:
            broken("start-late", "a call starts when it has ended", event, call.ended)
        if call.started is not None and call.started.attempt == event.attempt:
            broken("start-twice", "a call starts once in an attempt", event, call.started)
        call.started = event

    def _tool_complete(self, event: ToolCompleteEvent) -> None:
        call = self._call(event)
        if call is None:
            return
        if call.ended is not None:
            broken("call-twice", "a call is answered once", event, call.ended)
        if event.duration and call.started is None and self.whole:
            broken("start-missing", "a call that took its time had no tool-start", event, call.message)
        call.ended = event
        del self.open[event.branch, event.step, event.index]

    def _question(self, event: QuestionEvent | InputReceivedEvent) -> None:
        asked = self.questions.get(event.input_id)
        if isinstance(event, QuestionEvent):
            if asked is not None and asked.attempt == event.attempt:
                broken("question-twice", "a question is asked once in an attempt", event, asked)
            self.questions[event.input_id] = event
            return
        if event.input_id in self.answers:
            broken("answer-twice", "a question is answered once", event, self.answers[event.input_id])
        if asked is None and self.whole:
            broken("answer-early", "a question is answered that was not asked", event, self.last)
        self.questions.pop(event.input_id, None)
        self.answers[event.input_id] = event
