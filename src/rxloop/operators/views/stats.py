"""The view of how a run is doing, in figures."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reactivex import abc
from reactivex.disposable import Disposable

from rxloop.errors import ConfigurationError
from rxloop.operators.views import View
from rxloop.operators.views.cost import Spending
from rxloop.operators.views.make_view import ViewOutput, make_view
from rxloop.operators.views.stalled import Activity, Step, begins_attempt, step_of
from rxloop.protocol.events import (
    ContentCompleteEvent,
    ContentDeltaEvent,
    Event,
    GapEvent,
    LLMCallEvent,
    ThoughtDeltaEvent,
    ToolCallDeltaEvent,
    ToolStartEvent,
    UsageEvent,
    ends_attempt,
)
from rxloop.protocol.messages import Usage

if TYPE_CHECKING:
    from rxloop.providers.catalog import Price


@dataclass(frozen=True, slots=True)
class Stats:
    """The figures of a run at one moment, nested runs and branches included."""

    seconds: float
    """Since the first event, without the time between attempts."""
    tokens_per_second: float
    """Tokens per second in the window that ends now, or in the whole run while the run is shorter than a window.

    A delta counts as one token. An answer without deltas, because the model does not stream or the log does not keep
    deltas, counts by its usage in the window in which it was complete. If it took longer than a window, it counts with
    the speed of the whole answer.
    """
    time_to_first_token: float | None
    """Seconds from the request to the first delta of its answer, of the newest answer that streamed; None while there
    is none, as in a log, which keeps no deltas."""
    tool_seconds: float
    """The time in which at least one tool was at work, in seconds, so far; one that waits for a person is not."""
    model_calls: int
    """Requests to models so far."""
    tool_calls: int
    """Tool calls that were started so far; a refused one does not count."""
    usage: Usage
    """The tokens so far, as the providers counted them."""
    dollars: float | None
    """The cost so far, in US dollars; None while no tokens of a model with a price are known."""

    def __str__(self) -> str:
        rate, first = self.tokens_per_second, self.time_to_first_token
        parts = [
            f"{self.seconds:.1f} s",
            f"{rate:.0f} tokens/s" if rate >= 10 else f"{rate:.1f} tokens/s",
            f"first token after {first:.2f} s" if first is not None else "",
            _counted(self.model_calls, "model call"),
            f"{_counted(self.tool_calls, 'tool call')} in {self.tool_seconds:.1f} s" if self.tool_calls else "",
            f"{self.usage.total_tokens:,} tokens",
            f"${self.dollars:.4f}" if self.dollars is not None else "",
        ]
        return ", ".join(part for part in parts if part)


def stats(window: float = 1.0, *, prices: Mapping[str, Price] | None = None) -> View[Event, Stats]:
    """Emit the figures of the run: once a window while it goes on, and with the final event of each attempt.

    Time is that of the events, so that a late subscriber, and a replay that is not slower than the run, get the figures
    of the run as it was; while nothing comes, a timer goes on emitting. Of recorded events, windows in which nothing
    came are left out: they would come all at once. The deltas of a message are dropped when it is complete, so late
    subscribers have the rates from the usage alone.

    ::

        source       --t--l--d--d--d--c--s---------x---F|
        stats(3)     -----S--S--S--S--S--S--S--S--S--S-S|      S the figures of what came before that moment

    Example:
        >>> run.pipe(op.stats()).subscribe(print)

    Args:
        window: The seconds between two values, and those that a rate looks back.
        prices: What models cost, as for `op.cost`.

    Returns:
        A view of figures, the last of which are those of the whole run.

    Raises:
        ConfigurationError: The window is not positive; raised at once.
    """
    if not window > 0:
        raise ConfigurationError(f"stats needs a window above 0, not {window}")

    def report(out: ViewOutput[Stats]) -> Callable[[Event], None]:
        return _Report(window, _Figures(window, prices, out.now), out).take

    return make_view(report)


class _Report:
    """Times at which one subscriber gets the figures."""

    def __init__(self, window: float, figures: _Figures, out: ViewOutput[Stats]) -> None:
        self._window, self._figures, self._out = window, figures, out
        self._timer: abc.DisposableBase = Disposable()
        self._due = 0.0
        self._going = False

    def take(self, event: Event) -> None:
        if type(event) is GapEvent:
            return  # made for a reader, at no time of the run
        figures = self._figures
        now = figures.time_of(event)
        if not self._going or (event.durable and begins_attempt(event)):
            self._going = True
            figures.go_on(now)
            self._due = now + self._window
            self._timer = self._out.schedule(self._window, self._tick)
        elif now >= self._due:
            self._emit(now)
        figures.take(event, now)
        if event.durable and ends_attempt(event):
            self._going = False
            self._timer.dispose()
            self._out.emit(figures.at(now))

    def _tick(self) -> None:
        now = self._figures.now()
        # Timers may be a little early.
        if now >= self._due - 1e-6:
            self._emit(max(now, self._due))
        self._timer = self._out.schedule(self._due - now, self._tick)

    def _emit(self, now: float) -> None:
        at = self._due
        self._due += ((now - self._due) // self._window + 1) * self._window
        self._out.emit(self._figures.at(at))


class _Figures:
    """What is counted, by the time of the events in seconds."""

    def __init__(self, window: float, prices: Mapping[str, Price] | None, clock: Callable[[], float]) -> None:
        self._newest = 0.0
        """The time of the newest event."""
        self._clock = clock
        self._came = clock()
        """When that came, by the clock."""
        self._window = window
        self._begin: float | None = None
        self._deltas = deque[float]()
        self._answers = deque[tuple[float, float, int]]()
        """When each answer without deltas came, how long that took, and its tokens."""
        self._asked: dict[Step, float] = {}
        """When the requests left of whose answers nothing has streamed."""
        self._first_token: float | None = None
        self._open = Activity()
        self._since = 0.0
        """Since when a tool is at work, if one is."""
        self._tool_seconds = 0.0
        self._model_calls = self._tool_calls = 0
        self._usage = Usage()
        self._spending = Spending(prices)
        self._dollars: float | None = None

    def now(self) -> float:
        """The time of the run, which goes on after the newest event."""
        return self._newest + self._clock() - self._came

    def time_of(self, event: Event) -> float:
        """The time of an event that comes now."""
        # Never back: the clock of the machine that goes on with the run may be slow.
        return max(event.timestamp / 1000, self._newest) if event.timestamp else self.now()

    def go_on(self, now: float) -> None:
        """A run or attempt begins at that time: leave out what has passed since the last one."""
        if self._begin is None:
            self._begin = now
        else:
            self._begin += now - self._newest
            self._since += now - self._newest
        self._newest, self._came = now, self._clock()
        self._asked.clear()
        self._deltas.clear()
        self._answers.clear()

    def at(self, now: float) -> Stats:
        """The figures at a time after the newest event."""
        return Stats(
            seconds=round(self._age(now), 6),
            tokens_per_second=self._rate(now),
            time_to_first_token=self._first_token,
            tool_seconds=round(self._tool_seconds + (now - self._since if self._open.works else 0.0), 6),
            model_calls=self._model_calls,
            tool_calls=self._tool_calls,
            usage=self._usage,
            dollars=self._dollars,
        )

    def _rate(self, now: float) -> float:
        """The tokens per second of the window that ends now."""
        begin = now - self._window
        while self._deltas and self._deltas[0] < begin:
            self._deltas.popleft()
        while self._answers and self._answers[0][0] < begin:
            self._answers.popleft()
        # What is younger than a window is not slow because of that.
        span = min(self._window, self._age(now)) or self._window
        return len(self._deltas) / span + sum(tokens / max(seconds, span) for _, seconds, tokens in self._answers)

    def _age(self, now: float) -> float:
        return now - (self._begin if self._begin is not None else now)

    def take(self, event: Event, now: float) -> None:
        """Fold one more event, which came at that time."""
        if isinstance(event, ContentDeltaEvent | ThoughtDeltaEvent | ToolCallDeltaEvent):
            self._deltas.append(now)
            if self._asked and (asked := self._asked.pop(step_of(event), None)) is not None:
                self._first_token = round(now - asked, 6)
        elif event.durable:
            self._take_durable(event, now)
        self._newest, self._came = now, self._clock()

    def _take_durable(self, event: Event, now: float) -> None:
        match event:
            case LLMCallEvent():
                self._model_calls += 1
                self._asked[step_of(event)] = now
            case UsageEvent():
                self._usage = self._usage + event.usage
                asked = self._asked.get(step_of(event))
                if asked is not None and event.output_tokens:
                    self._answers.append((now, now - asked, event.output_tokens))
            case ContentCompleteEvent():
                self._asked.pop(step_of(event), None)
            case ToolStartEvent():
                self._tool_calls += 1
            case _:
                pass
        if self._spending.take(event):
            self._dollars = self._spending.dollars
        worked = self._open.works
        self._open.take(event)
        if worked and not self._open.works:
            self._tool_seconds += now - self._since
        elif not worked:
            self._since = now


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
