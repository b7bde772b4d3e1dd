"""View for silent runs, and the tracking of open work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from rxloop.operators.views import View
from rxloop.operators.views.make_view import ViewOutput, make_view
from rxloop.protocol.events import (
    WAITING,
    AuthRequiredEvent,
    ContentCompleteEvent,
    Event,
    GapEvent,
    InputReceivedEvent,
    InputRequiredEvent,
    LLMCallEvent,
    PendingInput,
    StatusUpdateEvent,
    ToolCompleteEvent,
    ToolStartEvent,
    ends_attempt,
)
from rxloop.protocol.messages import ToolCall
from rxloop.protocol.visibility import public_question
from rxloop.support.misuse import check_positive

Step = tuple[str, str | None, str | None]
"""Run, branch and step."""
Slot = tuple[Step, int]
"""Step and index to identify a tool call."""


def begins_attempt(event: Event) -> bool:
    """Return True if an event starts a later attempt of the root run."""
    return isinstance(event, StatusUpdateEvent) and event.resumed and event.parent_task_id is None


def get_step(event: Event) -> Step:
    """Return the step for an event."""
    return event.task_id, event.branch, event.step


class Activity:
    """Open model calls, tool calls and questions in a run, including nested runs."""

    def __init__(self) -> None:
        self.models: dict[Step, str] = {}
        """Model names of pending calls."""
        self.calls: dict[Slot, ToolCall] = {}
        self._questions: dict[tuple[str, str], tuple[Slot, PendingInput]] = {}
        self._parents: dict[str, str] = {}
        """Parent run of each active nested run."""

    @property
    def questions(self) -> list[str]:
        """Pending questions in their public form."""
        return [public_question(question).prompt for _, question in self._questions.values()]

    @property
    def has_running_tool(self) -> bool:
        """True if a tool is running. A tool that waits for a person is not."""
        if not self._questions:
            return bool(self.calls)
        asking = self._asking
        return any(slot not in asking for slot in self.calls)

    @property
    def _asking(self) -> set[Slot]:
        return {slot for slot, _ in self._questions.values()}

    def awaited_calls(self) -> list[ToolCall]:
        """Return the tool calls that are running themselves.

        The only call of a run is omitted while a nested run is active, because it waits for the nested run.
        """
        busy = {step[0] for step in (*self.models, *(slot[0] for slot in self.calls))}
        parents = {self._parents[task_id] for task_id in busy if task_id in self._parents}
        runs = [task_id for (task_id, _, _), _ in self.calls]
        return [
            call
            for ((task_id, _, _), _), call in self.calls.items()
            if task_id not in parents or runs.count(task_id) > 1
        ]

    def add(self, event: Event) -> None:
        """Add a durable event."""
        if event.parent_task_id is not None:
            self._parents.setdefault(event.task_id, event.parent_task_id)
        match event:
            case LLMCallEvent():
                self.models[get_step(event)] = event.model
            case ContentCompleteEvent():
                self.models.pop(get_step(event), None)
            case ToolStartEvent():
                self.calls[get_step(event), event.index] = event.call
            case ToolCompleteEvent():
                self._close_call((get_step(event), event.index))
            case InputRequiredEvent() | AuthRequiredEvent():
                question = event.input
                # This question is not from a tool call.
                slot = (event.task_id, event.branch, question.step), question.index if question.call is not None else -1
                self._questions[event.task_id, event.input_id] = slot, question
            case InputReceivedEvent():
                self._questions.pop((event.task_id, event.input_id), None)
            case StatusUpdateEvent() if event.final or begins_attempt(event):
                # The next attempt restarts the open calls, but questions stay open.
                self._remove_run(event.task_id, questions=event.state not in (*WAITING, "working"))
                self._questions = {key: each for key, each in self._questions.items() if key[1] not in event.discarded}
            case _:
                pass

    def _close_call(self, slot: Slot) -> None:
        self.calls.pop(slot, None)
        self._questions = {key: question for key, question in self._questions.items() if question[0] != slot}
        task_id = slot[0][0]
        if all(step[0] != task_id for step, _ in self.calls):
            # Nested runs cannot outlive the calls of their parent.
            self._remove_children(task_id)

    def _remove_run(self, task_id: str, *, questions: bool) -> None:
        self.models = {step: name for step, name in self.models.items() if step[0] != task_id}
        self.calls = {slot: call for slot, call in self.calls.items() if slot[0][0] != task_id}
        if questions:
            self._questions = {key: question for key, question in self._questions.items() if key[0] != task_id}
        self._remove_children(task_id)
        self._parents.pop(task_id, None)

    def _remove_children(self, task_id: str) -> None:
        for child in [child for child, parent in self._parents.items() if parent == task_id]:
            self._remove_run(child, questions=True)


@dataclass(frozen=True, slots=True)
class Stall:
    """Silence of an active run."""

    seconds: float
    """Silence duration in seconds, rounded down to a multiple of the configured interval."""
    models: tuple[str, ...] = ()
    """Model names of pending calls."""
    calls: tuple[ToolCall, ...] = ()
    """Running tool calls, excluding calls waiting for nested runs."""
    questions: tuple[str, ...] = ()
    """Prompts of the open questions. For a hidden tool, this is the prompt shown to clients."""

    @property
    def awaits(self) -> Literal["input", "tool", "model", "run"]:
        """Awaited resource with the highest priority: input, tool, model or the run itself."""
        if self.questions:
            return "input"
        return "tool" if self.calls else "model" if self.models else "run"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of awaited tools or models, or prompts of pending questions."""
        names = {"input": self.questions, "tool": tuple(call.name for call in self.calls), "model": self.models}
        return names.get(self.awaits, ())

    def __str__(self) -> str:
        # This text is shown to clients when it is used as the reason of a cancel.
        names = (
            ["(hidden)" if call.hidden else call.name for call in self.calls] if self.awaits == "tool" else self.names
        )
        waits = " ".join(part for part in (self.awaits, ", ".join(names)) if part)
        return f"nothing came for {self.seconds:g} s; awaited: {waits}"


def stalled(seconds: float) -> View[Event, Stall]:
    """Emit a `Stall` when an active run has been silent for the given time, and again after each further period.

    A stall is not an error: the view continues, and starts over with the next event. Time is measured with the
    scheduler of the subscription, which for a view of a run is the run's scheduler. For past events, their timestamps
    are used, so that late subscribers and replays at the original speed or faster get the same stalls. Time between
    attempts is not counted.

    ::

        source         --l--d----------d--c--F|      l llm-call, d delta
        stalled(4)     ---------M4--M8--------|      M4 a model is awaited, for 4 s so far

    Example:
        >>> run.pipe(op.stalled(30), rx.filter(lambda stall: stall.awaits == "model")).subscribe(switch)

    Args:
        seconds: Length of a silence in seconds.

    Returns:
        View of the stalls.

    Raises:
        ConfigurationError: The time is not positive. Raised immediately.
    """
    check_positive(seconds=seconds)

    def watch(out: ViewOutput[Stall]) -> Callable[[Event], None]:
        return _Silence(seconds, out).handle

    return make_view(watch)


class _Silence:
    """Silence timer for one subscriber."""

    def __init__(self, seconds: float, out: ViewOutput[Stall]) -> None:
        self._seconds, self._out, self._now = seconds, out, out.now
        self._open = Activity()
        self._began = self._now()
        self._emitted = 0
        """Number of stalls in this silence."""
        self._before = 0
        """Latest timestamp of the current attempt in milliseconds."""
        self._ended = False
        self._timer = out.schedule(seconds, self._check)

    def handle(self, event: Event) -> None:
        if type(event) is GapEvent:
            return  # gap events have no timestamp of their own
        if event.durable and begins_attempt(event):
            self._before = 0
        if self._before and not self._ended:
            self._emit_stalls((event.timestamp - self._before) / 1000)
        self._began, self._emitted = self._now(), 0
        # The clock on the new machine may be behind, so don't go back in time.
        self._before = max(self._before, event.timestamp)
        if event.durable:
            self._handle_durable(event)

    def _handle_durable(self, event: Event) -> None:
        self._open.add(event)
        was_ended, self._ended = self._ended, ends_attempt(event)
        if self._ended:
            self._timer.dispose()
        elif was_ended:
            self._timer = self._out.schedule(self._seconds, self._check)

    # Use a single timer, because rescheduling for every event would be more expensive.
    def _check(self) -> None:
        self._emit_stalls(self._now() - self._began)
        if not self._ended:
            next_ = self._began + (self._emitted + 1) * self._seconds
            self._timer = self._out.schedule(next_ - self._now(), self._check)

    def _emit_stalls(self, silent: float) -> None:
        # Timers may be slightly early, and floating-point multiples are inexact.
        count = int(silent / self._seconds + 1e-6)
        while self._emitted < count:
            self._emitted += 1
            models, calls = tuple(self._open.models.values()), tuple(self._open.awaited_calls())
            self._out.emit(Stall(self._emitted * self._seconds, models, calls, tuple(self._open.questions)))
