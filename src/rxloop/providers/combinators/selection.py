"""Model selection: fallback, hedge, routed."""

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
from rxloop.providers.combinators import Combined, add_model_name, another_may_help, ask, close_made
from rxloop.providers.factories import resolve_model
from rxloop.providers.retry import begins_answer, make_failed_event
from rxloop.stream.rx import resolve_scheduler
from rxloop.support.foreign_errors import leave_to_loop
from rxloop.support.misuse import check_argument, check_positive
from rxloop.support.tasks import close_all


def fallback(*models: Provider | str) -> Fallback:
    """Create a provider that falls back to other models.

    The next model is used if a call fails before producing output and another vendor could succeed: missing or rejected
    key, unknown model, server failure, timeout, short context window, content filter, or rejected media. Invalid
    requests are not retried. Each fallback publishes an internal `llm-failed` event. If all models fail, the last error
    is raised, unless any model rejected
    media: then the rejection is raised, so the loop can retry without that part. Each model performs its own retries
    first; use `retry=Retry(attempts=1)` to disable them.

    ::

        a                --X
        b                  ----d-d-C|
        fallback(a, b)   --E---d-d-C|      E llm-failed, d deltas, C content-complete

    Example:
        >>> agent = Agent(fallback("zai:glm-4.7", "openai:gpt-5"))

    Args:
        *models: Providers or model strings in order of preference.

    Raises:
        ConfigurationError: No models were passed, or a model string is invalid.
    """
    if not models:
        raise ConfigurationError("fallback() needs at least one model")
    return Fallback(*models)


class Fallback(Combined):
    """Provider created by `fallback`."""

    @property
    def name(self) -> str:
        """Name in events."""
        return f"fallback({', '.join(provider.name for provider in self.providers)})"

    def call(self, request: ModelRequest) -> Observable[Event]:
        """Call models until one succeeds."""

        def subscribe(
            observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            current = SerialDisposable()
            count = 0
            started = False
            refusal: MediaRefused | None = None

            def call_next() -> None:
                nonlocal count
                provider = self.providers[count]
                count += 1

                def on_next(event: Event) -> None:
                    nonlocal started
                    if not started:
                        started = begins_answer(event)
                    observer.on_next(add_model_name(event, provider) if type(event) is UsageEvent else event)

                # Calls can fail while subscribing.
                slot = SingleAssignmentDisposable()
                current.disposable = slot
                slot.disposable = ask(provider, request).subscribe(
                    on_next, on_error, observer.on_completed, scheduler=scheduler
                )

            def on_error(error: Exception) -> None:
                nonlocal refusal
                if isinstance(error, MediaRefused):
                    refusal = refusal or error
                if started or count == len(self.providers) or not another_may_help(error):
                    if refusal is not None and refusal is not error and not started:
                        observer.on_next(make_failed_event(error, 0.0))
                        error = refusal
                    observer.on_error(error)
                    return
                observer.on_next(make_failed_event(error, 0.0))
                if not current.is_disposed:
                    call_next()

            call_next()
            return current

        return Observable(subscribe)


log = logging.getLogger("rxloop")


def hedge(first: Provider | str, second: Provider | str, *, after: float) -> Hedge:
    """Create a provider that calls a second model after a delay.

    Whichever model produces output first wins. The other call is disposed and its connection closed. Its tokens are
    only counted if already reported, which usually happens at the end. If a model fails before producing output, the
    other one is used, and called immediately if necessary. The same failures as in `fallback` are handled.

    ::

        a                          ---------X      disposed
        b                               ---d-d-C|
        hedge(a, b, after=0.1)     --------d-d-C|

    Example:
        >>> agent = Agent(hedge("zai:glm-4.7", "openai:gpt-5", after=2))

    Args:
        first: Provider or model string to call immediately.
        second: Provider or model string to call after the delay.
        after: Delay in seconds.

    Raises:
        ConfigurationError: The delay is negative, or a model string is invalid.
    """
    return Hedge(first, second, after)


class Hedge(Combined):
    """Provider created by `hedge`."""

    def __init__(self, first: Provider | str, second: Provider | str, after: float) -> None:
        check_positive(zero=True, after=after)
        super().__init__(first, second)
        self.first, self.second = self.providers
        self.after = after

    @property
    def name(self) -> str:
        """Name in events."""
        return f"hedge({self.first.name}, {self.second.name})"

    def call(self, request: ModelRequest) -> Observable[Event]:
        """Return the fastest model's response."""

        def subscribe(
            observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            race = _Race(self, request, observer, scheduler)
            race.begin()
            return race.disposable

        return Observable(subscribe)


class _Race:
    """Hedged call with up to two responses."""

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
        """Call the first model and schedule the second."""
        self._ask()
        if self._open:
            self._timer.disposable = resolve_scheduler(self._scheduler).schedule_relative(self._after, self._ask)

    @property
    def _open(self) -> bool:
        """True if the second model may still be called."""
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
            # Before a model wins, both models publish only failures and token counts.
            self._observer.on_next(add_model_name(event, provider) if type(event) is UsageEvent else event)

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
            # The winner's answer or the last error must still be delivered.
            log.warning("Failed to stop the slower model of hedge()", exc_info=error)
            leave_to_loop(error)

    def _fail(self, slot: SingleAssignmentDisposable, error: Exception) -> None:
        self._running.remove(slot)
        if isinstance(error, MediaRefused):
            self._refusal = self._refusal or error
        if self._winner is not None or not another_may_help(error) or not (self._running or self._waiting):
            # Other models are unavailable or cannot help.
            if self._winner is None and self._refusal not in (None, error):
                # The loop retries without the rejected part, and the first model may succeed.
                self._observer.on_next(make_failed_event(error, 0.0))
                error = self._refusal or error
            self._win(slot)
            self._observer.on_error(error)
            return
        self._observer.on_next(make_failed_event(error, 0.0))
        self._ask()


def routed(choose: Callable[[ModelRequest], Provider | str], *, name: str = "routed") -> Routed:
    """Create a provider that selects a model for each request.

    Example:
        >>> def by_plan(request):
        ...     return "zai:glm-4.7" if request.ctx.metadata.get("plan") == "pro" else "ollama:qwen3"
        >>> agent = Agent(routed(by_plan))

    Args:
        choose: Called before sending a request. Run metadata is available as `request.ctx.metadata`. Providers created
            from model strings are cached. Other providers remain owned by the caller.
        name: Provider name used in events.

    Raises:
        ConfigurationError: `choose` is not a function.
    """
    return Routed(choose, name)


class Routed:
    """Provider created by `routed`."""

    def __init__(self, choose: Callable[[ModelRequest], Provider | str], name: str) -> None:
        check_argument("choose", choose, callable(choose), "a function of the request that returns a model")
        self._choose = choose
        self.name = name
        """Name in events."""
        self._made: dict[str, Provider] = {}

    @property
    def enforces_schema(self) -> bool:
        """Always False, because the model is unknown when the prompt is written. Instructions work with any model."""
        return False

    def call(self, request: ModelRequest) -> Observable[Event]:
        """Return the answer of the selected model."""
        provider = self._provider(self._choose(request))
        source = provider.call(request)

        def subscribe(
            observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            def on_next(event: Event) -> None:
                observer.on_next(add_model_name(event, provider) if type(event) is UsageEvent else event)

            return source.subscribe(on_next, observer.on_error, observer.on_completed, scheduler=scheduler)

        return Observable(subscribe)

    def _provider(self, chosen: Provider | str) -> Provider:
        if not isinstance(chosen, str):
            return chosen
        if chosen not in self._made:
            self._made[chosen] = resolve_model(chosen)
        return self._made[chosen]

    async def aclose_made(self) -> None:
        """Close providers created from model strings."""
        await close_made(self._made.values())

    async def aclose(self) -> None:
        """Close providers created from model strings, even if closing one fails."""
        await close_all([provider.aclose for provider in self._made.values()])
