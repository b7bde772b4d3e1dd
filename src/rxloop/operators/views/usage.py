"""The view of the token usage."""

from __future__ import annotations

from rxloop.operators.views._types import View, named
from rxloop.operators.views.of_type import of_type
from rxloop.protocol.events import Event, UsageEvent


def usage() -> View[Event, UsageEvent]:
    """Keep the token usage: one event for each model call whose provider sent it.

    ::

        source      --d--d--U--c--d--U--c--|      U usage
        usage()     --------U--------U-----|

    Example:
        >>> total = run.pipe(op.usage(), rx.scan(lambda sum, event: sum + event.usage, Usage()))

    Returns:
        A view of the `usage` events; each has the numbers of its own call.
    """
    return named(of_type(UsageEvent), "usage")
