"""The memory of earlier attempts of a run: what a resumed run goes on with, and must not repeat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from rxloop.protocol.envelope import Event
from rxloop.protocol.events import (
    WAITING,
    ArtifactUpdateEvent,
    CheckpointEvent,
    ContentCompleteEvent,
    InputReceivedEvent,
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
from rxloop.state.fold import fold_all
from rxloop.state.history import Slot
from rxloop.state.run_state import RunState


class AskedQuestion(NamedTuple):
    """A question of an earlier attempt."""

    question: PendingInput
    slot: Slot | None
    """The slot of the tool call; None for a question outside a tool call."""
    precedes_start: bool
    """True if the question was asked before the `tool-start` event."""


class EarlierAttempts:
    """The state that they leave, and what the next attempt need not do again.

    Nothing but `take` changes it after it is made, and `results`, where a fork has other ones.
    """

    def __init__(self, events: Sequence[Event] = (), before: RunState | None = None, taken_over: int = 0) -> None:
        """Fold the events of a run, all that there are.

        Args:
            events: In order.
            before: The state that the earlier runs of the conversation leave.
            taken_over: The last `seq` of what was done in another run, which this one is a fork of.
        """
        self.born: dict[str, RunState] = {}
        """The states in which the branches began."""
        self.state = fold_all(events, before, self.born)
        """That of the main line, after all events."""
        self.messages: dict[str, ContentCompleteEvent] = {}
        """The complete messages, by step."""
        self.results: dict[Slot, ToolCompleteEvent] = {}
        """The answers to calls."""
        self.questions: dict[str, str | None] = {}
        """What was asked, by the id of the question; None where the answer was a credential, and is gone."""
        self.notes: dict[Slot, dict[str, Any]] = {}
        """The metadata of the last question of each call."""
        self.asked_by: dict[Slot, str] = {}
        """Of each call that has asked something the kind of its last question."""
        self.undecided: dict[str, AskedQuestion] = {}
        """Questions of unfinished tool calls and questions outside tool calls, by input id.

        Questions that precede a `tool-start` are removed when the tool starts, because their answers were used."""
        self.interrupted: set[Slot] = set()
        """The calls that were started and have no end."""
        self.below: list[Event] = []
        """What nested runs have said."""
        self._taken_up: set[str] = set()
        """The nested runs that go on in this attempt."""
        self._secret: set[str] = set()
        self._remade: Counter[tuple[str | None, ...]] = Counter()
        """How many of what a strategy makes once more are still to come."""
        self._taken_over = taken_over
        self._running: set[Slot] = set()
        asking: dict[str, Slot] = {}
        for event in events:
            if event.parent_task_id is not None:
                self.below.append(event)
                continue
            if isinstance(event, TaskEvent):
                self._taken_over = event.fork_seq or taken_over
            # What was begun in the run that this one is a fork of was not begun here.
            self._note(event, asking, begun=event.seq > self._taken_over)
        self.interrupted.difference_update(asking.values(), self.results)

    def take_up(self, task_id: str) -> list[Event]:
        """Return the events of a nested run as those of a run that is not nested; this attempt continues it."""
        self._taken_up.add(task_id)
        family, events = {task_id}, list[Event]()
        for event in self.below:
            if event.task_id == task_id:
                events.append(event.model_copy(update={"parent_task_id": None, "agent_path": ()}))
            elif event.parent_task_id in family:
                family.add(event.task_id)
                events.append(event)
        return events

    def fold_nested(self, events: Sequence[Event]) -> EarlierAttempts:
        """Return the earlier attempts of the nested run that has these events."""
        return EarlierAttempts(events, taken_over=self._taken_over)

    def left(self, above: str) -> list[Event]:
        """Find the nested runs below a run that have not ended, and that nobody has taken up: an event of each.

        Returns:
            The innermost first.
        """
        family, left = {above}, dict[str, Event]()
        for event in self.below:
            if not event.agent_path or event.parent_task_id not in family or event.task_id in self._taken_up:
                continue
            family.add(event.task_id)
            if isinstance(event, StatusUpdateEvent) and event.final and event.state not in WAITING:
                left.pop(event.task_id, None)
            elif isinstance(event, TaskEvent | StatusUpdateEvent):
                left[event.task_id] = event
        return sorted(left.values(), key=lambda event: -len(event.agent_path))

    def is_taken_up(self, task_id: str) -> bool:
        """True if this attempt continues the nested run."""
        return task_id in self._taken_up

    def addressed(self, answer: InputReceivedEvent) -> InputReceivedEvent:
        """Give an answer the ids of the nested run that has asked for it, if it was one."""
        for asked in reversed(self.below):
            if isinstance(asked, QuestionEvent) and asked.input_id == answer.input_id:
                ids = {name: getattr(asked, name) for name in _ADDRESS}
                answer = answer.model_copy(update={**ids, "metadata": {**asked.metadata, **answer.metadata}})
                self.below.append(answer)
                break
        return answer

    def _note(self, event: Event, asking: dict[str, Slot], *, begun: bool) -> None:
        key = _remade_by(event)
        # The artifacts of the run that this one is a fork of are those of another conversation.
        if key is not None and (begun or not isinstance(event, ArtifactUpdateEvent)):
            self._remade[key] += 1
        if isinstance(event, ContentCompleteEvent):
            if event.finish_reason != "canceled" and event.step:
                self.messages[event.step] = event
        elif isinstance(event, ToolStartEvent):
            slot = (event.step or "", event.index)
            self._forget_questions(slot, precedes_start=True)
            self._running.add(slot)
            if begun:
                self.interrupted.add(slot)
        elif isinstance(event, ToolCompleteEvent):
            slot = (event.step or "", event.index)
            self._forget_questions(slot)
            self.results[slot] = event
        elif isinstance(event, QuestionEvent):
            self.questions[event.input_id] = event.input.prompt
            if event.input.secret:
                self._secret.add(event.input_id)
            slot = None if event.input.call is None else (event.input.step or "", event.input.index)
            self.undecided[event.input_id] = AskedQuestion(event.input, slot, slot not in self._running)
            if slot is not None:
                asking[event.input_id] = slot
                self.notes[slot] = event.metadata
                self.asked_by[slot] = event.input.input_kind
        elif isinstance(event, InputReceivedEvent):
            asking.pop(event.input_id, None)
            if event.input_id in self._secret:
                self.questions[event.input_id] = None
        elif isinstance(event, StatusUpdateEvent) and (event.final or event.resumed):
            # A call that waited for an answer was left at its question, to be made again with the answer.
            self.interrupted.difference_update(asking.values())
            self._running.clear()

    def _forget_questions(self, slot: Slot, *, precedes_start: bool = False) -> None:
        """Remove the questions of a tool call."""
        if self.undecided:
            self.undecided = {
                input_id: asked
                for input_id, asked in self.undecided.items()
                if asked.slot != slot or (precedes_start and not asked.precedes_start)
            }

    def has(self, event: Event, task_id: str, attempt: int) -> bool:
        """Return True if an earlier attempt recorded an event, which is replayed or created again by a strategy.

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
        key = _remade_by(event) if self._remade else None
        return key is not None and self._remade[key] > 0

    def take(self, event: Event, attempt: int) -> None:
        """Count a recorded event that a strategy created again: if it creates two, the log must have two."""
        key = None if 0 < event.attempt < attempt else _remade_by(event)
        if key is not None:
            self._remade[key] -= 1


_ADDRESS = ("task_id", "parent_task_id", "agent_path", "step", "branch")


@cache
def no_attempts() -> EarlierAttempts:
    """Give the earlier attempts of every new run."""
    return EarlierAttempts()


def _remade_by(event: Event) -> tuple[str | None, ...] | None:
    """What tells the events apart that a strategy makes once more; None for an event that only comes if it is new.

    On the main line everything goes on where it stood, but for the stages and thoughts of a strategy, and for the end
    of an iteration that is looked at once more. Equal events are counted and not compared by their place, since lines
    that go on side by side mix in another order each time.
    """
    if isinstance(event, StageEvent):
        # That of a thinking session comes from a tool.
        if event.session_id is not None:
            return None
        return event.kind, event.branch, event.strategy, event.from_stage, event.to_stage, str(event.accepted)
    if isinstance(event, ThoughtStreamEvent):
        own = event.source == "strategy"
        return (event.kind, event.branch, event.thought_id) if own else None
    if isinstance(event, CheckpointEvent):
        return event.kind, event.branch, event.step, str(event.message_count)
    if isinstance(event, ArtifactUpdateEvent):
        # A call that is made once more writes nothing twice, and gives the chunks that it has written before.
        return event.kind, event.artifact_id, str(event.artifact_version), str(event.index)
    if event.branch is None:
        return None
    if isinstance(event, MessageAddedEvent):
        return event.kind, event.branch, event.role, event.cause, str(event.content)
    return (event.kind, event.branch, event.input_id) if isinstance(event, QuestionEvent) else None
