"""The view of the answer as text."""

from __future__ import annotations

from reactivex import Observable, abc

from rxloop.operators.views._types import View
from rxloop.protocol.events import ContentCompleteEvent, ContentDeltaEvent, Event
from rxloop.stream.stream import JOINS


def text(*, nested: bool = False) -> View[Event, str]:
    """Give the text of the answer as it streams: the deltas of the main line.

    The deltas of a message that is complete are not kept: late subscribers get its text in one piece.

    The lines of a strategy are left out, and so is the text of nested agents, unless it is asked for. When a model call
    is sent a second time, its text starts again. To notice that, follow the events themselves.

    ::

        source     --d(He)--u--d(y)--c--|      d content-delta
        text()     --He--------y--------|

    Args:
        nested: Give the text of nested agents, too. Where several answer side by side, their pieces mix: to tell them
            apart, follow the events, which have an `agent_path`.

    Returns:
        A view of the pieces of text, as they are: joined, they are the text of the messages.
    """

    def operator(source: Observable[Event]) -> Observable[str]:
        def subscribe(
            observer: abc.ObserverBase[str], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            streamed = False
            below: set[str] = set()

            def on_next(event: Event) -> None:
                nonlocal streamed
                if event.branch is not None or event.parent_task_id is not None:
                    if nested and event.branch is None:
                        on_nested(event)
                    return
                if isinstance(event, ContentDeltaEvent):
                    streamed = True
                    observer.on_next(event.delta)
                elif isinstance(event, ContentCompleteEvent):
                    if event.content and not streamed:
                        observer.on_next(event.content)
                    streamed = False

            def on_nested(event: Event) -> None:
                if isinstance(event, ContentDeltaEvent):
                    below.add(event.task_id)
                    observer.on_next(event.delta)
                elif isinstance(event, ContentCompleteEvent):
                    if event.content and event.task_id not in below:
                        observer.on_next(event.content)
                    below.discard(event.task_id)

            return source.subscribe(on_next, observer.on_error, observer.on_completed, scheduler=scheduler)

        return Observable(subscribe)

    setattr(operator, JOINS, True)
    return operator
