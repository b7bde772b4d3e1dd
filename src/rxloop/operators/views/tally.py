"""The view that counts what has come of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from reactivex import operators as ops

from rxloop.operators.views._types import View, named
from rxloop.protocol.messages import Usage

if TYPE_CHECKING:
    from rxloop.providers.prices import Price


class Finished(Protocol):
    """What came of one item of a batch."""

    @property
    def error(self) -> Exception | None:
        """What went wrong."""
        ...

    @property
    def usage(self) -> Usage:
        """What it took."""
        ...


class Tally(NamedTuple):
    """How far a batch is.

    Attributes:
        done: The items that have an outcome.
        failed: Those of them whose run failed.
        usage: The tokens of all of them.
        dollars: What these cost; None without a price.
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


def tally(price: Price | None = None) -> View[Finished, Tally]:
    """Emit how far a batch is, after each outcome: how many have failed, and what all have cost so far.

    ::

        source     --o---o---x--|        o an outcome, x a failed one
        tally()    --1---2---3--|

    Example:
        >>> async for so_far in agent.map(documents).pipe(op.tally(PRICES["openai:gpt-5-mini"])):

    Args:
        price: That of the model, for the cost. The tokens of a run do not say how long each request was: all count as
            short ones.

    Returns:
        A view of a `Tally` for each outcome; `str(tally)` says it in words.
    """

    def add(so_far: Tally, outcome: Finished) -> Tally:
        return counted(so_far, outcome, price)

    return named(ops.scan(add, nothing_yet(price)), "tally")


def nothing_yet(price: Price | None) -> Tally:
    """The tally before the first outcome."""
    return Tally(dollars=None if price is None else 0.0)


def counted(so_far: Tally, outcome: Finished, price: Price | None) -> Tally:
    """The tally with one more outcome."""
    dollars = None if price is None or so_far.dollars is None else so_far.dollars + price.of_several(outcome.usage)
    failed = so_far.failed + (outcome.error is not None)
    return Tally(so_far.done + 1, failed, so_far.usage + outcome.usage, dollars)
