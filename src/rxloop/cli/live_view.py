"""Terminal views for live and recorded runs, including a status line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from reactivex import Observable, Subject, abc
from reactivex.disposable import CompositeDisposable
from rich.text import Text

from rxloop.cli.options import ThoughtLevel
from rxloop.cli.render import WIDTH, describe, ending, many, record
from rxloop.operators import Stats, View, ViewOutput, make_view, stats
from rxloop.protocol.events import (
    ContentCompleteEvent,
    ContentDeltaEvent,
    Event,
    LLMCallEvent,
    StatusUpdateEvent,
    ThoughtDeltaEvent,
    ThoughtStreamEvent,
    ToolCallDeltaEvent,
    ToolCompleteEvent,
    ToolStartEvent,
    UsageEvent,
    ends_attempt,
)
from rxloop.protocol.messages import Usage
from rxloop.support.text import to_one_line
from rxloop.tools.think_aloud import NAME as THINK_ALOUD


class Piece(NamedTuple):
    """Output fragment."""

    text: Text
    answer: bool
    """True for answer text from the model."""


class _Live:
    """Renderer state, including the cursor position."""

    def __init__(self, out: ViewOutput[Piece], thoughts: ThoughtLevel) -> None:
        self._out = out
        self._thoughts = thoughts
        self._last: Piece | None = None
        self._message = ""
        """Text of the current or previous message."""
        self._open = False
        """True if a message is being written."""
        self._reasoned = False
        """True if reasoning has been streamed."""
        self._asked = self._called = self._begun = self._newest = self._attempt = 0

    def take(self, event: Event) -> None:
        """Render an event."""
        if self._attempt != event.attempt:
            # Exclude the time between attempts, which can be several days for forked or resumed runs.
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
                self._line(Text(f"~ {to_one_line(file.placeholder, WIDTH)}", "blue"))
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
                # Repeated calls start with an empty message.
                self._open = False
                self._line(Text("! the model is asked again", "yellow"))
        elif isinstance(event, ToolStartEvent) and event.to_public() is not None and event.name != THINK_ALOUD:
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
            self.begin_line()
            if self._last is not None and not self._last.answer:
                self._put(Piece(Text("\n"), answer=False))
        self._message += text
        self._put(Piece(Text(text), answer=True))

    def _end(self, event: StatusUpdateEvent) -> None:
        if event.state == "completed" and event.content and event.content != self._message:
            # Answers from tools and strategies are not streamed.
            self._open = False
            self._say(event.content)
        said = self._message
        self.begin_line()
        if said:
            self._put(Piece(Text("\n"), answer=False))
        self._line(Text.assemble(ending(event), *((f" · {part}", "dim") for part in self._costs(event))))

    def _costs(self, end: StatusUpdateEvent) -> list[str]:
        """Format the number of calls, tokens and seconds seen by this view."""
        counts = ((self._asked, "model call"), (self._called, "tool call"))
        parts = [many(number, noun) for number, noun in counts if number]
        if self._asked and end.usage is not None and end.usage.total_tokens:
            parts.append(f"{end.usage.input_tokens:,} tokens in, {end.usage.output_tokens:,} out")
        return [*parts, f"{max(end.timestamp - self._begun, 0) / 1000:.1f} s"] if parts else parts

    def _line(self, text: Text) -> None:
        self.begin_line()
        if self._last is not None and self._last.answer:
            self._put(Piece(Text("\n"), answer=False))
        self._put(Piece(Text.assemble(text, "\n"), answer=False))

    def _write(self, text: str, style: str) -> None:
        if self._last is not None and self._last.answer:
            self.begin_line()
        self._put(Piece(Text(text, style), answer=False))

    def begin_line(self) -> None:
        """Write a newline unless the cursor is already at the start of a line."""
        if self._last is not None and not self._last.text.plain.endswith("\n"):
            self._put(Piece(Text("\n"), answer=self._last.answer))

    def _put(self, piece: Piece) -> None:
        if piece.text:
            self._last = piece
            self._out.emit(piece)


def live(thoughts: ThoughtLevel) -> View[Event, Piece]:
    """Render a run live, with streamed text and separate lines for calls, thoughts and the final state.

    ::

        source   --L--d(He)--d(y)--c--l(call)--c--F|      L llm-call, d content-delta, c content-complete
        live()   -----He-----y-----⏎--→ call------F|
    """

    def write(out: ViewOutput[Piece]) -> Callable[[Event], None]:
        screen = _Live(out, thoughts)
        out.on_end(screen.begin_line)
        return screen.take

    return make_view(write)


def numbered(thoughts: ThoughtLevel) -> View[Event, Text]:
    """Render durable events as lines with event numbers and the seconds since the attempt started."""

    def write(out: ViewOutput[Text]) -> Callable[[Event], None]:
        begun = attempt = 0

        def take(event: Event) -> None:
            nonlocal begun, attempt
            if attempt != event.attempt:
                begun, attempt = event.timestamp, event.attempt
            said = record(event, thoughts) if event.durable or event.kind == "gap" else None
            if said is not None:
                # Use separate times for each attempt, because a resumed run may have been waiting for days.
                at = f"{event.seq:>4} {(event.timestamp - begun) / 1000:>7.2f}  "
                said = Text("\n" + " " * len(at)).join(said.split("\n"))
                out.emit(Text.assemble((at, "dim"), said, "\n"))

        return take

    return make_view(write)


_GAP = " · "
_SHOWN = 2
"""Maximum number of tool names in the status line."""


class _Facts:
    """Additional statistics not included in `op.stats`: active tools, and tokens of incomplete messages."""

    def __init__(self) -> None:
        self._tools: dict[tuple[Any, ...], str] = {}
        self._waiting: set[tuple[Any, ...]] = set()
        self._streamed: dict[tuple[Any, ...], int] = {}
        self._tokens = 0

    def take(self, event: Event) -> bool:
        """Update the statistics. Returns True if the status should be refreshed immediately."""
        step = (event.task_id, event.branch, event.step)
        match event:
            case ContentDeltaEvent() | ThoughtDeltaEvent() | ToolCallDeltaEvent():
                self._streamed[step] = self._streamed.get(step, 0) + 1
                if step not in self._waiting:
                    return False
                self._waiting.discard(step)
            case LLMCallEvent():
                self._waiting.add(step)
            case ContentCompleteEvent():
                self._waiting.discard(step)
            case UsageEvent():
                # Replace the estimate with the usage reported by the provider.
                self._streamed.pop(step, None)
                self._tokens += event.output_tokens
            case ToolStartEvent() if event.to_public() is not None and event.name != THINK_ALOUD:
                self._tools[*step, event.index] = to_one_line(event.name, 30)
            case ToolCompleteEvent():
                self._tools.pop((*step, event.index), None)
            case _:
                return False
        return True

    def text(self, figures: Stats) -> Text:
        """Format the status, starting with the most important information because long lines are truncated."""
        parts = [f"{figures.seconds:.0f} s"]
        if self._tools:
            names = list(self._tools.values())
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            parts.append(", ".join(names[:_SHOWN]) + more)
        elif self._waiting:
            parts.append("waiting for the model")
        if tokens := self._tokens + sum(self._streamed.values()):
            parts.append(many(tokens, "token"))
        rate = round(figures.tokens_per_second)
        if rate and not self._tools:
            parts.append(f"{rate:,}/s")
        if figures.dollars:
            parts.append(f"${figures.dollars:.4f}")
        return Text(_GAP.join(parts), "dim")


def status(window: float = 1.0) -> View[Event, Text]:
    """Emit status updates when calls start or end, and at a regular interval.

    ::

        source      --t--l--d--d--d--(uc)--s-S------x---X--F|     s, S tool-start, x, X tool-complete
        status(3)   -----S--S--S--S--S--S-SS--S--S--SS-SS|

    Args:
        window: Interval in seconds.
    """

    def operator(source: Observable[Event]) -> Observable[Text]:
        def subscribe(
            observer: abc.ObserverBase[Text], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            facts = _Facts()
            events = Subject[Event]()
            figures = Stats(0, 0, None, 0, 0, 0, Usage(), None)
            shown: Text | None = None

            def tell(newest: Stats) -> None:
                nonlocal figures, shown
                figures, before = newest, shown
                shown = facts.text(figures)
                if shown != before:
                    observer.on_next(shown)

            def on_next(event: Event) -> None:
                changed = facts.take(event)
                events.on_next(event)
                if changed:
                    tell(figures)

            ticking = stats(window)(events).subscribe(tell, observer.on_error, scheduler=scheduler)
            subscription = source.subscribe(on_next, observer.on_error, observer.on_completed, scheduler=scheduler)
            return CompositeDisposable(subscription, ticking)

        return Observable(subscribe)

    return operator
