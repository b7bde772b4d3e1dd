"""The view of what a run costs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from rxloop.errors import UnpricedModel
from rxloop.operators.views import View
from rxloop.operators.views.make_view import ViewOutput, make_view
from rxloop.protocol.events import ContentCompleteEvent, Event, LLMCallEvent, UsageEvent

if TYPE_CHECKING:
    from rxloop.providers.catalog import Price


def cost(prices: Mapping[str, Price] | None = None) -> View[Event, float]:
    """Emit the cost of the run so far, in US dollars, at each usage whose model has a price.

    Tokens that came from the vendor's cache, or were written into it, count by their own prices, and so do requests of
    a length for which the vendor takes more. A model without a price adds nothing, and an `UnpricedModel` warning names
    it. If nothing had a price, or nothing was used, the only cost is 0.0, at the end. Of a `fallback` or a `hedge` each
    model that was asked counts, by its own price.

    ::

        source      --l--d--U--c--l--d--U--c--|      l llm-call, U usage
        cost()      --------$-----------$-----|

    Example:
        >>> async for dollars in run.pipe(op.cost({"mine:m": Price(input=0.5, output=1.5)})):

    Args:
        prices: The price of each model, by its model string. Those that are not here have the prices of
            `rxloop.providers.CATALOG`.

    Returns:
        A view of sums, each at least as large as the one before.
    """

    def add_up(out: ViewOutput[float]) -> Callable[[Event], None]:
        spending = Spending(prices)
        shown, warned = False, 0

        def take(event: Event) -> None:
            nonlocal shown, warned
            if spending.take(event):
                shown = True
                out.emit(spending.dollars)
            elif len(spending.unpriced) > warned:
                warned = len(spending.unpriced)
                warnings.warn(_unpriced([*spending.unpriced][-1]), stacklevel=1)

        def end() -> None:
            if not shown:
                out.emit(spending.dollars)

        out.on_end(end)
        return take

    return make_view(add_up)


def _unpriced(model: str) -> UnpricedModel:
    name = repr(model) if model else "a model without a name"
    return UnpricedModel(
        f"no price is known of {name}, which is left out of the cost: op.cost({{{model!r}: Price(...)}}) takes one"
    )


class Spending:
    """The cost of a stream of events, so far.

    Args:
        prices: What models cost, before what `CATALOG` says of them.
    """

    def __init__(self, prices: Mapping[str, Price] | None) -> None:
        # Imported here, because the providers would make up a good part of the time to import rxloop.
        from rxloop.providers.catalog import count_long_kept, find_price

        self.dollars = 0.0
        self.unpriced: dict[str, None] = {}
        """The models that were used and have no price, in order."""
        self._price, self._long_kept = partial(find_price, prices=prices), count_long_kept
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
                price = self._price(model)
                if price is None:
                    self.unpriced[model] = None
                else:
                    self.dollars += price.of(event.usage, self._long_kept(event))
                    return True
            case _:
                pass
        return False
