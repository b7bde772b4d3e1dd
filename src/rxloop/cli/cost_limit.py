"""Cost limit in US dollars for the option `--max-cost`."""

from __future__ import annotations

import math
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import reactivex
import reactivex.operators as rx
from reactivex import Observable

from rxloop.errors import ConfigurationError
from rxloop.operators.views.cost import Spending
from rxloop.pipeline.interfaces import Provider
from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol.events import Event
from rxloop.providers.catalog import find_price
from rxloop.providers.combinators import Combined
from rxloop.run.handle import Run
from rxloop.state.run_state import LimitHit
from rxloop.support.redaction import display_url


class CostLimit:
    """Cost limit for all runs of a command, including nested runs.

    Args:
        dollars: Maximum cost in US dollars, or None for unlimited costs.

    Raises:
        ConfigurationError: The limit is not a positive number.
    """

    def __init__(self, dollars: float | None = None) -> None:
        if dollars is not None and not (dollars > 0 and math.isfinite(dollars)):
            raise ConfigurationError(f"--max-cost must be a positive number of US dollars, got {dollars:g}")
        self._dollars = dollars
        self._spending = Spending(None)

    def wrap(self, provider: Provider) -> Provider:
        """Add limit checks before model calls.

        Raises:
            ConfigurationError: The model has no known price.
        """
        if self._dollars is None:
            return provider
        if find_price(provider.name) is None:
            raise ConfigurationError(
                f"--max-cost needs the price of {display_url(provider.name)!r}, which is unknown; "
                "omit it, or select a model with a price from rxloop models"
            )
        return _LimitedModel(self, provider)

    @contextmanager
    def watch(self, run: Run[Any]) -> Generator[None]:
        """Count the usage of a run inside the block."""
        if self._dollars is None:
            yield
            return
        events: Observable[bool] = run.pipe(rx.map(self._spending.add))
        subscription = events.subscribe()
        try:
            yield
        finally:
            subscription.dispose()

    def find_reached(self) -> LimitHit | None:
        """Return an error if the limit is reached or a price is unknown, otherwise None."""
        if self._dollars is None:
            return None
        if self._spending.unpriced:
            names = ", ".join(map(display_url, self._spending.unpriced))
            return LimitHit("cost", f"the price of {names} is unknown, so the cost cannot be limited (--max-cost)")
        if self._spending.dollars < self._dollars:
            return None
        return LimitHit("cost", f"${self._spending.dollars:.4f} of ${self._dollars:g} are spent (--max-cost)")


class _LimitedModel(Combined):
    def __init__(self, limit: CostLimit, provider: Provider) -> None:
        super().__init__(provider)
        self._limit = limit
        (self.provider,) = self.providers

    @property
    def name(self) -> str:
        """The model's name."""
        return self.provider.name

    def call(self, request: ModelRequest) -> Observable[Event]:
        """Call the model after checking the limit."""
        reached = self._limit.find_reached()
        return self.provider.call(request) if reached is None else reactivex.throw(reached)
