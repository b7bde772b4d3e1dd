"""The runs that a process drives, and one stream over all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, Disposable

from rxloop.protocol.events import AnyEvent
from rxloop.run.handle import Run
from rxloop.stream.merge import Merging
from rxloop.stream.reading import Reading
from rxloop.stream.stream import Stream


class Driven:
    """The runs that this process drives at the moment."""

    def __init__(self) -> None:
        self._runs: dict[str, Run[Any]] = {}
        self._watching: dict[str, set[Callable[[], None]]] = {}
        self._everybody: set[Callable[[Run[Any]], None]] = set()
        self.events: Stream[AnyEvent] = Stream(Observable(self._subscribe), Reading())
        """The events of all of them: of those that go on, and of those that come."""

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run[Any]]:
        return iter(tuple(self._runs.values()))

    def run(self, task_id: str) -> Run[Any] | None:
        """The run, if it is driven here at the moment."""
        return self._runs.get(task_id)

    def begun(self, run: Run[Any]) -> None:
        """Take note that an attempt of a run begins here."""
        self._runs[run.task_id] = run
        for tell in list(self._everybody):
            tell(run)
        for tell in self._watching.pop(run.task_id, ()):
            tell()

    def ended(self, task_id: str) -> None:
        """Take note that nothing of the run goes on here."""
        self._runs.pop(task_id, None)

    def watch(self, task_id: str, begun: Callable[[], None]) -> Callable[[], None]:
        """Be told when the run begins to be driven here, until the function that is returned is called."""
        watching = self._watching.setdefault(task_id, set())
        watching.add(begun)

        def stop() -> None:
            watching.discard(begun)
            if not watching and self._watching.get(task_id) is watching:
                del self._watching[task_id]

        return stop

    def _subscribe(
        self, observer: abc.ObserverBase[AnyEvent], scheduler: abc.SchedulerBase | None = None
    ) -> abc.DisposableBase:
        merging = Merging(observer, scheduler)

        def tell(run: Run[Any]) -> None:
            merging.add(run.events)

        for run in self:
            tell(run)
        self._everybody.add(tell)
        return CompositeDisposable(merging.subscriptions, Disposable(lambda: self._everybody.discard(tell)))
