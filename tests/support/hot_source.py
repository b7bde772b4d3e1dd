"""Subscriber for views of hot sources in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from reactivex.testing import Recorded, TestScheduler

from rxloop.operators import View, ViewOutput, make_view

Take = Callable[[Any], None]
Out = ViewOutput[Any]


class Subscriber:
    """Recorder of a view's notifications and source subscriptions."""

    def __init__(self, view: View[Any, Any], *messages: Recorded[Any], disposed: int = 1000) -> None:
        scheduler = TestScheduler()
        source = scheduler.create_hot_observable(*messages)
        self.messages: list[Any] = scheduler.start(lambda: source.pipe(view), disposed=disposed).messages
        self.subscriptions = source.subscriptions
        assert [item for item, _ in scheduler._queue.items if not item.is_cancelled()] == []


def pass_through_view(prepare: Callable[[Out], None]) -> View[Any, Any]:
    """Create a view that forwards all items. `prepare` receives its output."""

    def make(out: Out) -> Take:
        prepare(out)
        return out.emit

    return make_view(make)


def kinds(subscriber: Subscriber) -> list[Any]:
    """Return the values, followed by C for completion or E for an error."""
    return [each.value.value if each.value.kind == "N" else each.value.kind for each in subscriber.messages]
