"""The view of the answer as text."""

from __future__ import annotations

from reactivex import Observable, abc

from rxloop.events import ContentDeltaEvent, Event
from rxloop.operators._types import View


def text() -> View[Event, str]:
    """The text of the answer as it streams: the deltas of the main line.

    The lines of a strategy and the text of nested agents are left out. When a model call is sent a second time, its
    text starts again; who must know follows the events themselves.

    ::

        source     --d(He)--u--d(y)--c--|      d content-delta
        text()     --He--------y--------|

    Returns:
        A view of the pieces of text, as they are: joined, they are the text of the messages.
    """

    def operator(source: Observable[Event]) -> Observable[str]:
        def subscribe(
            observer: abc.ObserverBase[str], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            def on_next(event: Event) -> None:
                if isinstance(event, ContentDeltaEvent) and event.branch is None and event.parent_task_id is None:
                    observer.on_next(event.delta)

            return source.subscribe(on_next, observer.on_error, observer.on_completed, scheduler=scheduler)

        return Observable(subscribe)

    return operator
