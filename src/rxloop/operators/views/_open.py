"""What has begun in a stream of events and has not ended."""

from __future__ import annotations

from rxloop.protocol.events import (
    AuthRequiredEvent,
    ContentCompleteEvent,
    Event,
    InputReceivedEvent,
    InputRequiredEvent,
    LLMCallEvent,
    PendingInput,
    StatusUpdateEvent,
    ToolCompleteEvent,
    ToolStartEvent,
)
from rxloop.protocol.messages import ToolCall
from rxloop.protocol.visibility import public_question

Step = tuple[str, str | None, str | None]
"""A run, a branch of it, and a step on that."""
Slot = tuple[Step, int]
"""The place of a call in the message of a step."""


def begins_attempt(event: Event) -> bool:
    """Tell whether an event begins a later attempt of the run itself; a nested run has attempts of its own."""
    return isinstance(event, StatusUpdateEvent) and event.resumed and event.parent_task_id is None


def step_of(event: Event) -> Step:
    """Find the step that an event belongs to."""
    return event.task_id, event.branch, event.step


class OpenWork:
    """The open model calls, tool calls and questions of a run and of those nested in it."""

    def __init__(self) -> None:
        self.models: dict[Step, str] = {}
        """The names of the models that have not answered."""
        self.calls: dict[Slot, ToolCall] = {}
        self._questions: dict[tuple[str, str], tuple[Slot, PendingInput]] = {}
        self._above: dict[str, str] = {}
        """The run that a nested run belongs to, while it goes on."""

    @property
    def questions(self) -> list[str]:
        """The prompts of the questions that wait for an answer, as clients read them."""
        return [public_question(asked).prompt for _, asked in self._questions.values()]

    @property
    def works(self) -> bool:
        """Whether a tool is at work: one that waits for a person is not."""
        if not self._questions:
            return bool(self.calls)
        asking = self._asking
        return any(slot not in asking for slot in self.calls)

    @property
    def _asking(self) -> set[Slot]:
        return {slot for slot, _ in self._questions.values()}

    def awaited_calls(self) -> list[ToolCall]:
        """List the calls whose own work is awaited.

        If a run has only one call, and a nested run has something open, that call waits for the nested run.
        """
        busy = {step[0] for step in (*self.models, *(slot[0] for slot in self.calls))}
        above = {self._above[task_id] for task_id in busy if task_id in self._above}
        runs = [task_id for (task_id, _, _), _ in self.calls]
        return [
            call for ((task_id, _, _), _), call in self.calls.items() if task_id not in above or runs.count(task_id) > 1
        ]

    def take(self, event: Event) -> None:
        """Fold one more durable event."""
        if event.parent_task_id is not None:
            self._above.setdefault(event.task_id, event.parent_task_id)
        match event:
            case LLMCallEvent():
                self.models[step_of(event)] = event.model
            case ContentCompleteEvent():
                self.models.pop(step_of(event), None)
            case ToolStartEvent():
                self.calls[step_of(event), event.index] = event.call
            case ToolCompleteEvent():
                self._answered((step_of(event), event.index))
            case InputRequiredEvent() | AuthRequiredEvent():
                asked = event.input
                # A question that no call asks ends with none.
                slot = (event.task_id, event.branch, asked.step), asked.index if asked.call is not None else -1
                self._questions[event.task_id, event.input_id] = slot, asked
            case InputReceivedEvent():
                self._questions.pop((event.task_id, event.input_id), None)
            case StatusUpdateEvent() if event.final or begins_attempt(event):
                # The next attempt begins anew what this one had open. A question still waits.
                self._forget(event.task_id, questions=event.state not in ("input-required", "auth-required", "working"))
            case _:
                pass

    def _answered(self, slot: Slot) -> None:
        self.calls.pop(slot, None)
        self._questions = {key: asked for key, asked in self._questions.items() if asked[0] != slot}
        task_id = slot[0][0]
        if all(step[0] != task_id for step, _ in self.calls):
            # The call that passed on the events of nested runs has ended.
            self._forget_below(task_id)

    def _forget(self, task_id: str, *, questions: bool) -> None:
        self.models = {step: name for step, name in self.models.items() if step[0] != task_id}
        self.calls = {slot: call for slot, call in self.calls.items() if slot[0][0] != task_id}
        if questions:
            self._questions = {key: asked for key, asked in self._questions.items() if key[0] != task_id}
        self._forget_below(task_id)
        self._above.pop(task_id, None)

    def _forget_below(self, task_id: str) -> None:
        for below in [child for child, above in self._above.items() if above == task_id]:
            self._forget(below, questions=True)
