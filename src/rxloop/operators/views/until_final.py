"""The view that ends with the attempt."""

from __future__ import annotations

from typing import cast

from reactivex import operators as ops

from rxloop.operators.views._types import EventView, named
from rxloop.protocol.events import Event, ends_attempt


def until_final() -> EventView:
    """Complete right after the final `status-update` of the run.

    For streams that go on: those of a whole conversation, or of a log in which later attempts follow. The end of a
    nested agent's run is passed on like any other event.

    ::

        source            --a--f'--b--F--c--      F final, f' final of a nested run
        until_final()     --a--f'--b--(F|)

    Returns:
        A view of the events up to and with the final one.
    """

    def goes_on(event: Event) -> bool:
        return not ends_attempt(event)

    return cast("EventView", named(ops.take_while(goes_on, inclusive=True), "until_final"))
