"""A provider that turns to the next model when one fails."""

from __future__ import annotations

from reactivex import Observable, abc
from reactivex.disposable import SerialDisposable, SingleAssignmentDisposable

from rxloop.errors import ConfigurationError
from rxloop.pipeline.requests import ModelRequest
from rxloop.pipeline.seams import Provider
from rxloop.protocol.events import Event, UsageEvent
from rxloop.providers._answers import (
    another_may_help,
    ask,
    begins_answer,
    close_all,
    close_made,
    counted,
    failed,
    keep_to_schema,
)
from rxloop.providers.models import resolve_model


def fallback(*models: Provider | str) -> Fallback:
    """A provider that asks the next model when one fails before anything of its answer was delivered.

    It goes on after everything that may be otherwise elsewhere: a key that is missing or refused, an unknown model, no
    room, trouble, silence, a context window that is too short, a content filter. It does not after a request that is
    wrong in itself. Each failure that it goes on from is an internal `llm-failed` event; the error of the last model is
    the error of the call. A model's own retries come first: give it `retry=Retry(attempts=1)` to turn to the next at
    once.

    ::

        a                --X
        b                  ----d-d-C|
        fallback(a, b)   --E---d-d-C|      E llm-failed, d deltas, C content-complete

    Example:
        >>> agent = Agent(fallback("zai:glm-4.7", "openai:gpt-5"))

    Args:
        *models: Providers or model strings, in the order in which they are asked.

    Raises:
        ConfigurationError: There is none, or a model string names none.
    """
    if not models:
        raise ConfigurationError("fallback() needs at least one model")
    providers = tuple(resolve_model(model) for model in models)
    return Fallback(providers, tuple(one for one, model in zip(providers, models, strict=True) if one is not model))


class Fallback:
    """A provider that turns to the next model when one fails; made by `fallback`."""

    def __init__(self, providers: tuple[Provider, ...], made: tuple[Provider, ...] = ()) -> None:
        self.providers = providers
        """In the order in which they are asked."""
        self._made = made

    @property
    def name(self) -> str:
        """What it is called on the stream."""
        return f"fallback({', '.join(provider.name for provider in self.providers)})"

    @property
    def keeps_to_schema(self) -> bool | None:
        """Whether every model holds to the `response_schema` of a request; None where that is not known."""
        return keep_to_schema(*self.providers)

    def call(self, request: ModelRequest) -> Observable[Event]:
        """The answer of the first model that gives one."""

        def subscribe(
            observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            current = SerialDisposable()
            asked = 0
            begun = False

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
                if begun or asked == len(self.providers) or not another_may_help(error):
                    observer.on_error(error)
                    return
                observer.on_next(failed(error, 0.0))
                if not current.is_disposed:
                    ask_next()

            ask_next()
            return current

        return Observable(subscribe)

    async def aclose_made(self) -> None:
        """Close the models that were made of strings."""
        await close_made(self._made, self.providers)

    async def aclose(self) -> None:
        """Close every model."""
        await close_all(*self.providers)
