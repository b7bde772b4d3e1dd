"""Scorers of what a run takes: money, tokens, time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rxloop.errors import ConfigurationError
from rxloop.operators.views.cost import Spending
from rxloop.protocol.events import Event
from rxloop.providers.prices import Price
from rxloop.recorded.diff import cost_of
from rxloop.runtime.experiments.case import Case
from rxloop.runtime.experiments.scorer import EventScorer, Scorer


def cost(prices: Mapping[str, Price] | None = None, *, name: str = "cost") -> Scorer:
    """What the run cost, in US dollars; lower is better.

    A model without a price makes it fail for that run: a sum without it would look like a saving.

    Args:
        prices: The price of each model, as for `op.cost`.
        name: The name in reports.
    """

    def dollars(case: Case, events: Sequence[Event]) -> float:
        spending = Spending(prices)
        for event in events:
            spending.take(event)
        if spending.unpriced:
            names = ", ".join(map(repr, spending.unpriced))
            raise ConfigurationError(f"no price is known of {names}: score.cost({{...}}) takes one")
        return spending.dollars

    return EventScorer(name, dollars, better="lower")


def tokens(*, name: str = "tokens") -> Scorer:
    """How many tokens the run took, input and output, as the provider counted them; lower is better.

    Args:
        name: The name in reports.
    """

    def count(case: Case, events: Sequence[Event]) -> int:
        return cost_of(events).usage.total_tokens

    return EventScorer(name, count, better="lower")


def seconds(*, name: str = "seconds") -> Scorer:
    """How long the run went on, by the clock of its events; lower is better. A pause does not count.

    Args:
        name: The name in reports.
    """

    def duration(case: Case, events: Sequence[Event]) -> float:
        return cost_of(events).seconds

    return EventScorer(name, duration, better="lower")
