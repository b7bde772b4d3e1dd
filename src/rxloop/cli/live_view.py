"""Terminal views for live and recorded runs, including a status line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from reactivex import Observable, Subject, abc
from reactivex.disposable import CompositeDisposable
from rich.text import Text

from rxloop.cli.options import ThoughtLevel
from rxloop.cli.render import WIDTH, describe, describe_end, describe_stored, format_count
from rxloop.operators import Stats, View, ViewOutput, make_view, stats
from rxloop.protocol.events import (
    ContentCompleteEvent,
    ContentDeltaEvent,
    Event,
    LLMCallEvent,
    MessageAddedEvent,
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


class Fragment(NamedTuple):
    """Output fragment."""

    text: Text
    answer: bool
    """True for answer text from the model."""


class _LiveRenderer:
    """Renderer state, including the cursor position."""

    def __init__(self, out: ViewOutput[Fragment], thoughts: ThoughtLevel) -> None:
        self._out = out
        self._thoughts = thoughts
        self._last: Fragment | None = None
        self._message = ""
        """Text of the current or previous message."""
        self._open = False
        """True if a message is being written."""
        self._held: list[Text] = []
        """Descriptions of messages sent during an answer."""
        self._reasoned = False
        """True if reasoning has been streamed."""
        self._model_calls = self._tool_calls = self._started = self._latest = self._attempt = 0

    def handle(self, event: Event) -> None:
        """Render an event."""
        if self._attempt != event.attempt:
            # Exclude the time between attempts, which can be several days for forked or resumed runs.
            self._started += event.timestamp - self._latest
            self._attempt = event.attempt
        self._latest = event.timestamp
        main = event.branch is None and event.parent_task_id is None
        if main and isinstance(event, ContentDeltaEvent):
            self._write_answer(event.delta)
        elif main and isinstance(event, ContentCompleteEvent):
            if not self._open and event.content:
                self._write_answer(event.content)
            self._open = False
            held, self._held = self._held, []
            for line in held:
                self._write_line(line)
            for file in event.files:
                self._write_line(Text(f"~ {to_one_line(file.placeholder, WIDTH)}", "blue"))
        elif isinstance(event, ThoughtDeltaEvent):
            if main and self._thoughts is ThoughtLevel.all:
                self._reasoned = True
                self._write_reasoning(event.delta, "magenta")
        elif main and ends_attempt(event) and isinstance(event, StatusUpdateEvent):
            self._write_end(event)
        else:
            self._show_activity(event)

    def _show_activity(self, event: Event) -> None:
        if isinstance(event, LLMCallEvent):
            self._model_calls += 1
            if self._open:
                # Repeated calls start with an empty message.
                self._open = False
                self._write_line(Text("! calling the model again", "yellow"))
        elif isinstance(event, ToolStartEvent) and event.to_public() is not None and event.name != THINK_ALOUD:
            self._tool_calls += 1
        elif isinstance(event, ThoughtStreamEvent) and event.source == "reasoning" and self._reasoned:
            self._reasoned = False
            return
        description = describe(event, self._thoughts)
        if description is None:
            return
        if self._open and isinstance(event, MessageAddedEvent):
            # The model receives this message after completing the current answer.
            self._held.append(description)
        else:
            self._write_line(description)

    def _write_answer(self, text: str) -> None:
        if not self._open:
            self._open, self._message = True, ""
            self.start_line()
            if self._last is not None and not self._last.answer:
                self._emit(Fragment(Text("\n"), answer=False))
        self._message += text
        self._emit(Fragment(Text(text), answer=True))

    def _write_end(self, event: StatusUpdateEvent) -> None:
        if event.state == "completed" and event.content and event.content != self._message:
            # Answers from tools and strategies are not streamed.
            self._open = False
            self._write_answer(event.content)
        answer = self._message
        self.start_line()
        if answer:
            self._emit(Fragment(Text("\n"), answer=False))
        costs = ((f" · {part}", "dim") for part in self._format_costs(event))
        self._write_line(Text.assemble(describe_end(event), *costs))

    def _format_costs(self, end: StatusUpdateEvent) -> list[str]:
        """Format the number of calls, tokens and seconds seen by this view."""
        counts = ((self._model_calls, "model call"), (self._tool_calls, "tool call"))
        parts = [format_count(number, noun) for number, noun in counts if number]
        if self._model_calls and end.usage is not None and end.usage.total_tokens:
            parts.append(f"{end.usage.input_tokens:,} tokens in, {end.usage.output_tokens:,} out")
        return [*parts, f"{max(end.timestamp - self._started, 0) / 1000:.1f} s"] if parts else parts

    def _write_line(self, text: Text) -> None:
        self.start_line()
        if self._last is not None and self._last.answer:
            self._emit(Fragment(Text("\n"), answer=False))
        self._emit(Fragment(Text.assemble(text, "\n"), answer=False))

    def _write_reasoning(self, text: str, style: str) -> None:
        if self._last is not None and self._last.answer:
            self.start_line()
        self._emit(Fragment(Text(text, style), answer=False))

    def start_line(self) -> None:
        """Write a newline unless the current line is empty."""
        if self._last is not None and not self._last.text.plain.endswith("\n"):
            self._emit(Fragment(Text("\n"), answer=self._last.answer))

    def _emit(self, fragment: Fragment) -> None:
        if fragment.text:
            self._last = fragment
            self._out.emit(fragment)


def render_live(thoughts: ThoughtLevel) -> View[Event, Fragment]:
    """Render a run live, with streamed text and separate lines for calls, thoughts and the final state.

    ::

        source          --L--d(He)--d(y)--c--l(call)--c--F|      L llm-call, d content-delta, c content-complete
        render_live()   -----He-----y-----⏎--→ call------F|
    """

    def write(out: ViewOutput[Fragment]) -> Callable[[Event], None]:
        screen = _LiveRenderer(out, thoughts)
        out.on_end(screen.start_line)
        return screen.handle

    return make_view(write)


def render_numbered(thoughts: ThoughtLevel) -> View[Event, Text]:
    """Render durable events as lines with event numbers and the seconds since the attempt started."""

    def write(out: ViewOutput[Text]) -> Callable[[Event], None]:
        started = attempt = 0

        def handle(event: Event) -> None:
            nonlocal started, attempt
            if attempt != event.attempt:
                started, attempt = event.timestamp, event.attempt
            line = describe_stored(event, thoughts) if event.durable or event.kind == "gap" else None
            if line is not None:
                # Use separate times for each attempt, because a resumed run may have been waiting for days.
                prefix = f"{event.seq:>4} {(event.timestamp - started) / 1000:>7.2f}  "
                line = Text("\n" + " " * len(prefix)).join(line.split("\n"))
                out.emit(Text.assemble((prefix, "dim"), line, "\n"))

        return handle

    return make_view(write)


_SEPARATOR = " · "
_MAX_TOOL_NAMES = 2
"""Maximum number of tool names in the status line."""


class _Activity:
    """Additional statistics not included in `op.stats`: active tools, and tokens of incomplete messages."""

    def __init__(self) -> None:
        self._tools: dict[tuple[Any, ...], str] = {}
        self._waiting_steps: set[tuple[Any, ...]] = set()
        self._streamed: dict[tuple[Any, ...], int] = {}
        self._tokens = 0

    def handle(self, event: Event) -> bool:
        """Update the statistics. Returns True if the status should be refreshed immediately."""
        step = (event.task_id, event.branch, event.step)
        match event:
            case ContentDeltaEvent() | ThoughtDeltaEvent() | ToolCallDeltaEvent():
                self._streamed[step] = self._streamed.get(step, 0) + 1
                if step not in self._waiting_steps:
                    return False
                self._waiting_steps.discard(step)
            case LLMCallEvent():
                self._waiting_steps.add(step)
            case ContentCompleteEvent():
                self._waiting_steps.discard(step)
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

    def format(self, figures: Stats) -> Text:
        """Format the status, starting with the most important information because long lines are truncated."""
        parts = [f"{figures.seconds:.0f} s"]
        if self._tools:
            names = list(self._tools.values())
            more = f" and {len(names) - _MAX_TOOL_NAMES} more" if len(names) > _MAX_TOOL_NAMES else ""
            parts.append(", ".join(names[:_MAX_TOOL_NAMES]) + more)
        elif self._waiting_steps:
            parts.append("waiting for the model")
        if tokens := self._tokens + sum(self._streamed.values()):
            parts.append(format_count(tokens, "token"))
        rate = round(figures.tokens_per_second)
        if rate and not self._tools:
            parts.append(f"{rate:,}/s")
        if figures.dollars:
            parts.append(f"${figures.dollars:.4f}")
        return Text(_SEPARATOR.join(parts), "dim")


def render_status(window: float = 1.0) -> View[Event, Text]:
    """Emit status updates when calls start or end, and at a regular interval.

    ::

        source             --t--l--d--d--d--(uc)--s-S------x---X--F|     s, S tool-start, x, X tool-complete
        render_status(3)   -----S--S--S--S--S--S-SS--S--S--SS-SS|

    Args:
        window: Interval in seconds.
    """

    def operator(source: Observable[Event]) -> Observable[Text]:
        def subscribe(
            observer: abc.ObserverBase[Text], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            activity = _Activity()
            events = Subject[Event]()
            figures = Stats(0, 0, None, 0, 0, 0, Usage(), None)
            current: Text | None = None

            def update(latest: Stats) -> None:
                nonlocal figures, current
                figures, previous = latest, current
                current = activity.format(figures)
                if current != previous:
                    observer.on_next(current)

            def on_next(event: Event) -> None:
                changed = activity.handle(event)
                events.on_next(event)
                if changed:
                    update(figures)

            timer = stats(window)(events).subscribe(update, observer.on_error, scheduler=scheduler)
            subscription = source.subscribe(on_next, observer.on_error, observer.on_completed, scheduler=scheduler)
            return CompositeDisposable(subscription, timer)

        return Observable(subscribe)

    return operator
