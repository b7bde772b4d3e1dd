"""What earlier attempts of a run have come to, by which the next attempt knows what it need not do or say again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rxloop.protocol.envelope import Event
from rxloop.protocol.events import (
    CheckpointEvent,
    ContentCompleteEvent,
    InputReceivedEvent,
    InputRequiredEvent,
    MessageAddedEvent,
    StageEvent,
    StatusUpdateEvent,
    TaskEvent,
    ThoughtStreamEvent,
    ToolCompleteEvent,
    ToolStartEvent,
)

Slot = tuple[str, int]


class Recorded:
    """The messages, the answers to calls, the calls that were cut off, and what a strategy has said itself."""

    def __init__(self) -> None:
        self.messages: dict[str, ContentCompleteEvent] = {}
        """The complete messages, by step."""
        self.results: dict[Slot, ToolCompleteEvent] = {}
        self.questions: dict[str, str] = {}
        """What was asked, by the id of the question."""
        self.interrupted: set[Slot] = set()
        """The calls that were started and have no end."""
        self._said: Counter[tuple[str | None, ...]] = Counter()

    def add(self, events: Iterable[Event]) -> None:
        """Note the events of a run, all that there are."""
        cut_off = self.interrupted
        asking: dict[str, Slot] = {}
        taken_over = 0
        for event in events:
            if event.parent_task_id is not None:
                continue
            said = _said(event)
            if said is not None:
                self._said[said] += 1
            if isinstance(event, TaskEvent):
                taken_over = event.fork_seq or 0
            elif isinstance(event, ContentCompleteEvent):
                if event.finish_reason != "canceled" and event.step:
                    self.messages[event.step] = event
            elif isinstance(event, ToolStartEvent):
                # What was begun in the run that this one is a fork of was not begun here.
                if event.seq > taken_over:
                    cut_off.add((event.step or "", event.index))
            elif isinstance(event, ToolCompleteEvent):
                self.results[event.step or "", event.index] = event
            elif isinstance(event, InputRequiredEvent):
                self.questions[event.input_id] = event.input.prompt
                if event.input.call is not None:
                    asking[event.input_id] = (event.input.step or "", event.input.index)
            elif isinstance(event, InputReceivedEvent):
                asking.pop(event.input_id, None)
            elif isinstance(event, StatusUpdateEvent) and (event.final or event.resumed):
                # A call that waited for an answer was left at its question, to be made again with the answer.
                cut_off.difference_update(asking.values())
        cut_off.difference_update(asking.values(), self.results)

    def knows(self, event: Event) -> bool:
        """Whether a new event is one that the log has already: a strategy that runs again makes it once more."""
        if not event.durable or event.parent_task_id is not None:
            return False
        if isinstance(event, ContentCompleteEvent):
            return event.step in self.messages
        if isinstance(event, ToolCompleteEvent):
            return (event.step or "", event.index) in self.results
        said = _said(event) if self._said else None
        if said is None or not self._said[said]:
            return False
        # The second of two equal events is known only if the log has two.
        self._said[said] -= 1
        return True


def _said(event: Event) -> tuple[str | None, ...] | None:
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
    if event.branch is None:
        return None
    if isinstance(event, MessageAddedEvent):
        return event.kind, event.branch, event.role, event.cause, str(event.content)
    return (event.kind, event.branch, event.input_id) if isinstance(event, InputRequiredEvent) else None
