"""Grammar of event streams: rules for the order of events."""

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
"""Branch and step."""

Slot = tuple[str | None, str | None, int]
"""Branch, step and call index."""

Delta = ContentDeltaEvent | ThoughtDeltaEvent | ToolCallDeltaEvent


def raise_violation(rule: str, message: str, event: Event | None, other: Event | None = None) -> NoReturn:
    """Raise an error for a violated rule.

    Raises:
        GrammarError: Always.
    """
    event_text = f": {event!r}" if event is not None else ""
    name = "the other event" if event is not None else "the last event"
    other_text = f"\n  {name}: {other!r}" if other is not None else ""
    raise GrammarError(f"{message} ({rule}){event_text}{other_text}", rule=rule, event=event, other=other)


class Grammar:
    """Event stream validator. Call `check` for each event and `end` after the last one.

    Args:
        whole: Set to False if the beginning of the run or attempt is missing.
    """

    def __init__(self, *, whole: bool = True) -> None:
        self._whole = whole
        self._first: Event | None = None
        self._durable: Event | None = None
        self._last: Event | None = None
        self._lost = not whole
        """True if the next event may have any number."""
        self._runs: dict[str, _Run] = {}
        self._fork_seq = 0

    def check(self, event: Event) -> None:
        """Check the next event.

        Raises:
            GrammarError: If the event violates a rule.
        """
        if isinstance(event, GapEvent):
            if event.reason != "dropped":
                # The following events may start anywhere, so open messages and calls are unknown.
                self._whole = False
                self._lost = True
                self._runs.clear()
            return
        self._check_start(event)
        self._check_numbers(event)
        if event.parent_task_id is None:
            self._check_run(event)
        run = self._runs.get(event.task_id)
        if run is None:
            # A run's state is only complete if we have seen its first event.
            run = self._runs[event.task_id] = _Run(isinstance(event, TaskEvent), event.attempt)
            if event.agent_path:
                run.parent = event.parent_task_id
        run.check(event, _is_final(event) and self._check_nested_runs(event))
        self._last = event
        self._lost = False

    def end(self) -> None:
        """Check the end of the stream.

        Raises:
            GrammarError: If an attempt is still open.
        """
        root = self._runs.get(self._first.task_id) if self._first is not None else None
        if root is not None and root.final is None:
            raise_violation("final-missing", "the stream must end with the final event", None, self._last)

    def _check_start(self, event: Event) -> None:
        """Check the first two events."""
        first = self._first
        if first is None:
            if event.parent_task_id is not None and self._whole:
                raise_violation("task-first", "the first event of a stream must not belong to a nested run", event)
            if event.parent_task_id is None:
                self._first = event
                if isinstance(event, TaskEvent):
                    self._fork_seq = event.fork_seq or 0
                elif self._whole and not _resumes(event) and not _is_final(event):
                    raise_violation("task-first", "the first event of a run must be its task", event)
            return
        if isinstance(event, TaskEvent) and event.parent_task_id is None and not self._lost:
            raise_violation("task-once", "a run must have only one task", event, first)
        if self._last is first and isinstance(first, TaskEvent) and not self._lost:
            working = isinstance(event, StatusUpdateEvent) and event.state == "working" and not event.final
            if not working or event.parent_task_id is not None:
                what = "the task of a run must be followed by its status-update (working)"
                raise_violation("working-second", what, event, first)

    def _check_run(self, event: Event) -> None:
        """Check ids and attempt numbers of root run events."""
        first, last = self._first, self._last
        if first is None:
            return
        if (event.task_id, event.context_id) != (first.task_id, first.context_id):
            what = "an event of another run or conversation must have a parent run"
            raise_violation("one-run", what, event, first)
        root = self._runs.get(first.task_id)
        if last is None or root is None:
            return
        if _resumes(event) and not self._lost:
            self._check_resumption(event, last, root)
        elif event.attempt != root.attempt and not self._lost:
            raise_violation("attempt", "an attempt must start with its status-update (working, resumed)", event, last)
        root.attempt = event.attempt

    def _check_nested_runs(self, event: Event) -> bool:
        """Check that nested runs end before their parent run. Return True if one of them waits for an answer."""
        for run in self._runs.values():
            is_open = run.parent == event.task_id and run.final is None
            if is_open and isinstance(event, StatusUpdateEvent) and event.state != "working":
                raise_violation("nested-open", "a run must not end before its nested runs", event, run.last)
        return any(run.makes_wait(event.task_id) for run in self._runs.values())

    def _check_resumption(self, event: Event, last: Event, root: _Run) -> None:
        if event.attempt != root.attempt + 1:
            raise_violation("attempt", f"attempt {root.attempt} is followed by attempt {event.attempt}", event, last)
        after = event.after_seq if isinstance(event, StatusUpdateEvent) else None
        if after != last.seq:
            raise_violation("after-seq", f"after_seq must be {last.seq}, got {after}", event, last)
        end = root.final
        ended = end is not None and end.state in ("completed", "failed") and not (end.error and end.error.retryable)
        # A fork continues after the end of the copied run.
        if ended and self._whole and event.seq > self._fork_seq + 1:
            raise_violation("ended", "a run that has ended for good must not be resumed", event, end)

    def _check_numbers(self, event: Event) -> None:
        """Check that `seq` has no gaps and that `sub` is increasing."""
        before, last = self._durable, self._last
        durable = event.durable and not (isinstance(event, UnknownEvent) and event.sub)
        if durable or self._lost:
            self._durable = event
        if durable == bool(event.sub):
            rule = "sub of a durable event must be 0" if durable else "sub of a transient event must be at least 1"
            raise_violation("sub", rule, event, last)
        if self._lost:
            return
        if before is None:
            after = event.after_seq if isinstance(event, StatusUpdateEvent) else None
            expected = 1 if isinstance(event, TaskEvent) else (after or 0) + 1
            if event.seq != expected and not _is_final(event):
                raise_violation("seq", f"seq of the first event must be {expected}, got {event.seq}", event)
        elif durable and event.seq != before.seq + 1:
            raise_violation("seq", f"seq {before.seq} is followed by {event.seq}", event, before)
        elif not durable and event.seq != before.seq:
            raise_violation("seq", f"a transient event after seq {before.seq} has seq {event.seq}", event, before)
        elif not durable and last is not None and event.sub <= last.sub:
            raise_violation("sub", f"sub {last.sub} is followed by {event.sub}", event, last)


def _resumes(event: Event) -> bool:
    return isinstance(event, StatusUpdateEvent) and event.resumed and event.parent_task_id is None


def _is_final(event: Event) -> bool:
    return isinstance(event, StatusUpdateEvent) and event.final


def _is_unrecorded(event: StatusUpdateEvent) -> bool:
    """Return True if the attempt has ended for readers without being recorded, so the run may continue."""
    codes = ("log", "conflict", "fenced", "released")
    return event.state == "working" and event.error is not None and event.error.code in codes


def _is_lost(start: Event, end: Event) -> bool:
    """Return True if a crash interrupted work on another branch. The next attempt may skip it."""
    return start.branch is not None and start.attempt < end.attempt


@dataclass
class _Call:
    message: ContentCompleteEvent
    started: ToolStartEvent | None = None
    ended: ToolCompleteEvent | None = None


@dataclass
class _Run:
    """Tracks a run's open messages, calls and questions."""

    whole: bool
    """True if the run's first event is known. Otherwise, events may refer to unknown ones."""
    attempt: int
    requests: dict[Step, LLMCallEvent] = field(default_factory=dict[Step, LLMCallEvent])
    """Open model calls."""
    messages: dict[Step, ContentCompleteEvent] = field(default_factory=dict[Step, ContentCompleteEvent])
    calls: dict[Slot, _Call] = field(default_factory=dict[Slot, _Call])
    open: dict[Slot, _Call] = field(default_factory=dict[Slot, _Call])
    """Unanswered calls."""
    questions: dict[str, QuestionEvent] = field(default_factory=dict[str, QuestionEvent])
    answers: dict[str, InputReceivedEvent] = field(default_factory=dict[str, InputReceivedEvent])
    final: StatusUpdateEvent | None = None
    last: Event | None = None
    """Previous event."""
    parent: str | None = None
    """Id of the parent run, if this run is nested."""

    def check(self, event: Event, waits: bool) -> None:
        """Check the run's next event. `waits` is True if a nested run waits for an answer."""
        final = self.final if isinstance(event, ToolCompleteEvent) or _is_final(event) else None
        if final is not None and self.makes_wait(self.parent) and event.attempt > final.attempt:
            # A later attempt of the parent can close the nested run without resuming it.
            self.final = None
        if isinstance(event, StatusUpdateEvent):
            self._check_status(event, waits)
        elif self.final is None or (self.makes_wait(self.parent) and isinstance(event, InputReceivedEvent)):
            self._check_event(event)
        else:
            raise_violation("final-last", "the final event must be the last", event, self.final)
        self.last = event

    def makes_wait(self, parent: str | None) -> bool:
        """Return True if a parent run waits for this nested run, whose attempt has ended with a question."""
        return parent is not None and self.parent == parent and self.final is not None and self.final.state in WAITING

    def _check_event(self, event: Event) -> None:
        match event:
            case LLMCallEvent():
                self._check_request(event)
            case ContentDeltaEvent() | ThoughtDeltaEvent() | ToolCallDeltaEvent() | UsageEvent():
                self._check_delta(event)
            case ContentCompleteEvent():
                self._check_message(event)
            case ToolStartEvent():
                self._check_tool_start(event)
            case ToolProgressEvent():
                call = self._find_call(event)
                if call is not None and call.ended is not None:
                    raise_violation("progress-late", "a tool must not report progress after its end", event, call.ended)
            case ToolCompleteEvent():
                self._check_tool_complete(event)
            case InputRequiredEvent() | AuthRequiredEvent() | InputReceivedEvent():
                self._check_question(event)
            case _:
                pass

    def _check_status(self, event: StatusUpdateEvent, waits: bool) -> None:
        before = self.final
        if not event.final:
            if before is not None and not event.resumed:
                raise_violation("final-last", "the final event must be the last", event, before)
            # The next attempt continues or closes what an interrupted attempt left open on the main branch.
            self.final = None
            for input_id in event.discarded:
                self.questions.pop(input_id, None)
            return
        if before is not None:
            raise_violation("final-once", "an attempt must have only one final event", event, before)
        if event.state in ("working", "submitted") and not _is_unrecorded(event):
            raise_violation("final-state", f"a run must not end as {event.state}", event, self.last)
        if not _is_unrecorded(event):
            self._check_closed(event, waits)
        self.final = event

    def _check_closed(self, event: StatusUpdateEvent, waits: bool) -> None:
        for request in self.requests.values():
            if not _is_lost(request, event):
                raise_violation("message-open", "an attempt must not end before its messages", event, request)
        if event.state not in WAITING:
            for call in self.open.values():
                start = call.started or call.message
                if not _is_lost(start, event):
                    raise_violation("call-open", "an attempt must not end before its calls", event, start)
        elif event.state == "input-required" and self.whole and not (self.questions or waits):
            raise_violation("question-none", "a run must not wait without a question", event, self.last)

    def _check_request(self, event: LLMCallEvent) -> None:
        step = (event.branch, event.step)
        done = self.messages.get(step)
        if done is not None:
            raise_violation("message-twice", "a step with a complete message must not be requested again", event, done)
        waiting = next((call for slot, call in self.open.items() if slot[0] == event.branch), None)
        if waiting is not None:
            other = waiting.started or waiting.message
            raise_violation("call-unanswered", "all calls of a branch must be answered before a request", event, other)
        # Operators may retry a step. This discards previous deltas.
        self.requests[step] = event

    def _check_delta(self, event: Delta | UsageEvent) -> None:
        step = (event.branch, event.step)
        if step in self.requests:
            return
        done = self.messages.get(step)
        if done is not None and not isinstance(event, UsageEvent):
            raise_violation("delta-late", "a delta must precede the content-complete of its message", event, done)
        if done is None and self.whole:
            raise_violation("delta-early", f"a {event.kind} must follow the llm-call of its step", event, self.last)

    def _check_message(self, event: ContentCompleteEvent) -> None:
        step = (event.branch, event.step)
        done = self.messages.get(step)
        if done is not None:
            raise_violation("message-twice", "a message must be complete only once", event, done)
        request = self.requests.pop(step, None)
        if event.finish_reason == "canceled":
            if request is None and self.whole:
                raise_violation("canceled-nothing", "a canceled message must be open", event, self.last)
            return
        # Strategies and operators can create messages without an llm-call.
        self.messages[step] = event
        for index in range(len(event.tool_calls)):
            slot = (*step, index)
            self.calls[slot] = self.open[slot] = _Call(event)

    def _find_call(self, event: ToolStartEvent | ToolProgressEvent | ToolCompleteEvent) -> _Call | None:
        """Find the event's call. Return None if it might precede the known events."""
        call = self.calls.get((event.branch, event.step, event.index))
        if call is None:
            message = self.messages.get((event.branch, event.step))
            if self.whole or message is not None:
                what = f"no message has a call {event.index} of step {event.step}"
                raise_violation("call-unknown", what, event, message or self.last)
            return None
        if call.message.tool_calls[event.index].id != event.call.id:
            raise_violation("call-other", "the call differs from that in the message", event, call.message)
        return call

    def _check_tool_start(self, event: ToolStartEvent) -> None:
        call = self._find_call(event)
        if call is None:
            return
        if call.ended is not None:
            raise_violation("start-late", "a call must not start after its end", event, call.ended)
        if call.started is not None and call.started.attempt == event.attempt:
            raise_violation("start-twice", "a call must start only once per attempt", event, call.started)
        call.started = event

    def _check_tool_complete(self, event: ToolCompleteEvent) -> None:
        call = self._find_call(event)
        if call is None:
            return
        if call.ended is not None:
            raise_violation("call-twice", "a call must be answered only once", event, call.ended)
        if event.duration and call.started is None and self.whole:
            raise_violation("start-missing", "a call with a duration must have a tool-start", event, call.message)
        call.ended = event
        del self.open[event.branch, event.step, event.index]

    def _check_question(self, event: QuestionEvent | InputReceivedEvent) -> None:
        asked = self.questions.get(event.input_id)
        if isinstance(event, QuestionEvent):
            if asked is not None and asked.attempt == event.attempt:
                raise_violation("question-twice", "a question must be asked only once per attempt", event, asked)
            self.questions[event.input_id] = event
            return
        if event.input_id in self.answers:
            raise_violation("answer-twice", "a question must have only one answer", event, self.answers[event.input_id])
        if asked is None and self.whole:
            raise_violation("answer-early", "an answer must follow its question", event, self.last)
        self.questions.pop(event.input_id, None)
        self.answers[event.input_id] = event
