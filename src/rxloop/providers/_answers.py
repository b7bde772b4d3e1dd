"""What the providers that are made of providers have in common."""

from __future__ import annotations

from collections.abc import Iterable

from reactivex import Observable, abc

from rxloop.errors import BadRequest, ContentFiltered, ContextLengthExceeded, ProviderError
from rxloop.pipeline.requests import ModelRequest
from rxloop.pipeline.seams import MakesModels, Provider
from rxloop.protocol.events import Event, LLMFailedEvent, UsageEvent
from rxloop.protocol.messages import ErrorInfo
from rxloop.stream.closing import in_turn


def begins_answer(event: Event) -> bool:
    """Whether an event is of the answer itself, and not the news of a failed try or the count of its tokens."""
    return not isinstance(event, LLMFailedEvent | UsageEvent)


def failed(error: Exception, wait: float) -> LLMFailedEvent:
    """The news that a try failed, and that the next one begins after `wait` seconds."""
    code = error.code if isinstance(error, ProviderError) else "error"
    status = error.status if isinstance(error, ProviderError) else None
    return LLMFailedEvent(error=ErrorInfo(code=code, message=str(error)), retryable=True, retry_in=wait, status=status)


def another_may_help(error: Exception) -> bool:
    """Whether another vendor may answer what this one did not.

    A request that is wrong is wrong everywhere. All else is this vendor's own: its keys, its models, its room, and also
    its filter and its context window.
    """
    if isinstance(error, ContextLengthExceeded | ContentFiltered):
        return True
    return isinstance(error, ProviderError) and not isinstance(error, BadRequest)


def keep_to_schema(*providers: Provider) -> bool | None:
    """Whether each of them holds its model to a schema; None where one does not say, and none says no."""
    said = [getattr(provider, "keeps_to_schema", None) for provider in providers]
    return False if False in said else None if None in said else True


def ask(provider: Provider, request: ModelRequest) -> Observable[Event]:
    """The answer of a provider that is called upon subscription: what `call` raises is the error of the answer."""

    def subscribe(observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        return provider.call(request).subscribe(observer, scheduler=scheduler)

    return Observable(subscribe)


def counted(event: UsageEvent, provider: Provider) -> UsageEvent:
    """The usage with the model that it is of: what the call is named for is a combination of several."""
    if "model" in event.metadata:
        return event
    return event.model_copy(update={"metadata": {**event.metadata, "model": provider.name}})


def counting(source: Observable[Event], provider: Provider) -> Observable[Event]:
    """An answer whose usage says which model it is of."""

    def subscribe(observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        def on_next(event: Event) -> None:
            observer.on_next(counted(event, provider) if type(event) is UsageEvent else event)

        return source.subscribe(on_next, observer.on_error, observer.on_completed, scheduler=scheduler)

    return Observable(subscribe)


async def close_made(made: Iterable[Provider], given: Iterable[Provider]) -> None:
    """Close what was opened for model strings: of these providers all, of those what they made themselves.

    What is in use stays open, since another agent may have the same provider.
    """
    closers = [getattr(provider, "aclose_unused", provider.aclose) for provider in made]
    closers += [provider.aclose_made for provider in given if isinstance(provider, MakesModels)]
    await in_turn(closers)


async def close_all(*providers: Provider) -> None:
    """Close all providers, also when one of them fails to."""
    await in_turn([provider.aclose for provider in providers])
