from __future__ import annotations

from collections.abc import Callable

from reactivex import Observable, abc

from rxloop.operators.loop.checks import declare_handler
from rxloop.pipeline.requests import IterationEnd, Operator, Signal
from rxloop.stream.rx import ColdObservable, Connections, connect
from rxloop.support.misuse import check_argument


def at_end(answer: Callable[[IterationEnd], Observable[Signal]]) -> Operator[object]:
    """Replace the `IterationEnd` of an iteration after the source has completed.

    ::

        in      --E--e---e---|
        answer               --a--E|
        out     -----e---e-----a--E|

    E is the `IterationEnd`.

    Args:
        answer: Called with the `IterationEnd` after all model and tool calls of the iteration. It should emit the
            `IterationEnd` again after its own signals, because later operators may need it.

    Raises:
        ConfigurationError: If `answer` is not callable.
    """
    check_argument("answer", answer, callable(answer), "a function of the IterationEnd")

    def operator(source: Observable[Signal]) -> Observable[Signal]:
        def subscribe(
            observer: abc.ObserverBase[Signal], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            return _AtEnd(answer, observer, scheduler).connect(source)

        return ColdObservable(subscribe)

    operator.__qualname__ = "at_end"
    return declare_handler(operator, IterationEnd)


class _AtEnd:
    """Subscription of `at_end`. A class is cheaper than closures for each iteration."""

    __slots__ = ("_answer", "_connections", "_end_request", "_observer", "_scheduler")

    def __init__(
        self,
        answer: Callable[[IterationEnd], Observable[Signal]],
        observer: abc.ObserverBase[Signal],
        scheduler: abc.SchedulerBase | None,
    ) -> None:
        self._answer = answer
        self._observer = observer
        self._scheduler = scheduler
        self._connections = Connections()
        self._end_request: IterationEnd | None = None

    def connect(self, source: Observable[Signal]) -> abc.DisposableBase:
        """Subscribe to the source. Disposing the result also disposes the answer."""
        connect(source, self._on_next, self._observer.on_error, self._on_completed, self._scheduler, self._connections)
        return self._connections

    def _on_next(self, signal: Signal) -> None:
        if isinstance(signal, IterationEnd):
            self._end_request = signal
        else:
            self._observer.on_next(signal)

    def _on_completed(self) -> None:
        observer = self._observer
        if self._end_request is None:
            observer.on_completed()
            return
        try:
            replacement = self._answer(self._end_request)
        except Exception as error:
            observer.on_error(error)
            return
        on_next, on_error, on_completed = observer.on_next, observer.on_error, observer.on_completed
        connect(replacement, on_next, on_error, on_completed, self._scheduler, self._connections)
