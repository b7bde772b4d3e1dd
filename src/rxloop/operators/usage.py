"""The view of the token usage."""

from __future__ import annotations

from rxloop.events import Event, UsageEvent
from rxloop.operators._types import View
from rxloop.operators.of_type import of_type


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
    return of_type(UsageEvent)
