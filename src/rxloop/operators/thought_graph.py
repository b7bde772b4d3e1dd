"""The view of the thoughts as a growing graph."""

from __future__ import annotations

from reactivex import Observable, abc

from rxloop.events import Event, ThoughtStreamEvent
from rxloop.operators._types import View
from rxloop.thinking.graph import ThoughtGraph


def thought_graph() -> View[Event, ThoughtGraph]:
    """The graph of the thoughts so far, after each thought.

    ::

        source              --t1--a--t2-----|      t thought-stream
        thought_graph()     --G1-----G1,2---|

    Returns:
        A view of graphs; the last one holds all thoughts.
    """

    def operator(source: Observable[Event]) -> Observable[ThoughtGraph]:
        def subscribe(
            observer: abc.ObserverBase[ThoughtGraph], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            graph = ThoughtGraph()

            def on_next(event: Event) -> None:
                nonlocal graph
                if isinstance(event, ThoughtStreamEvent):
                    graph = graph.add(event)
                    observer.on_next(graph)

            return source.subscribe(on_next, observer.on_error, observer.on_completed, scheduler=scheduler)

        return Observable(subscribe)

    return operator
