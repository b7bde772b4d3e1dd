"""Memory of earlier attempts, so that a resumed run continues them without repeating work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

from rxloop.protocol.envelope import STARTED_CALLS, Event
from rxloop.protocol.events import (
    WAITING,
    ArtifactUpdateEvent,
    CheckpointEvent,
    ContentCompleteEvent,
    InputReceivedEvent,
    LLMCallEvent,
    LLMFailedEvent,
    MessageAddedEvent,
    PendingInput,
    QuestionEvent,
    StageEvent,
    StatusUpdateEvent,
    TaskEvent,
    ThoughtStreamEvent,
    ToolCompleteEvent,
    ToolStartEvent,
)
from rxloop.protocol.ids import make_idempotency_key
from rxloop.protocol.messages import ToolCall
from rxloop.protocol.refusals import is_refusal
from rxloop.state.fold import fold_all
from rxloop.state.history import INTERRUPTED, Slot
from rxloop.state.run_state import RunState, needs_change
from rxloop.state.side_events import discard_questions
from rxloop.support.threads import free_in_thread


class AskedQuestion(NamedTuple):
    """Question of an earlier attempt."""

    question: PendingInput
    slot: Slot | None
    """Tool call slot, if the question was asked by a tool call."""
    precedes_start: bool
    """True if the question was asked before the `tool-start` event."""


class EarlierAttempts:
    """State after the earlier attempts, and work that the next attempt must not repeat.

    After creation, only `count_recreated` changes it, and forks replace `results`.
    """

    def __init__(
        self, events: Sequence[Event] = (), before: RunState | None = None, parent: EarlierAttempts | None = None
    ) -> None:
        """Fold all events of a run.

        Args:
            events: All events of the run, in order.
            before: State after the earlier runs of the conversation.
            parent: Earlier attempts of the outermost run, if this run is nested.
        """
        self.messages: dict[str, ContentCompleteEvent] = {}
        """Complete messages by step."""
        self.results: dict[Slot, ToolCompleteEvent] = {}
        """Results of tool calls."""
        self.branch_states: dict[str, RunState] = {}
        """Initial branch states."""
        self.state = fold_all(events, before, self.branch_states)
        """State of the main branch after all events."""
        self.questions: dict[str, str | None] = {}
        """Prompts by question id. If the answer was a credential, the prompt is set to None."""
        self.approvals: dict[str, ToolCall] = {}
        """Calls that a person was asked to approve, by question id."""
        self.notes: dict[Slot, dict[str, Any]] = {}
        """Metadata of the last question, by call."""
        self.question_kinds: dict[Slot, str] = {}
        """Kind of the last question, by call."""
        self.undecided: dict[str, AskedQuestion] = {}
        """Undecided questions of unfinished tool calls and questions outside of tool calls, by input id.

        Questions that precede a `tool-start` are removed when the tool starts, because their answers were used."""
        self.interrupted: set[Slot] = set()
        """Started but unfinished calls."""
        self.started_calls: dict[str, str | None] = {} if parent is None else parent.started_calls
        """Open calls of a fork that its original run started; see `STARTED_CALLS`."""
        self.discarded: dict[str, Any] = {} if parent is None else parent.discarded
        """Copied answers that do not count in a fork, by question id. None if the question was not answered."""
        self.call_count = 0
        """Number of model calls on all branches. Excludes interrupted calls, which the next attempt repeats, and
        requests that `iterate` repeated."""
        self.request_texts: set[str] = set()
        """Digests of the texts in recorded requests, including those of nested runs."""
        self.nested_events: list[Event] = []
        """Events of nested runs."""
        self._resumed: set[str] = set()
        """Ids of nested runs that this attempt resumed."""
        self._secret: set[str] = set()
        self._recreatable: Counter[tuple[str | None, ...]] = Counter()
        """Number of recorded events still to be recreated by the strategy."""
        self._copied_seq = 0 if parent is None else parent._copied_seq
        self._running: set[Slot] = set()
        self._open_calls: dict[str | None, LLMFailedEvent | None] = {}
        """Open model calls by step, with their last failures."""
        self._last_questions: dict[Slot, str] = {}
        asking: dict[str, Slot] = {}
        for event in events:
            if isinstance(event, LLMCallEvent) and event.request is not None:
                self.request_texts.update(event.request.texts)
            if event.parent_task_id is not None:
                self.nested_events.append(event)
                continue
            if isinstance(event, TaskEvent):
                self._copied_seq = event.fork_seq or self._copied_seq
            # A fork records the open calls that its original run started.
            self._add(event, asking, is_own=event.seq > self._copied_seq)
        self.interrupted.difference_update(asking.values(), self.results)
        self._forget_open_calls()
        if self.discarded:
            self.discard(self.discarded, events)

    def __del__(self) -> None:
        free_in_thread([[*self.messages.values(), *self.results.values()]])

    def discard(self, input_ids: Iterable[str], events: Iterable[Event]) -> None:
        """Discard copied questions, because a fork asks them again under new ids.

        Refusals are kept in `undecided`, because they still count if no code asks again.

        Args:
            input_ids: Ids of the questions.
            events: All events of the run.
        """
        answers = {event.input_id: event.value for event in events if isinstance(event, InputReceivedEvent)}
        for input_id in list(input_ids):
            answer = self.discarded[input_id] = answers.get(input_id, self.discarded.get(input_id))
            if input_id not in self.questions:
                continue
            self.questions[input_id] = None
            for slot in [slot for slot, last_id in self._last_questions.items() if last_id == input_id]:
                self.notes.pop(slot, None)
            if input_id not in answers or not is_refusal(answer):
                self.undecided.pop(input_id, None)
        self.state = self.state.replace(**discard_questions(self.state, self.discarded))

    def explain_no_repeat(self, task_id: str, slot: Slot, *, idempotent: bool) -> str | None:
        """Return why a call must not be executed again, as the message for the model. None if it may be executed.

        Args:
            task_id: Id of the run that makes the call.
            slot: Call.
            idempotent: Whether the tool can be called again safely.
        """
        if slot not in self.interrupted and not self.started_calls:
            return None
        key = make_idempotency_key(task_id, slot)
        is_started = slot in self.interrupted or key in self.started_calls
        is_repeatable = idempotent and self.started_calls.get(key, key) is not None
        return INTERRUPTED if is_started and not is_repeatable else None

    def find_idempotency_key(self, task_id: str, slot: Slot) -> str:
        """Return the idempotency key of a call. A call that repeats a call of the original run keeps its key."""
        key = make_idempotency_key(task_id, slot)
        return self.started_calls.get(key) or key

    def resume_nested(self, task_id: str) -> list[Event]:
        """Mark a nested run as resumed. Return its events, converted to events of a root run."""
        self._resumed.add(task_id)
        family, events = {task_id}, list[Event]()
        for event in self.nested_events:
            if event.task_id == task_id:
                events.append(event.model_copy(update={"parent_task_id": None, "agent_path": ()}))
            elif event.parent_task_id in family:
                family.add(event.task_id)
                events.append(event)
        return events

    def fold_nested(self, events: Sequence[Event]) -> EarlierAttempts:
        """Return the earlier attempts of a nested run with these events."""
        return EarlierAttempts(events, parent=self)

    def list_unfinished(self, parent: str, *, keep_waiting: bool) -> list[Event]:
        """Find unfinished nested runs below a run that this attempt has not resumed.

        Args:
            parent: Id of the run.
            keep_waiting: Whether to omit nested runs that wait for an answer.

        Returns:
            One event per run, innermost runs first.
        """
        family, unfinished = {parent}, dict[str, Event]()
        for event in self.nested_events:
            if not event.agent_path or event.parent_task_id not in family or event.task_id in self._resumed:
                continue
            family.add(event.task_id)
            if isinstance(event, StatusUpdateEvent) and event.final and (keep_waiting or event.state not in WAITING):
                unfinished.pop(event.task_id, None)
            elif isinstance(event, TaskEvent | StatusUpdateEvent):
                unfinished[event.task_id] = event
        return sorted(unfinished.values(), key=lambda event: -len(event.agent_path))

    def is_resumed(self, task_id: str) -> bool:
        """Return True if this attempt resumed the nested run."""
        return task_id in self._resumed

    def address_answer(self, answer: InputReceivedEvent) -> InputReceivedEvent:
        """Add the ids of the nested run that asked, if any."""
        for asked in reversed(self.nested_events):
            if isinstance(asked, QuestionEvent) and asked.input_id == answer.input_id:
                ids = {name: getattr(asked, name) for name in _ADDRESS}
                answer = answer.model_copy(update={**ids, "metadata": {**asked.metadata, **answer.metadata}})
                self.nested_events.append(answer)
                break
        return answer

    def _add(self, event: Event, asking: dict[str, Slot], *, is_own: bool) -> None:
        key = _recreation_key(event)
        # Artifacts before the fork belong to another conversation.
        if key is not None and (is_own or not isinstance(event, ArtifactUpdateEvent)):
            self._recreatable[key] += 1
        if isinstance(event, LLMCallEvent):
            failure = self._open_calls.get(event.step)
            self.call_count += failure is None or not needs_change(failure)
            self._open_calls[event.step] = None
        elif isinstance(event, LLMFailedEvent):
            if event.step in self._open_calls:
                self._open_calls[event.step] = event
        elif isinstance(event, ContentCompleteEvent):
            self._open_calls.pop(event.step, None)
            if event.finish_reason != "canceled" and event.step:
                self.messages[event.step] = event
        elif isinstance(event, ToolStartEvent):
            slot = (event.step or "", event.index)
            self._forget_questions(slot, precedes_start=True)
            self._running.add(slot)
            if is_own:
                self.interrupted.add(slot)
        elif isinstance(event, ToolCompleteEvent):
            slot = (event.step or "", event.index)
            self._forget_questions(slot)
            self.results[slot] = event
        elif isinstance(event, QuestionEvent):
            self.questions[event.input_id] = event.input.prompt
            if event.input.call is not None and event.input.input_kind == "confirmation":
                self.approvals[event.input_id] = event.input.call
            if event.input.secret:
                self._secret.add(event.input_id)
            slot = None if event.input.call is None else (event.input.step or "", event.input.index)
            self.undecided[event.input_id] = AskedQuestion(event.input, slot, slot not in self._running)
            if slot is not None:
                asking[event.input_id] = slot
                self._last_questions[slot] = event.input_id
                self.notes[slot] = event.metadata
                self.question_kinds[slot] = event.input.input_kind
        elif isinstance(event, InputReceivedEvent):
            asking.pop(event.input_id, None)
            if event.input_id in self._secret:
                self.questions[event.input_id] = None
        elif isinstance(event, StatusUpdateEvent) and (event.final or event.resumed):
            # Calls waiting for an answer are repeated when it arrives, so they are not interrupted.
            self.interrupted.difference_update(asking.values())
            self._running.clear()
            self._forget_open_calls()
            self.started_calls.update(event.metadata.get(STARTED_CALLS, {}))
            self.discarded.update(dict.fromkeys(event.discarded))

    def _forget_open_calls(self) -> None:
        self.call_count -= len(self._open_calls)
        self._open_calls.clear()

    def _forget_questions(self, slot: Slot, *, precedes_start: bool = False) -> None:
        """Remove a call's questions."""
        if self.undecided:
            self.undecided = {
                input_id: asked
                for input_id, asked in self.undecided.items()
                if asked.slot != slot or (precedes_start and not asked.precedes_start)
            }

    def contains(self, event: Event, task_id: str, attempt: int) -> bool:
        """Return True if the event was already recorded by an earlier attempt.

        Args:
            event: Event of an attempt that continues the run.
            task_id: Id of the run.
            attempt: Number of the attempt.
        """
        if 0 < event.attempt < attempt:
            return event.task_id == task_id
        if not event.durable or event.parent_task_id is not None:
            return False
        if isinstance(event, ContentCompleteEvent):
            return event.step in self.messages
        if isinstance(event, ToolCompleteEvent):
            return (event.step or "", event.index) in self.results
        key = _recreation_key(event) if self._recreatable else None
        return key is not None and self._recreatable[key] > 0

    def count_recreated(self, event: Event, attempt: int) -> None:
        """Decrement the count of a recreated event. Equal events may be recorded several times."""
        key = None if 0 < event.attempt < attempt else _recreation_key(event)
        if key is not None:
            self._recreatable[key] -= 1


_ADDRESS = ("task_id", "parent_task_id", "agent_path", "step", "branch")


@cache
def no_attempts() -> EarlierAttempts:
    """Return the shared object for new runs."""
    return EarlierAttempts()


def _recreation_key(event: Event) -> tuple[str | None, ...] | None:
    """Return a key for events that strategies create again when a run is resumed, or None for other events.

    The main branch continues where it stopped. Only stages, strategy thoughts and the end of an iteration are repeated.
    The order of parallel branches may change, so equal events are counted and their positions are ignored.
    """
    if isinstance(event, StageEvent):
        # Stages of thinking sessions are published by tools.
        if event.session_id is not None:
            return None
        return event.kind, event.branch, event.strategy, event.from_stage, event.to_stage, str(event.accepted)
    if isinstance(event, ThoughtStreamEvent):
        own = event.source == "strategy"
        return (event.kind, event.branch, event.thought_id) if own else None
    if isinstance(event, CheckpointEvent):
        return event.kind, event.branch, event.step, str(event.message_count)
    if isinstance(event, ArtifactUpdateEvent):
        # A repeated call does not write again, but publishes the recorded chunks again.
        return event.kind, event.artifact_id, str(event.artifact_version), str(event.index)
    if event.branch is None:
        return None
    if isinstance(event, MessageAddedEvent):
        return event.kind, event.branch, event.role, event.cause, str(event.content)
    return (event.kind, event.branch, event.input_id) if isinstance(event, QuestionEvent) else None
