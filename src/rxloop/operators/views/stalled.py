"""The view that says what a silent run waits for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable

from rxloop.errors import ConfigurationError
from rxloop.operators.views._open import OpenWork, begins_attempt
from rxloop.operators.views._types import View
from rxloop.protocol.events import Event, GapEvent, ends_attempt
from rxloop.protocol.messages import ToolCall
from rxloop.stream.scheduler import Timer


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

    Unlike `idle_timeout` this is not an error: the view goes on, says what the run awaits and for how long, and starts
    over with the next event. Time comes from the scheduler of the subscription, which for a view of a run is the run's.
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

    def operator(source: Observable[Event]) -> Observable[Stall]:
        def subscribe(
            observer: abc.ObserverBase[Stall], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            timer = Timer(scheduler)
            silence = _Silence(seconds, timer, observer)
            subscription = source.subscribe(
                silence.on_next, observer.on_error, observer.on_completed, scheduler=scheduler
            )
            return CompositeDisposable(subscription, timer)

        return Observable(subscribe)

    return operator


class _Silence:
    """The time since the newest event, and what one subscriber is told of it."""

    def __init__(self, seconds: float, timer: Timer, observer: abc.ObserverBase[Stall]) -> None:
        self._seconds, self._timer, self._observer = seconds, timer, observer
        self._open = OpenWork()
        self._began = timer.now()
        self._emitted = 0
        """The stalls of this silence so far."""
        self._before = 0
        """The time of the newest event of the attempt."""
        self._ended = False
        timer.start(seconds, self._check)

    def on_next(self, event: Event) -> None:
        if type(event) is GapEvent:
            return  # made for a reader, at no time of the run
        if event.durable and begins_attempt(event):
            self._before = 0
        if self._before and not self._ended:
            self._emit_up_to((event.timestamp - self._before) / 1000)
        self._began, self._emitted = self._timer.now(), 0
        # Never back: the clock of the machine that goes on with the run may be slow.
        self._before = max(self._before, event.timestamp)
        if event.durable:
            self._take(event)

    def _take(self, event: Event) -> None:
        self._open.take(event)
        over, self._ended = self._ended, ends_attempt(event)
        if self._ended:
            self._timer.stop()
        elif over:
            self._timer.start(self._seconds, self._check)

    # A timer for each event would cost more than the event. This one looks when the last came, and waits on.
    def _check(self) -> None:
        self._emit_up_to(self._timer.now() - self._began)
        if not self._ended:
            next_ = self._began + (self._emitted + 1) * self._seconds
            self._timer.start(next_ - self._timer.now(), self._check)

    def _emit_up_to(self, silent: float) -> None:
        # Timers may be a little early, and three tenths are less than three times a tenth.
        count = int(silent / self._seconds + 1e-6)
        while self._emitted < count:
            self._emitted += 1
            models, calls = tuple(self._open.models.values()), tuple(self._open.awaited_calls())
            self._observer.on_next(Stall(self._emitted * self._seconds, models, calls, tuple(self._open.questions)))
