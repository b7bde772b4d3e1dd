"""The view of one task among several."""

from __future__ import annotations

from typing import cast

from reactivex import operators as ops

from rxloop.operators.views._types import EventView, named
from rxloop.protocol.events import Event


def for_task(task_id: str) -> EventView:
    """Keep the events of one task.

    For the events of a whole conversation, or for a run with nested agents, whose events carry task ids of their own.

    ::

        source          --a1--b1--a2--b2--|
        for_task("a")   --a1------a2------|

    Args:
        task_id: The task; an id that does not occur gives an empty view.

    Returns:
        A view of the events of that task, in order.
    """

    def belongs(event: Event) -> bool:
        return event.task_id == task_id

    return cast("EventView", named(ops.filter(belongs), "for_task"))
