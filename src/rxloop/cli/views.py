"""Views of a run for the terminal: its events as pieces of text, as they come, or as a numbered record."""

from __future__ import annotations

from typing import NamedTuple

from reactivex import Observable, abc
from rich.text import Text

from rxloop.cli.options import ThoughtLevel
from rxloop.cli.render import WIDTH, describe, ending, many, record
from rxloop.operators import View
from rxloop.protocol.events import (
    ContentCompleteEvent,
    ContentDeltaEvent,
    Event,
    LLMCallEvent,
    StatusUpdateEvent,
    ThoughtDeltaEvent,
    ThoughtStreamEvent,
    ToolStartEvent,
    ends_attempt,
)
from rxloop.thoughts.drawing import one_line
from rxloop.tools.think_aloud import NAME as THINK_ALOUD


class Piece(NamedTuple):
    """Something to be written."""

    text: Text
    answer: bool
    """What the model says; everything else stands beside it."""


class _Live:
    """Where the cursor stands, and what the run has come to."""

    def __init__(self, observer: abc.ObserverBase[Piece], thoughts: ThoughtLevel) -> None:
        self._observer = observer
        self._thoughts = thoughts
        self._last: Piece | None = None
        self._message = ""
        """The text of the message so far, and then of the last one."""
        self._open = False
        """The message is being written."""
        self._reasoned = False
        """The reasoning was shown while it came."""
        self._asked = self._called = self._begun = self._newest = self._attempt = 0

    def on_next(self, event: Event) -> None:
        """Write what the event says."""
        if self._attempt != event.attempt:
            # A run that was forked or resumed may have rested for days: the time between attempts does not count.
            self._begun += event.timestamp - self._newest
            self._attempt = event.attempt
        self._newest = event.timestamp
        main = event.branch is None and event.parent_task_id is None
        if main and isinstance(event, ContentDeltaEvent):
            self._say(event.delta)
        elif main and isinstance(event, ContentCompleteEvent):
            if not self._open and event.content:
                self._say(event.content)
            self._open = False
            for file in event.files:
                self._line(Text(f"~ {one_line(file.placeholder, WIDTH)}", "blue"))
        elif isinstance(event, ThoughtDeltaEvent):
            if main and self._thoughts is ThoughtLevel.all:
                self._reasoned = True
                self._write(event.delta, "magenta")
        elif main and ends_attempt(event) and isinstance(event, StatusUpdateEvent):
            self._end(event)
        else:
            self._show_beside(event)

    def _show_beside(self, event: Event) -> None:
        if isinstance(event, LLMCallEvent):
            self._asked += 1
            if self._open:
                # A call that is sent again begins its text again.
                self._open = False
                self._line(Text("! the model is asked again", "yellow"))
        elif isinstance(event, ToolStartEvent) and event.for_clients() is not None and event.name != THINK_ALOUD:
            self._called += 1
        elif isinstance(event, ThoughtStreamEvent) and event.source == "reasoning" and self._reasoned:
            self._reasoned = False
            return
        shown = describe(event, self._thoughts)
        if shown is not None:
            self._line(shown)

    def _say(self, text: str) -> None:
        if not self._open:
            self._open, self._message = True, ""
            self._begin_line()
            if self._last is not None and not self._last.answer:
                self._put(Piece(Text("\n"), answer=False))
        self._message += text
        self._put(Piece(Text(text), answer=True))

    def _end(self, event: StatusUpdateEvent) -> None:
        if event.state == "completed" and event.content and event.content != self._message:
            # The answer of a tool, or of a strategy.
            self._open = False
            self._say(event.content)
        said = self._message
        self._begin_line()
        if said:
            self._put(Piece(Text("\n"), answer=False))
        self._line(Text.assemble(ending(event), *((f" · {part}", "dim") for part in self._costs(event))))

    def _costs(self, end: StatusUpdateEvent) -> list[str]:
        """List what the attempt has cost, as far as this view has seen it."""
        counts = ((self._asked, "model call"), (self._called, "tool call"))
        parts = [many(number, noun) for number, noun in counts if number]
        if self._asked and end.usage is not None and end.usage.total_tokens:
            parts.append(f"{end.usage.input_tokens:,} tokens in, {end.usage.output_tokens:,} out")
        return [*parts, f"{max(end.timestamp - self._begun, 0) / 1000:.1f} s"] if parts else parts

    def _line(self, text: Text) -> None:
        self._begin_line()
        if self._last is not None and self._last.answer:
            self._put(Piece(Text("\n"), answer=False))
        self._put(Piece(Text.assemble(text, "\n"), answer=False))

    def _write(self, text: str, style: str) -> None:
        if self._last is not None and self._last.answer:
            self._begin_line()
        self._put(Piece(Text(text, style), answer=False))

    def _begin_line(self) -> None:
        if self._last is not None and not self._last.text.plain.endswith("\n"):
            self._put(Piece(Text("\n"), answer=self._last.answer))

    def _put(self, piece: Piece) -> None:
        if piece.text:
            self._last = piece
            self._observer.on_next(piece)

    def on_completed(self) -> None:
        """Leave the cursor at the beginning of a line."""
        self._begin_line()
        self._observer.on_completed()


def live(thoughts: ThoughtLevel) -> View[Event, Piece]:
    """Show a run live: text as it streams, calls and thoughts on lines of their own, and how it ended.

    ::

        source   --L--d(He)--d(y)--c--l(call)--c--F|      L llm-call, d content-delta, c content-complete
        live()   -----He-----y-----⏎--→ call------F|
    """

    def operator(source: Observable[Event]) -> Observable[Piece]:
        def subscribe(
            observer: abc.ObserverBase[Piece], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            screen = _Live(observer, thoughts)
            return source.subscribe(screen.on_next, observer.on_error, screen.on_completed, scheduler=scheduler)

        return Observable(subscribe)

    return operator


def numbered(thoughts: ThoughtLevel) -> View[Event, Text]:
    """Show a run as a record: a line for each durable event, with its number and the seconds since the first."""

    def operator(source: Observable[Event]) -> Observable[Text]:
        def subscribe(
            observer: abc.ObserverBase[Text], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            begun = attempt = 0

            def on_next(event: Event) -> None:
                nonlocal begun, attempt
                if attempt != event.attempt:
                    begun, attempt = event.timestamp, event.attempt
                said = record(event, thoughts) if event.durable or event.kind == "gap" else None
                if said is not None:
                    # A resumed run may have waited for days: each attempt has a time of its own.
                    at = f"{event.seq:>4} {(event.timestamp - begun) / 1000:>7.2f}  "
                    said = Text("\n" + " " * len(at)).join(said.split("\n"))
                    observer.on_next(Text.assemble((at, "dim"), said, "\n"))

            return source.subscribe(on_next, observer.on_error, observer.on_completed, scheduler=scheduler)

        return Observable(subscribe)

    return operator
