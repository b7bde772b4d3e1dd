"""The view for clients."""

from __future__ import annotations

from typing import cast

from reactivex import Observable, abc

from rxloop.operators.views._types import EventView
from rxloop.protocol.events import Event


def public() -> EventView:
    """Give the events as clients may see them.

    Internal kinds are left out, and so is what a hidden tool does: of `think_aloud` only its thoughts remain, for one.
    Of the others, each field that is not for clients is at its default; see `Event.for_clients`.

    ::

        source       --a--i--b--h--m--|      i internal, h of a hidden tool, m with metadata
        public()     --a-----b-----n--|      n the same without

    Returns:
        A view of the public events, in order.
    """

    def operator(source: Observable[Event]) -> Observable[Event]:
        def subscribe(
            observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            def on_next(event: Event) -> None:
                shown = event.for_clients()
                if shown is not None:
                    observer.on_next(shown)

            return source.subscribe(on_next, observer.on_error, observer.on_completed, scheduler=scheduler)

        return Observable(subscribe)

    return cast("EventView", operator)
