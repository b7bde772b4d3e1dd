"""The view for clients."""

from __future__ import annotations

from rxloop.events import Event
from rxloop.operators._types import View


def public() -> View[Event, Event]:
    """Keep the events that are for clients.

    Internal kinds are left out, and so is what a hidden tool does: of `think_aloud` only its thoughts remain, for one.

    ::

        source       --a--i--b--h--|      i internal, h of a hidden tool
        public()     --a-----b-----|

    Returns:
        A view of the public events, in order.
    """
    from reactivex import operators as ops

    def is_public(event: Event) -> bool:
        return event.public

    return ops.filter(is_public)
