"""View of the compression and thinking of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rxloop.operators.views import View
from rxloop.operators.views.cost import Spending
from rxloop.operators.views.make_view import ViewOutput, make_view
from rxloop.protocol.events import ContextCompressedEvent, Event, ThinkingFailedEvent, ThinkingNotedEvent, ends_attempt
from rxloop.protocol.messages import ToolCall, Usage
from rxloop.protocol.tool_events import ToolCompleteEvent
from rxloop.state.fold import fold_all
from rxloop.state.run_state import CompressionTotals, initial_state
from rxloop.support.misuse import check_prices

if TYPE_CHECKING:
    from rxloop.providers.catalog import Price


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextStats:
    """Effect and cost of the compression and thinking of a run."""

    compression: CompressionTotals = field(default_factory=CompressionTotals)
    """Compression totals, including the usage of thinking."""
    notes: int = 0
    """Number of `thinking-noted` events."""
    failures: int = 0
    """Number of failed compressions and failed thinking."""
    usage: Usage = field(default_factory=Usage)
    """Usage of the run, including nested runs, without thinking."""
    dollars: float = 0.0
    """Cost of model calls and thinking with a known price, in US dollars."""
    errors: int = 0
    """Number of failed tool calls."""
    recovered_errors: int = 0
    """Number of failed tool calls whose tool succeeded later."""
    values: int = 0
    """Number of distinct values (ids, paths, numbers and names) in messages that requests omit."""
    lost_values: int = 0
    """Number of these values that are missing from the newest compressed request."""
    repeated_calls: int = 0
    """Number of calls repeated with the same arguments after an earlier call was omitted."""

    @property
    def retained(self) -> float:
        """Fraction of these values that is still visible to the model, from 0 to 1."""
        return 1 - self.lost_values / self.values if self.values else 1.0

    @property
    def seconds_per_cycle(self) -> float:
        """Mean duration of a compression or a note in seconds."""
        return self.compression.seconds / max(1, self.compression.count + self.notes)


def context_stats(prices: Mapping[str, Price] | None = None) -> View[Event, ContextStats]:
    """Emit the effect and cost of compression and thinking after each cycle, and with the final event of each attempt.

    ::

        source           --l--c--x--n--l--c--T--n--F|     n context-compressed, T thinking-noted
        context_stats()  -----------S--------S--S--S|

    Values are ids, paths, numbers and names that agents often need again, as in the fact ledger of compressors. Lost
    values and repeated calls are counted on the main branch. Both require events that are not redacted for clients.

    Example:
        >>> stats = await run.pipe(op.context_stats())
        >>> print(f"{stats.compression.ratio:.0%} of the tokens, {stats.retained:.0%} of the values")

    Args:
        prices: Prices by model string, as in `op.cost`.

    Returns:
        View of the statistics. The last value covers the whole run.

    Raises:
        ConfigurationError: `prices` is not a mapping.
    """
    check_prices(prices)

    def report(out: ViewOutput[ContextStats]) -> Callable[[Event], None]:
        figures = _Figures(prices)

        def handle(event: Event) -> None:
            if event.durable and figures.add(event):
                out.emit(figures.make_stats())

        return handle

    return make_view(report)


class _Figures:
    def __init__(self, prices: Mapping[str, Price] | None) -> None:
        # Imported here because importing the providers would slow down `import rxloop`.
        from rxloop.providers.catalog import find_price

        self._find_price, self._prices = find_price, prices
        self._spending = Spending(prices)
        self._thinking_dollars = 0.0
        self._state = initial_state()
        self._counts = Counter[str]()
        """Fields of `ContextStats`."""
        self._errors = Counter[str]()
        """Failed calls since the last success, by tool name."""
        self._omitted_calls: set[str] = set()

    def make_stats(self) -> ContextStats:
        """Return the current statistics."""
        state, dollars = self._state, self._spending.dollars + self._thinking_dollars
        self._counts["failures"] = state.thinking_failures + state.compression_failures
        return ContextStats(compression=state.compression, usage=state.usage, dollars=dollars, **self._counts)

    def add(self, event: Event) -> bool:
        """Add a durable event, and return True if it ends a cycle or an attempt."""
        self._state = fold_all([event], self._state)
        self._spending.add(event)
        if isinstance(event, ContextCompressedEvent | ThinkingNotedEvent):
            price = self._find_price(event.thinking_model or "", self._prices)
            self._thinking_dollars += 0.0 if price is None else price.of(event.thinking)
        match event:
            case ContextCompressedEvent():
                if event.view and event.branch is None and event.parent_task_id is None:
                    self._count_values(event)
            case ThinkingNotedEvent():
                self._counts["notes"] += 1
            case ToolCompleteEvent():
                self._errors[event.name] += not event.success
                self._counts["errors"] += not event.success
                self._counts["recovered_errors"] += self._errors.pop(event.name) if event.success else 0
                is_repeated = event.parent_task_id is None and _identify(event.call) in self._omitted_calls
                self._counts["repeated_calls"] += is_repeated
            case _:
                return isinstance(event, ThinkingFailedEvent) or ends_attempt(event)
        return not isinstance(event, ToolCompleteEvent)

    def _count_values(self, event: ContextCompressedEvent) -> None:
        """Count values that occur in omitted messages, and those missing from the remaining messages."""
        # Imported here because runs without compression do not need the compressors.
        from rxloop.context.compression import CompressionState
        from rxloop.context.facts import extract_facts
        from rxloop.context.summaries import to_line

        history = self._state.messages
        sent = "\n".join(map(to_line, CompressionState.load(event.view).messages(history)))
        omitted = [history[index] for index in event.folded if index < len(history)]
        self._omitted_calls = {_identify(call) for message in omitted for call in message.tool_calls}
        values = {fact.value for message in omitted for fact in extract_facts(message)}
        self._counts["values"] = len(values)
        self._counts["lost_values"] = sum(value not in sent for value in values)


def _identify(call: ToolCall) -> str:
    return f"{call.name} {sorted(call.arguments.items())}"
