"""The view that says what a silent run waits for, and the work that is open in a stream of events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from rxloop.errors import ConfigurationError
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


class Activity:
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
                self._forget(event.task_id, questions=event.state not in (*WAITING, "working"))
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


@dataclass(frozen=True, slots=True)
class Stall:
    """Nothing has come for a while, and the run goes on."""

    seconds: float
    """How long nothing has come, in seconds: a multiple of what was asked for."""
    models: tuple[str, ...] = ()
    """The models whose answers are awaited, by the names that they have on the stream."""
    calls: tuple[ToolCall, ...] = ()
    """The tool calls that were started and have not ended; not one that itself waits for a nested run."""
    questions: tuple[str, ...] = ()
    """The prompts of the questions that wait for an answer; in the place of a hidden tool's, what clients read."""

    @property
    def awaits(self) -> Literal["input", "tool", "model", "run"]:
        """What keeps the run waiting: a person or client, else a tool, else a model, else the run's own work."""
        if self.questions:
            return "input"
        return "tool" if self.calls else "model" if self.models else "run"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tools or models that are awaited, or the prompts of the questions."""
        named = {"input": self.questions, "tool": tuple(call.name for call in self.calls), "model": self.models}
        return named.get(self.awaits, ())

    def __str__(self) -> str:
        # A run is cancelled with it, and clients read why.
        names = (
            ["(hidden)" if call.hidden else call.name for call in self.calls] if self.awaits == "tool" else self.names
        )
        waits = " ".join(part for part in (self.awaits, ", ".join(names)) if part)
        return f"nothing came for {self.seconds:g} s; awaited: {waits}"


def stalled(seconds: float) -> View[Event, Stall]:
    """Emit a `Stall` after that many seconds of silence, and again for every further `seconds`, while the run goes on.

    This is not an error: the view continues, reports what the run waits for and for how long, and starts over with the
    next event. Time comes from the scheduler of the subscription, which for a view of a run is the run's.
    For the past the times of the events count: a late subscriber, or a replay that is not slower than the run, gets the
    same stalls. Between the end of one attempt and the next nothing stalls.

    ::

        source         --l--d----------d--c--F|      l llm-call, d delta
        stalled(4)     ---------M4--M8--------|      M4 a model is awaited, for 4 s so far

    Example:
        >>> run.pipe(op.stalled(30), rx.filter(lambda stall: stall.awaits == "model")).subscribe(switch)

    Args:
        seconds: The silence that is a stall, in seconds.

    Returns:
        A view of stalls.

    Raises:
        ConfigurationError: The time is not positive; raised at once.
    """
    if not seconds > 0:
        raise ConfigurationError(f"stalled needs a time above 0, not {seconds}")

    def watch(out: ViewOutput[Stall]) -> Callable[[Event], None]:
        return _Silence(seconds, out).take

    return make_view(watch)


class _Silence:
    """The time since the newest event, and what one subscriber is told of it."""

    def __init__(self, seconds: float, out: ViewOutput[Stall]) -> None:
        self._seconds, self._out, self._now = seconds, out, out.now
        self._open = Activity()
        self._began = self._now()
        self._emitted = 0
        """The stalls of this silence so far."""
        self._before = 0
        """The time of the newest event of the attempt."""
        self._ended = False
        self._timer = out.schedule(seconds, self._check)

    def take(self, event: Event) -> None:
        if type(event) is GapEvent:
            return  # made for a reader, at no time of the run
        if event.durable and begins_attempt(event):
            self._before = 0
        if self._before and not self._ended:
            self._emit_up_to((event.timestamp - self._before) / 1000)
        self._began, self._emitted = self._now(), 0
        # Never back: the clock of the machine that goes on with the run may be slow.
        self._before = max(self._before, event.timestamp)
        if event.durable:
            self._take_durable(event)

    def _take_durable(self, event: Event) -> None:
        self._open.take(event)
        over, self._ended = self._ended, ends_attempt(event)
        if self._ended:
            self._timer.dispose()
        elif over:
            self._timer = self._out.schedule(self._seconds, self._check)

    # A timer for each event would cost more than the event. This one looks when the last came, and waits on.
    def _check(self) -> None:
        self._emit_up_to(self._now() - self._began)
        if not self._ended:
            next_ = self._began + (self._emitted + 1) * self._seconds
            self._timer = self._out.schedule(next_ - self._now(), self._check)

    def _emit_up_to(self, silent: float) -> None:
        # Timers may be a little early, and three tenths are less than three times a tenth.
        count = int(silent / self._seconds + 1e-6)
        while self._emitted < count:
            self._emitted += 1
            models, calls = tuple(self._open.models.values()), tuple(self._open.awaited_calls())
            self._out.emit(Stall(self._emitted * self._seconds, models, calls, tuple(self._open.questions)))
