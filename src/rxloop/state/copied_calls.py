"""Calls that are still open at the end of the events that a fork copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rxloop.protocol.envelope import STARTED_CALLS
from rxloop.protocol.events import (
    AuthRequiredEvent,
    ContentCompleteEvent,
    Event,
    InputReceivedEvent,
    InputRequiredEvent,
    StatusUpdateEvent,
    SubtaskEvent,
    TaskEvent,
    ToolCompleteEvent,
    ToolStartEvent,
)
from rxloop.protocol.ids import make_idempotency_key


class Step(NamedTuple):
    """Model call of a run. The step is None for work outside of model calls."""

    run: str
    """Calls that lead to a nested run, or an empty string. Unlike the run's id, it is the same in a fork."""
    step: str | None


class Call(NamedTuple):
    """Tool call of a run."""

    run: str
    step: str | None
    place: int


class _Question(NamedTuple):
    asker: Call | Step
    is_for_client: bool
    """True if the client executes the call."""


class RunCalls:
    """Calls and questions of a run and its nested runs, or of the first part of a run."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.task_ids: dict[str, str] = {}
        """Id of each run, by the calls that lead to it."""
        self._runs: dict[str, str] = {}
        self._callers: dict[str, Call] = {}
        """Call that started each nested run."""
        self.keys: dict[Call, str | None] = {}
        """Idempotency keys of started calls, including those that the original of this run started."""
        self._completed: set[Call] = set()
        self._message_sizes: dict[Step, int] = {}
        """Number of calls of each complete message."""
        self._last_work: dict[str, int] = {}
        """The `seq` of the last event of each run that is not part of a question."""
        self._questions: dict[str, _Question] = {}
        self._answers: dict[str, int] = {}
        """The `seq` of each answer."""
        self._waited: set[Call | Step] = set()
        """Calls that have not started since their last question or answer."""
        self._discarded: set[str] = set()
        for event in events:
            self._add(event)
        self.is_idle = not events or (isinstance(events[-1], StatusUpdateEvent) and events[-1].final)
        """True if the run does not continue without an answer."""

    def _add(self, event: Event) -> None:
        if event.parent_task_id is None:
            self._runs[event.task_id] = ""
            self.task_ids[""] = event.task_id
        run = self._runs.get(event.task_id)
        if run is None:
            # Forwarded from a run that does not belong to this one.
            return
        match event:
            case InputRequiredEvent() | AuthRequiredEvent():
                step = Step(run, event.input.step)
                asker = step if event.input.call is None else Call(*step, event.input.index)
                self._questions[event.input_id] = _Question(asker, event.input.input_kind == "tool")
                self._waited.add(asker)
                return
            case InputReceivedEvent():
                self._answers[event.input_id] = event.seq
                if (question := self._questions.get(event.input_id)) is not None:
                    self._waited.add(question.asker)
                return
            case StatusUpdateEvent():
                self._discarded.update(event.discarded)
                self._add_started_calls(event)
                return
            case TaskEvent():
                return
            case ContentCompleteEvent() if event.finish_reason != "canceled":
                self._message_sizes[Step(run, event.step)] = len(event.tool_calls)
            case ToolStartEvent():
                self._add_start(Call(run, event.step, event.index), event.idempotency_key)
            case ToolCompleteEvent():
                self._completed.add(Call(run, event.step, event.index))
            case SubtaskEvent():
                self._add_nested_run(event.subtask_id, Call(run, event.step, event.index))
            case _:
                pass
        self._last_work[run] = event.seq

    def _add_nested_run(self, task_id: str, caller: Call) -> None:
        run = f"{caller.run}/{caller.step}:{caller.place}"
        self._runs.setdefault(task_id, run)
        self._callers.setdefault(run, caller)
        self.task_ids.setdefault(run, task_id)

    def _add_started_calls(self, event: StatusUpdateEvent) -> None:
        """Add calls that the original of this run started."""
        started: dict[str, str | None] = event.metadata.get(STARTED_CALLS, {})
        for call in self.list_open_calls() if started else ():
            own_key = self.own_key(call)
            if own_key in started:
                self._add_start(call, started[own_key])

    def _add_start(self, call: Call, key: str | None) -> None:
        self.keys[call] = key
        self._waited.discard(call)

    def own_key(self, call: Call) -> str:
        """Return the idempotency key of a call in this run."""
        return make_idempotency_key(self.task_ids[call.run], (call.step, call.place))

    def list_open_calls(self) -> list[Call]:
        """Return the open calls of unfinished runs."""
        return [
            call
            for step, size in self._message_sizes.items()
            if not self._is_over(step.run)
            for call in (Call(*step, index) for index in range(size))
            if call not in self._completed
        ]

    def is_waiting(self, call: Call) -> bool:
        """Return True if a call is waiting for the answer to a question."""
        return any(
            question.asker == call and input_id not in self._answers for input_id, question in self._questions.items()
        )

    def is_for_client(self, call: Call) -> bool:
        """Return True if a call was passed to the client."""
        return any(question.asker == call and question.is_for_client for question in self._questions.values())

    def find_discarded(self) -> list[str]:
        """Return the ids of questions that a fork must ask again.

        The answer to a question does not count if the work that needed it was not completed: the call that asked, the
        model call during which an operator asked, or the next work of the run for other questions. If a call has such
        an answer, its other questions are asked again as well, because the call starts again.
        """
        questions = {key: question for key, question in self._questions.items() if key not in self._discarded}
        askers = {
            question.asker
            for input_id, question in questions.items()
            if input_id in self._answers and self._is_unfinished(question.asker, self._answers[input_id])
        }
        return [input_id for input_id, question in questions.items() if question.asker in askers]

    def _is_unfinished(self, asker: Call | Step, answered_at: int) -> bool:
        if self._is_over(asker.run):
            return False
        if isinstance(asker, Call):
            return asker not in self._completed
        if asker.step is not None:
            size = self._message_sizes.get(asker)
            if size is None or any(Call(*asker, index) not in self._completed for index in range(size)):
                return True
        return self._last_work.get(asker.run, 0) < answered_at

    def _is_over(self, run: str) -> bool:
        """Return True if the call of a nested run, or of a run above it, was completed."""
        while (caller := self._callers.get(run)) is not None:
            if caller in self._completed:
                return True
            run = caller.run
        return False

    def list_started_calls(self) -> dict[Call, str | None]:
        """Return the idempotency keys of open calls that have started, except if they have asked a question since."""
        return {
            call: self.keys[call] for call in self.list_open_calls() if call in self.keys and call not in self._waited
        }

    def list_later_calls(self, copied: RunCalls) -> dict[Call, str | None]:
        """Return the calls that are open after the copied events and that this run has started, or is about to start.

        Args:
            copied: Calls of the copied events.

        Returns:
            The idempotency key of each call. None for calls that must not be repeated even if their tool is idempotent,
            because a run below them started calls that the model would have to request again.
        """
        started: dict[Call, str | None] = {}
        open_now = frozenset(self.list_open_calls())
        for call in copied.list_open_calls():
            if call in open_now and self.is_waiting(call):
                # It starts again after the answer.
                continue
            if call in self.keys:
                started[call] = None if self._has_new_nested_call(call, copied) else self.keys[call]
            elif call in open_now and not self.is_idle:
                started[call] = self.own_key(call)
        return started

    def _has_new_nested_call(self, call: Call, copied: RunCalls) -> bool:
        """Return True if a run below a call started a call of the server that the copied events do not request."""
        run = f"{call.run}/{call.step}:{call.place}"
        return any(
            (each.run == run or each.run.startswith(f"{run}/"))
            and Step(each.run, each.step) not in copied._message_sizes
            and not self.is_for_client(each)
            for each in self.keys
        )
