from __future__ import annotations

from collections.abc import Callable

from reactivex import Observable, abc

from rxloop.requests import IterationEnd, Operator, Signal
from rxloop.stream.connect import Connections, connect


def at_end(answer: Callable[[IterationEnd], Observable[Signal]]) -> Operator:
    """Answer the end of an iteration, once everything before it is done.

    ::

        in      --E--e---e---|
        answer               --a--E|
        out     -----e---e-----a--E|

    E `IterationEnd`, which is held until the source has completed; what `answer` makes of it takes its place.

    Args:
        answer: Called with the `IterationEnd` when all model and tool calls of the iteration are over. It should let
            the `IterationEnd` through behind its own signals, for the operators after it.
    """

    def operator(source: Observable[Signal]) -> Observable[Signal]:
        def subscribe(
            observer: abc.ObserverBase[Signal], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            held: IterationEnd | None = None
            connections = Connections()

            def on_next(signal: Signal) -> None:
                nonlocal held
                if isinstance(signal, IterationEnd):
                    held = signal
                else:
                    observer.on_next(signal)

            def on_completed() -> None:
                if held is None:
                    observer.on_completed()
                    return
                try:
                    answered = answer(held)
                except Exception as error:
                    observer.on_error(error)
                    return
                connect(answered, observer.on_next, observer.on_error, observer.on_completed, scheduler, connections)

            connect(source, on_next, observer.on_error, on_completed, scheduler, connections)
            return connections

        return Observable(subscribe)

    operator.__qualname__ = "at_end"
    return operator
