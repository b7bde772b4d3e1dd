"""A provider that turns to the next model when one fails."""

from __future__ import annotations

from reactivex import Observable, abc
from reactivex.disposable import SerialDisposable, SingleAssignmentDisposable

from rxloop.errors import ConfigurationError
from rxloop.pipeline.requests import ModelRequest
from rxloop.pipeline.seams import Provider
from rxloop.protocol.events import Event, UsageEvent
from rxloop.providers._answers import begins_answer, failed
from rxloop.providers._combined import Combined, another_may_help, ask, counted


def fallback(*models: Provider | str) -> Fallback:
    """Make a provider that asks the next model when one fails before it has delivered anything.

    It moves on after every failure that another vendor may not have: a key that is missing or refused, an unknown
    model, an overloaded or broken server, silence, a context window that is too short, a content filter. It does not
    move on after a request that is wrong in itself. Each failure that it moves on from is an internal `llm-failed`
    event; the error of the last model is the error of the call. A model's own retries come first: give it
    `retry=Retry(attempts=1)` to turn to the next one at once.

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
