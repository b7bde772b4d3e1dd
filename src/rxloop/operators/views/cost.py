"""Cost view."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Self

from rxloop.errors import UnpricedModel
from rxloop.operators.views import View
from rxloop.operators.views.make_view import ViewOutput, make_view
from rxloop.protocol.events import ContentCompleteEvent, Event, LLMCallEvent, UsageEvent
from rxloop.support.misuse import check_prices

if TYPE_CHECKING:
    from rxloop.providers.catalog import Price


def cost(prices: Mapping[str, Price] | None = None) -> View[Event, float]:
    """Emit the cost of the run so far, in US dollars, after each usage of a model with a price.

    Cached tokens, tokens written to the cache, and long requests are charged at their own prices. A model without a
    price is not counted and causes an `UnpricedModel` warning. If no priced model was used, the view emits 0.0 at the
    end. With `fallback` and `hedge`, every model that was called is charged at its own price.

    ::

        source      --l--d--U--c--l--d--U--c--|      l llm-call, U usage
        cost()      --------$-----------$-----|

    Example:
        >>> async for dollars in run.pipe(op.cost({"mine:m": Price(input=0.5, output=1.5)})):

    Args:
        prices: Prices by model string. Other models have the prices of `rxloop.providers.CATALOG`.

    Returns:
        View of the total cost, which never decreases.

    Raises:
        ConfigurationError: `prices` is not a mapping.
    """
    check_prices(prices)

    def sum_costs(out: ViewOutput[float]) -> Callable[[Event], None]:
        spending = Spending(prices)
        is_shown, warned = False, 0

        def handle(event: Event) -> None:
            nonlocal is_shown, warned
            if spending.add(event):
                is_shown = True
                out.emit(spending.dollars)
            elif len(spending.unpriced) > warned:
                warned = len(spending.unpriced)
                warnings.warn(_make_warning([*spending.unpriced][-1]), stacklevel=1)

        def end() -> None:
            if not is_shown:
                out.emit(spending.dollars)

        out.on_end(end)
        return handle

    return make_view(sum_costs)


def _make_warning(model: str) -> UnpricedModel:
    name = repr(model) if model else "a model without a name"
    return UnpricedModel(
        f"{name} has no price and is not included in the cost; pass op.cost({{{model!r}: Price(...)}})"
    )


class Spending:
    """Total cost of a stream of events.

    Args:
        prices: Prices by model string, which take precedence over `CATALOG`.
    """

    def __init__(self, prices: Mapping[str, Price] | None) -> None:
        # Imported here because importing the providers would slow down `import rxloop`.
        from rxloop.providers.catalog import count_long_kept, find_price

        self.dollars = 0.0
        self.unpriced: dict[str, None] = {}
        """Models without a configured price, in order of use."""
        self._price, self._long_kept = partial(find_price, prices=prices), count_long_kept
        self._models: dict[tuple[str, str | None], str] = {}

    def copy(self) -> Self:
        """Return a copy to which other events can be added."""
        other = copy(self)
        other.unpriced, other._models = dict(self.unpriced), dict(self._models)
        return other

    def add(self, event: Event) -> bool:
        """Add an event, and return True if it is a usage with a price."""
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
