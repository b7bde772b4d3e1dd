"""A provider that asks a second model when the first is slow to begin."""

from __future__ import annotations

import logging
from typing import Any

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, SingleAssignmentDisposable

from rxloop.errors import ConfigurationError
from rxloop.pipeline.requests import ModelRequest
from rxloop.pipeline.seams import Provider
from rxloop.protocol.events import Event, UsageEvent
from rxloop.providers._answers import begins_answer, failed
from rxloop.providers._combined import Combined, another_may_help, ask, counted
from rxloop.stream.foreign_errors import leave_to_loop
from rxloop.stream.scheduler import timers

log = logging.getLogger("rxloop")


def hedge(first: Provider | str, second: Provider | str, *, after: float) -> Hedge:
    """Make a provider that asks a second model when the first has delivered nothing for a while.

    The first model to deliver wins. The other one is disposed of, which closes its connection, and no event of its
    answer is shown. Its tokens are counted if it has reported them, which a model does only at its end. A model that
    fails before it has delivered anything leaves the answer to the other one, which is asked at once if it has not been
    asked yet; the failures after which that cannot help are those of `fallback`.

    ::

        a                          ---------X      disposed
        b                               ---d-d-C|
        hedge(a, b, after=0.1)     --------d-d-C|

    Example:
        >>> agent = Agent(hedge("zai:glm-4.7", "openai:gpt-5", after=2))

    Args:
        first: The model that is asked at once; a provider or a model string.
        second: The model that is asked after the wait.
        after: The seconds to wait.

    Raises:
        ConfigurationError: The wait is negative, or a model string names no model.
    """
    if after < 0:
        raise ConfigurationError(f"hedge() needs a wait of 0 s or more, not {after}")
    return Hedge(first, second, after)


class Hedge(Combined):
    """A provider that asks a second model when the first is slow to begin; made by `hedge`."""

    def __init__(self, first: Provider | str, second: Provider | str, after: float) -> None:
        super().__init__(first, second)
        self.first, self.second = self.providers
        self.after = after

    @property
    def name(self) -> str:
        """What it is called on the stream."""
        return f"hedge({self.first.name}, {self.second.name})"

    def call(self, request: ModelRequest) -> Observable[Event]:
        """The answer of the model that begins first."""

        def subscribe(
            observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            race = _Race(self, request, observer, scheduler)
            race.begin()
            return race.disposable

        return Observable(subscribe)


class _Race:
    """One call: up to two answers, one of which wins."""

    def __init__(
        self,
        hedge: Hedge,
        request: ModelRequest,
        observer: abc.ObserverBase[Event],
        scheduler: abc.SchedulerBase | None,
    ) -> None:
        self._waiting = [hedge.second, hedge.first]
        self._after = hedge.after
        self._request = request
        self._observer = observer
        self._scheduler = scheduler
        self._timer = SingleAssignmentDisposable()
        self._running: list[SingleAssignmentDisposable] = []
        self._winner: SingleAssignmentDisposable | None = None
        self.disposable = CompositeDisposable(self._timer)

    def begin(self) -> None:
        """Ask the first model, and the second after the wait."""
        self._ask()
        if self._open:
            self._timer.disposable = timers(self._scheduler).schedule_relative(self._after, self._ask)

    @property
    def _open(self) -> bool:
        """Whether the second model may still be asked."""
        return self._winner is None and bool(self._waiting) and not self.disposable.is_disposed

    def _ask(self, _scheduler: abc.SchedulerBase | None = None, _state: Any = None) -> None:
        if not self._open:
            return
        provider = self._waiting.pop()
        slot = SingleAssignmentDisposable()
        self._running.append(slot)
        self.disposable.add(slot)

        def on_next(event: Event) -> None:
            if self._winner is None and begins_answer(event):
                self._win(slot)
            # Until there is a winner, only the news of failures and the counts of tokens come here, of either model.
            self._observer.on_next(counted(event, provider) if type(event) is UsageEvent else event)

        def on_error(error: Exception) -> None:
            self._fail(slot, error)

        slot.disposable = ask(provider, self._request).subscribe(
            on_next, on_error, self._observer.on_completed, scheduler=self._scheduler
        )

    def _win(self, slot: SingleAssignmentDisposable) -> None:
        if self._winner is not None:
            return
        self._winner = slot
        for other in self._running:
            if other is not slot:
                self._drop(other)

    def _drop(self, slot: SingleAssignmentDisposable) -> None:
        try:
            self.disposable.remove(slot)
        except BaseException as error:
            # The answer of the winner, or the last error, is delivered all the same.
            log.warning("the slower model of hedge() could not be stopped", exc_info=error)
            leave_to_loop(error)

    def _fail(self, slot: SingleAssignmentDisposable, error: Exception) -> None:
        self._running.remove(slot)
        if self._winner is not None or not another_may_help(error) or not (self._running or self._waiting):
            # Nobody is left, or nobody could do better.
            self._win(slot)
            self._observer.on_error(error)
            return
        self._observer.on_next(failed(error, 0.0))
        self._ask()
