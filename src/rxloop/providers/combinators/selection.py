"""Providers that choose among models: fallback, hedge, routed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, SerialDisposable, SingleAssignmentDisposable

from rxloop.errors import ConfigurationError, MediaRefused
from rxloop.pipeline.interfaces import Provider
from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol.events import Event, UsageEvent
from rxloop.providers.combinators import Combined, another_may_help, ask, close_made, counted
from rxloop.providers.factories import resolve_model
from rxloop.providers.retry import begins_answer, make_failed_event
from rxloop.stream.rx import resolve_scheduler
from rxloop.support.foreign_errors import leave_to_loop
from rxloop.support.tasks import close_all


def fallback(*models: Provider | str) -> Fallback:
    """Make a provider that asks the next model when one fails before it has delivered anything.

    It moves on after every failure that another vendor may not have: a key that is missing or refused, an unknown
    model, an overloaded or broken server, silence, a context window that is too short, a content filter, an image or a
    file that it refuses. It does not move on after a request that is wrong in itself. Each failure that it moves on
    from is an internal `llm-failed` event; the error of the last model is the error of the call. If all models fail and
    one of them refused an image or a file, this refusal is the error, so that the request is sent again without the
    part. A model's own retries come first: give it `retry=Retry(attempts=1)` to turn to the next one at once.

    ::

        a                --X
        b                  ----d-d-C|
        fallback(a, b)   --E---d-d-C|      E llm-failed, d deltas, C content-complete

    Example:
        >>> agent = Agent(fallback("zai:glm-4.7", "openai:gpt-5"))

    Args:
        *models: Providers or model strings, in the order in which they are asked.

    Raises:
        ConfigurationError: No model is given, or a model string names no model.
    """
    if not models:
        raise ConfigurationError("fallback() needs at least one model")
    return Fallback(*models)


class Fallback(Combined):
    """A provider that turns to the next model when one fails; made by `fallback`."""

    @property
    def name(self) -> str:
        """What it is called on the stream."""
        return f"fallback({', '.join(provider.name for provider in self.providers)})"

    def call(self, request: ModelRequest) -> Observable[Event]:
        """The answer of the first model that gives one."""

        def subscribe(
            observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            current = SerialDisposable()
            asked = 0
            begun = False
            refusal: MediaRefused | None = None

            def ask_next() -> None:
                nonlocal asked
                provider = self.providers[asked]
                asked += 1

                def on_next(event: Event) -> None:
                    nonlocal begun
                    if not begun:
                        begun = begins_answer(event)
                    observer.on_next(counted(event, provider) if type(event) is UsageEvent else event)

                # In its place before it is subscribed: a call may fail inside subscribe.
                slot = SingleAssignmentDisposable()
                current.disposable = slot
                slot.disposable = ask(provider, request).subscribe(
                    on_next, on_error, observer.on_completed, scheduler=scheduler
                )

            def on_error(error: Exception) -> None:
                nonlocal refusal
                if isinstance(error, MediaRefused):
                    refusal = refusal or error
                if begun or asked == len(self.providers) or not another_may_help(error):
                    if refusal is not None and refusal is not error and not begun:
                        observer.on_next(make_failed_event(error, 0.0))
                        error = refusal
                    observer.on_error(error)
                    return
                observer.on_next(make_failed_event(error, 0.0))
                if not current.is_disposed:
                    ask_next()

            ask_next()
            return current

        return Observable(subscribe)


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
        self._refusal: MediaRefused | None = None
        self.disposable = CompositeDisposable(self._timer)

    def begin(self) -> None:
        """Ask the first model, and the second after the wait."""
        self._ask()
        if self._open:
            self._timer.disposable = resolve_scheduler(self._scheduler).schedule_relative(self._after, self._ask)

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
        if isinstance(error, MediaRefused):
            self._refusal = self._refusal or error
        if self._winner is not None or not another_may_help(error) or not (self._running or self._waiting):
            # Nobody is left, or nobody could do better.
            if self._winner is None and self._refusal not in (None, error):
                # The loop sends the request again without the refused part, which the first model may then answer.
                self._observer.on_next(make_failed_event(error, 0.0))
                error = self._refusal or error
            self._win(slot)
            self._observer.on_error(error)
            return
        self._observer.on_next(make_failed_event(error, 0.0))
        self._ask()


def routed(choose: Callable[[ModelRequest], Provider | str], *, name: str = "routed") -> Routed:
    """Make a provider that asks a function which model answers a request.

    Example:
        >>> def by_plan(request):
        ...     return "zai:glm-4.7" if request.ctx.metadata.get("plan") == "pro" else "ollama:qwen3"
        >>> agent = Agent(routed(by_plan))

    Args:
        choose: Called for each request just before it is sent; the metadata of the run is in `request.ctx.metadata`.
            A model string makes one provider, which is kept for the next request. A provider remains the caller's, who
            closes it.
        name: What the provider is called on the stream.
    """
    return Routed(choose, name)


class Routed:
    """A provider that chooses a model for each request; made by `routed`."""

    def __init__(self, choose: Callable[[ModelRequest], Provider | str], name: str) -> None:
        self._choose = choose
        self.name = name
        """What it is called on the stream."""
        self._made: dict[str, Provider] = {}

    @property
    def keeps_to_schema(self) -> bool:
        """False: when the prompt is written, the model is not known yet, and asking in words works with any model."""
        return False

    def call(self, request: ModelRequest) -> Observable[Event]:
        """The answer of the chosen model."""
        provider = self._provider(self._choose(request))
        source = provider.call(request)

        def subscribe(
            observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            def on_next(event: Event) -> None:
                observer.on_next(counted(event, provider) if type(event) is UsageEvent else event)

            return source.subscribe(on_next, observer.on_error, observer.on_completed, scheduler=scheduler)

        return Observable(subscribe)

    def _provider(self, chosen: Provider | str) -> Provider:
        if not isinstance(chosen, str):
            return chosen
        if chosen not in self._made:
            self._made[chosen] = resolve_model(chosen)
        return self._made[chosen]

    async def aclose_made(self) -> None:
        """Close the models that were made from strings."""
        await close_made(self._made.values())

    async def aclose(self) -> None:
        """Close the models that were made from strings, even if one of them cannot be closed."""
        await close_all([provider.aclose for provider in self._made.values()])
