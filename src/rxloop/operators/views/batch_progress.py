"""Progress views for a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from reactivex import Observable
from reactivex import operators as ops

from rxloop.errors import ConfigurationError
from rxloop.operators.views import View, name_view
from rxloop.operators.views.make_view import ViewOutput, make_view
from rxloop.protocol.messages import Usage
from rxloop.support.misuse import check_argument, check_minimum

if TYPE_CHECKING:
    from rich.console import Console

    from rxloop.providers.catalog import Price


class Outcome(Protocol):
    """Outcome of a single batch item."""

    @property
    def error(self) -> Exception | None:
        """The error if the run failed, or None."""
        ...

    @property
    def usage(self) -> Usage:
        """Tokens used by the run."""
        ...


class Tally(NamedTuple):
    """Totals of the finished items of a batch.

    Attributes:
        done: Number of finished items.
        failed: Number of finished items whose run failed.
        usage: Total tokens.
        dollars: Total cost in US dollars, or None without a price.
    """

    done: int = 0
    failed: int = 0
    usage: Usage = Usage()
    dollars: float | None = None

    def __str__(self) -> str:
        tokens = self.usage.input_tokens + self.usage.output_tokens
        failed = f", {self.failed:,} failed" if self.failed else ""
        dollars = "" if self.dollars is None else f", ${self.dollars:,.2f}"
        return f"{self.done - self.failed:,} answered{failed}, {tokens:,} tokens{dollars}"


def tally(price: Price | None = None) -> View[Outcome, Tally]:
    """Emit the totals of a batch after each outcome.

    ::

        source     --o---o---x--|        o an outcome, x a failed one
        tally()    --1---2---3--|

    Example:
        >>> async for so_far in agent.map(documents).pipe(op.tally(PRICES["openai:gpt-5-mini"])):

    Args:
        price: Price of the model. The usage of a run does not have the length of each request, so all requests are
            charged as short ones.

    Returns:
        View of a `Tally` for each outcome. `str(tally)` describes it.

    Raises:
        ConfigurationError: `price` is not a `Price`.
    """

    def add(totals: Tally, outcome: Outcome) -> Tally:
        return add_outcome(totals, outcome, price)

    return name_view(ops.scan(add, empty_tally(price)), "op.tally")


def empty_tally(price: Price | None) -> Tally:
    """Create initial totals.

    Raises:
        ConfigurationError: `price` is not a `Price`.
    """
    is_price = price is None or hasattr(price, "of_several")
    check_argument("price", price, is_price, "Price(input=..., output=...) or rxloop.providers.find_price(model)")
    return Tally(dollars=None if price is None else 0.0)


def add_outcome(totals: Tally, outcome: Outcome, price: Price | None) -> Tally:
    """Return updated totals including an additional outcome."""
    dollars = None if price is None or totals.dollars is None else totals.dollars + price.of_several(outcome.usage)
    failed = totals.failed + (outcome.error is not None)
    return Tally(totals.done + 1, failed, totals.usage + outcome.usage, dollars)


F = TypeVar("F", bound=Outcome)


def progress(
    total: int | None = None, *, label: str = "", price: Price | None = None, console: Console | None = None
) -> Callable[[Observable[F]], Observable[F]]:
    """Pass all outcomes of a batch, and draw a progress bar with the current cost in a terminal or notebook.

    Requires rich from the extra `rxloop[cli]`, and ipywidgets in a notebook. Without a terminal or notebook, nothing is
    drawn.

    ::

        source        --o---o---x--|
        progress()    --o---o---x--|

    Example:
        >>> async for outcome in agent.map(documents).pipe(op.progress(len(documents))):

    Args:
        total: Number of items. The default is a bar without an end.
        label: Text before the bar.
        price: Price of the model, used to show the cost.
        console: Console for the bar. The default writes to stderr.

    Returns:
        View of the same outcomes.

    Raises:
        ConfigurationError: rich is not installed.
    """
    check_minimum(0, optional=True, total=total)
    draw = _bar(total, label, console)

    def show_bar(out: ViewOutput[F]) -> Callable[[F], None]:
        totals = empty_tally(price)
        show, stop = draw()
        out.on_dispose(stop)

        def handle(outcome: F) -> None:
            nonlocal totals
            totals = add_outcome(totals, outcome, price)
            show(totals)
            out.emit(outcome)

        return handle

    return make_view(show_bar)


DrawBar = Callable[[], tuple[Callable[[Tally], None], Callable[[], None]]]
"""Starts a progress bar, and returns functions to update and stop it."""


def _bar(total: int | None, label: str, console: Any) -> DrawBar:
    # Imported here because rich is an optional dependency and slow to import.
    try:
        from rich import progress as bars
        from rich.console import Console
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"op.progress requires {error.name}; install it with pip install 'rxloop[cli]'"
        ) from None

    def draw() -> tuple[Callable[[Tally], None], Callable[[], None]]:
        target = console if console is not None else Console(stderr=True)
        bar = bars.Progress(
            *([bars.TextColumn("{task.description}")] if label else []),
            bars.BarColumn(),
            bars.MofNCompleteColumn(),
            bars.TextColumn("{task.fields[tally]}"),
            bars.TimeRemainingColumn(elapsed_when_finished=True),
            console=target,
            # Background refresh threads would capture cell output in notebooks.
            auto_refresh=not target.is_jupyter,
            disable=not (target.is_terminal or target.is_jupyter),
        )
        task = bar.add_task(label, total=total, tally="")
        bar.start()

        def show(tally: Tally) -> None:
            bar.update(task, completed=tally.done, tally=str(tally), refresh=target.is_jupyter)

        return show, bar.stop

    return draw
