"""The view of what a run costs."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from reactivex import Observable, abc

from rxloop.operators.views._types import View
from rxloop.protocol.events import ContentCompleteEvent, Event, LLMCallEvent, UsageEvent

if TYPE_CHECKING:
    from rxloop.providers.prices import Price

log = logging.getLogger("rxloop")


def cost(prices: Mapping[str, Price] | None = None) -> View[Event, float]:
    """Emit the cost of the run so far, in US dollars, at each usage whose model has a price.

    A model without a price adds nothing; a warning at the end names it. If nothing had a price, or nothing was used,
    the only cost is 0.0, at the end. Of a `fallback` or a `hedge` each model that was asked counts, by its own price.

    ::

        source      --l--d--U--c--l--d--U--c--|      l llm-call, U usage
        cost()      --------$-----------$-----|

    Example:
        >>> async for dollars in run.pipe(op.cost({"mine:m": Price(input=0.5, output=1.5)})):

    Args:
        prices: The price of each model, by the name that it has on the stream; None takes the small table `PRICES`.

    Returns:
        A view of sums, each at least as large as the one before.
    """
    table = price_table(prices)

    def operator(source: Observable[Event]) -> Observable[float]:
        def subscribe(
            observer: abc.ObserverBase[float], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            spending = Spending(table)
            shown = False

            def on_next(event: Event) -> None:
                nonlocal shown
                if spending.take(event):
                    shown = True
                    observer.on_next(spending.dollars)

            def on_completed() -> None:
                if spending.unpriced:
                    names = ", ".join(map(repr, spending.unpriced))
                    log.warning(
                        "no price is known of %s, which is left out of the cost: op.cost({...}) takes one", names
                    )
                if not shown:
                    observer.on_next(spending.dollars)
                observer.on_completed()

            return source.subscribe(on_next, observer.on_error, on_completed, scheduler=scheduler)

        return Observable(subscribe)

    return operator


def price_table(prices: Mapping[str, Price] | None) -> Mapping[str, Price]:
    """These prices, or those that rxloop knows."""
    if prices is not None:
        return prices
    # Imported here, because the providers would make up a good part of the time to import rxloop.
    from rxloop.providers.prices import PRICES

    return PRICES


class Spending:
    """The cost of a stream of events, so far."""

    def __init__(self, prices: Mapping[str, Price]) -> None:
        self.dollars = 0.0
        self.unpriced: dict[str, None] = {}
        """The models that were used and have no price, in order."""
        self._prices = prices
        self._models: dict[tuple[str, str | None], str] = {}

    def take(self, event: Event) -> bool:
        """Fold one more event; True if it was a usage that has a price."""
        if not event.durable:
            return False
        call = (event.task_id, event.step)
        match event:
            case LLMCallEvent():
                self._models[call] = event.model
            case ContentCompleteEvent():
                self._models.pop(call, None)
            case UsageEvent():
                model = event.metadata.get("model") or self._models.get(call, "")
                price = self._prices.get(model)
                if price is None:
                    self.unpriced[model] = None
                else:
                    self.dollars += price.of(event.usage)
                    return True
            case _:
                pass
        return False
