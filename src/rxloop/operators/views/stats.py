"""Statistics view."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reactivex import abc
from reactivex.disposable import Disposable

from rxloop.operators.views import View
from rxloop.operators.views.cost import Spending
from rxloop.operators.views.make_view import ViewOutput, make_view
from rxloop.operators.views.stalled import Activity, Step, begins_attempt, get_step
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
from rxloop.support.misuse import check_positive, check_prices

if TYPE_CHECKING:
    from rxloop.providers.catalog import Price


@dataclass(frozen=True, slots=True)
class Stats:
    """Statistics of a run, including nested runs and branches."""

    seconds: float
    """Seconds since the first event, excluding time between attempts."""
    tokens_per_second: float
    """Tokens per second in the last window, or in the whole run if it is shorter than a window.

    A delta counts as one token. If an answer has no deltas, its usage is counted in the window in which it was
    completed. If that answer took longer than a window, it counts with its average rate.
    """
    time_to_first_token: float | None
    """Seconds from the request to the first delta of the newest streamed answer. None before the first delta, and for
    recorded events without deltas.
    """
    tool_seconds: float
    """Total duration with at least one running tool in seconds, excluding tools waiting for a person."""
    model_calls: int
    """Number of model requests."""
    tool_calls: int
    """Number of started tool calls, excluding refused calls."""
    usage: Usage
    """Tokens reported by the providers."""
    dollars: float | None
    """Cost in US dollars, or None if no model with a price was used."""

    def __str__(self) -> str:
        rate, first = self.tokens_per_second, self.time_to_first_token
        parts = [
            f"{self.seconds:.1f} s",
            f"{rate:.0f} tokens/s" if rate >= 10 else f"{rate:.1f} tokens/s",
            f"first token after {first:.2f} s" if first is not None else "",
            _format_count(self.model_calls, "model call"),
            f"{_format_count(self.tool_calls, 'tool call')} in {self.tool_seconds:.1f} s" if self.tool_calls else "",
            f"{self.usage.total_tokens:,} tokens",
            f"${self.dollars:.4f}" if self.dollars is not None else "",
        ]
        return ", ".join(part for part in parts if part)


def stats(window: float = 1.0, *, prices: Mapping[str, Price] | None = None) -> View[Event, Stats]:
    """Emit statistics of the run once per window while it is active, and with the final event of each attempt.

    Time is measured with the timestamps of the events, so that late subscribers and replays at the original speed or
    faster get the same statistics. While there are no events, a timer is used. For recorded events, windows without
    events are skipped. Deltas are dropped when their message is complete, so late subscribers get rates that are based
    on usage.

    ::

        source       --t--l--d--d--d--c--s---------x---F|
        stats(3)     -----S--S--S--S--S--S--S--S--S--S-S|      S the figures of what came before that moment

    Example:
        >>> run.pipe(op.stats()).subscribe(print)

    Args:
        window: Interval between two values in seconds. Rates are measured over the same interval.
        prices: Prices by model string, as in `op.cost`.

    Returns:
        View of the statistics. The last value covers the whole run.

    Raises:
        ConfigurationError: The window is not positive. Raised immediately.
    """
    check_positive(window=window)
    check_prices(prices)

    def report(out: ViewOutput[Stats]) -> Callable[[Event], None]:
        return _Report(window, _Figures(window, prices, out.now), out).handle

    return make_view(report)


class _Report:
    """Schedule for one subscriber."""

    def __init__(self, window: float, figures: _Figures, out: ViewOutput[Stats]) -> None:
        self._window, self._figures, self._out = window, figures, out
        self._timer: abc.DisposableBase = Disposable()
        self._due = 0.0
        self._is_active = False

    def handle(self, event: Event) -> None:
        if type(event) is GapEvent:
            return  # gap events have no timestamp of their own
        figures = self._figures
        now = figures.get_time(event)
        if not self._is_active or (event.durable and begins_attempt(event)):
            self._is_active = True
            figures.resume(now)
            self._due = now + self._window
            self._timer = self._out.schedule(self._window, self._tick)
        elif now >= self._due:
            self._emit(now)
        figures.add(event, now)
        if event.durable and ends_attempt(event):
            self._is_active = False
            self._timer.dispose()
            self._out.emit(figures.snapshot(now))

    def _tick(self) -> None:
        now = self._figures.now()
        # A timer may fire slightly early.
        if now >= self._due - 1e-6:
            self._emit(max(now, self._due))
        self._timer = self._out.schedule(self._due - now, self._tick)

    def _emit(self, now: float) -> None:
        due = self._due
        self._due += ((now - self._due) // self._window + 1) * self._window
        self._out.emit(self._figures.snapshot(due))


class _Figures:
    """Counters for a run, with event timestamps in seconds."""

    def __init__(self, window: float, prices: Mapping[str, Price] | None, clock: Callable[[], float]) -> None:
        self._newest = 0.0
        """Time of the newest event."""
        self._clock = clock
        self._arrived_at = clock()
        """Arrival time of the latest event."""
        self._window = window
        self._begin: float | None = None
        self._deltas = deque[float]()
        self._answers = deque[tuple[float, float, int]]()
        """Completion time, duration and token count of answers without deltas."""
        self._request_times: dict[Step, float] = {}
        """Send times for requests that have not been streamed yet."""
        self._first_token: float | None = None
        self._open = Activity()
        self._tool_start = 0.0
        """Time since which a tool has been running, if any."""
        self._tool_seconds = 0.0
        self._model_calls = self._tool_calls = 0
        self._usage = Usage()
        self._spending = Spending(prices)
        self._dollars: float | None = None

    def now(self) -> float:
        """Return the current run time, estimated from the latest event."""
        return self._newest + self._clock() - self._arrived_at

    def get_time(self, event: Event) -> float:
        """Return the time of a new event."""
        # The clock on the new machine may be behind, so don't go back in time.
        return max(event.timestamp / 1000, self._newest) if event.timestamp else self.now()

    def resume(self, now: float) -> None:
        """Start or resume timing, excluding the interval since the previous attempt."""
        if self._begin is None:
            self._begin = now
        else:
            self._begin += now - self._newest
            self._tool_start += now - self._newest
        self._newest, self._arrived_at = now, self._clock()
        self._request_times.clear()
        self._deltas.clear()
        self._answers.clear()

    def snapshot(self, now: float) -> Stats:
        """Return statistics for a time after the latest event."""
        return Stats(
            seconds=round(self._age(now), 6),
            tokens_per_second=self._rate(now),
            time_to_first_token=self._first_token,
            tool_seconds=round(
                self._tool_seconds + (now - self._tool_start if self._open.has_running_tool else 0.0), 6
            ),
            model_calls=self._model_calls,
            tool_calls=self._tool_calls,
            usage=self._usage,
            dollars=self._dollars,
        )

    def _rate(self, now: float) -> float:
        """Calculate tokens per second for the window ending at `now`."""
        begin = now - self._window
        while self._deltas and self._deltas[0] < begin:
            self._deltas.popleft()
        while self._answers and self._answers[0][0] < begin:
            self._answers.popleft()
        # A run shorter than a window must not be reported as slow.
        span = min(self._window, self._age(now)) or self._window
        return len(self._deltas) / span + sum(tokens / max(seconds, span) for _, seconds, tokens in self._answers)

    def _age(self, now: float) -> float:
        return now - (self._begin if self._begin is not None else now)

    def add(self, event: Event, now: float) -> None:
        """Add a new event to the counters."""
        if isinstance(event, ContentDeltaEvent | ThoughtDeltaEvent | ToolCallDeltaEvent):
            self._deltas.append(now)
            if self._request_times and (requested_at := self._request_times.pop(get_step(event), None)) is not None:
                self._first_token = round(now - requested_at, 6)
        elif event.durable:
            self._add_durable(event, now)
        self._newest, self._arrived_at = now, self._clock()

    def _add_durable(self, event: Event, now: float) -> None:
        match event:
            case LLMCallEvent():
                self._model_calls += 1
                self._request_times[get_step(event)] = now
            case UsageEvent():
                self._usage = self._usage + event.usage
                requested_at = self._request_times.get(get_step(event))
                if requested_at is not None and event.output_tokens:
                    self._answers.append((now, now - requested_at, event.output_tokens))
            case ContentCompleteEvent():
                self._request_times.pop(get_step(event), None)
            case ToolStartEvent():
                self._tool_calls += 1
            case _:
                pass
        if self._spending.add(event):
            self._dollars = self._spending.dollars
        had_running_tool = self._open.has_running_tool
        self._open.add(event)
        if had_running_tool and not self._open.has_running_tool:
            self._tool_seconds += now - self._tool_start
        elif not had_running_tool:
            self._tool_start = now


def _format_count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
