"""A run for each subscription."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, Disposable
from typing_extensions import TypeVar

from rxloop.protocol.events import AnyEvent
from rxloop.run.handle import Run
from rxloop.run.result import Result
from rxloop.stream.readers import Holds
from rxloop.stream.rx import RunScheduler
from rxloop.stream.sources import from_awaitable
from rxloop.stream.stream import Stream

T = TypeVar("T")

R = TypeVar("R")

O = TypeVar("O", default=str)  # noqa: E741


class ColdRun(Stream[AnyEvent], Generic[O]):
    """A prompt as an Observable: each subscription makes a run of its own, and disposing it cancels that run.

    It is the events of the run. How a run fails is told by its final event, as by `Run.events`; `result()` and `text()`
    end with the error, for `retry` and `catch`.

    ::

        questions                                            --a-----b----------|
        questions.pipe(rx.flat_map_latest(agent.observe))    --twl-d-twl-d-c-F--|      the run of a is cancelled

    A slow reader of a merged stream that blocks holds back the runs of the subscription, too.
    """

    def __init__(self, make: Callable[[], Run[O]]) -> None:
        """Make an Observable of runs.

        Args:
            make: Makes the run of a subscription.
        """
        super().__init__(_each(make, lambda run: run.events), Holds())
        self._make = make

    def text(self) -> Stream[str]:
        """The text of the answer as it streams, and at the end the error of a run that failed; see `Run.text`."""
        return Stream(_each(self._make, lambda run: run.text()), Holds(), joins=True)

    def result(self) -> Stream[Result[O]]:
        """The result, or the error of a run that has none; see `Run.result`."""
        return Stream(_each(self._make, lambda run: from_awaitable(run.result, name="rxloop-result")), Holds())


def _each(make: Callable[[], Run[R]], of: Callable[[Run[R]], Observable[T]]) -> Observable[T]:
    """Something of a run that each subscription makes for itself."""

    def subscribe(observer: abc.ObserverBase[T], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        run = make()
        gate, gates = run.hold.gate, scheduler.gates if isinstance(scheduler, RunScheduler) else None
        if gates is not None:
            gates.add(gate)

        def dispose() -> None:
            if gates is not None:
                gates.remove(gate)
            run.cancel("its subscription was disposed")

        return CompositeDisposable(of(run).subscribe(observer, scheduler=scheduler), Disposable(dispose))

    return Observable(subscribe)
