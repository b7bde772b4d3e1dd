"""The view of the thoughts as a growing graph."""

from __future__ import annotations

from reactivex import Observable, abc

from rxloop.operators.views._types import View
from rxloop.protocol.events import Event, ThoughtStreamEvent
from rxloop.thoughts.graph import ThoughtGraph


def thought_graph() -> View[Event, ThoughtGraph]:
    """Give the graph of the thoughts so far, and of the tool calls that they follow from, after each thought.

    ::

        source              --t1--c--t2-----|      t thought-stream, c a tool call
        thought_graph()     --G1-----G2-----|      G1 holds t1; G2 holds t1, c and t2

    Returns:
        A view of graphs, none of which changes; the last one holds all thoughts.
    """

    def operator(source: Observable[Event]) -> Observable[ThoughtGraph]:
        def subscribe(
            observer: abc.ObserverBase[ThoughtGraph], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            graph = ThoughtGraph()

            def on_next(event: Event) -> None:
                nonlocal graph
                # Not the thoughts alone: the graph also wants the tool calls that they follow from.
                if event.durable:
                    graph = graph.add(event)
                if isinstance(event, ThoughtStreamEvent):
                    observer.on_next(graph)

            return source.subscribe(on_next, observer.on_error, observer.on_completed, scheduler=scheduler)

        return Observable(subscribe)

    return operator
