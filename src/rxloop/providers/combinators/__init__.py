"""Base class and helpers of providers that call other providers."""

from __future__ import annotations

from collections.abc import Iterable

from reactivex import Observable, abc

from rxloop.errors import BadRequest, ContentFiltered, ContextLengthExceeded, MediaRefused, ProviderError
from rxloop.pipeline.interfaces import MakesModels, Provider
from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol.events import Event, UsageEvent
from rxloop.providers.factories import resolve_model
from rxloop.support.tasks import close_all


class Combined:
    """A provider made of providers: the base of `Fallback`, `Hedge` and `Limited`.

    Args:
        *models: Providers or model strings.

    Raises:
        ConfigurationError: A model string names no model.
    """

    def __init__(self, *models: Provider | str) -> None:
        self.providers = tuple(resolve_model(model) for model in models)
        """The models, in the order in which they were given."""
        self._made = [made for made, model in zip(self.providers, models, strict=True) if made is not model]

    @property
    def keeps_to_schema(self) -> bool | None:
        """Whether every model keeps to the `response_schema` of a request; None if that is not known."""
        answers = [getattr(provider, "keeps_to_schema", None) for provider in self.providers]
        return False if False in answers else None if None in answers else True

    async def aclose_made(self) -> None:
        """Close the models that were made from strings."""
        await close_made(self._made, self.providers)

    async def aclose(self) -> None:
        """Close every model, even if one of them cannot be closed."""
        await close_all([provider.aclose for provider in self.providers])


def another_may_help(error: Exception) -> bool:
    """Whether another vendor may answer what this one did not.

    A wrong request is wrong everywhere. Everything else is this vendor's own: its keys, models and capacity, and also
    its filter, its context window, and the images and files that it accepts.
    """
    if isinstance(error, ContextLengthExceeded | ContentFiltered | MediaRefused):
        return True
    return isinstance(error, ProviderError) and not isinstance(error, BadRequest)


def ask(provider: Provider, request: ModelRequest) -> Observable[Event]:
    """The answer of a provider that is called upon subscription, so that what `call` raises fails the answer."""

    def subscribe(observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        return provider.call(request).subscribe(observer, scheduler=scheduler)

    return Observable(subscribe)


def counted(event: UsageEvent, provider: Provider) -> UsageEvent:
    """Name the model in a usage event: the call itself is named after a combination of several."""
    if "model" in event.metadata:
        return event
    return event.model_copy(update={"metadata": {**event.metadata, "model": provider.name}})


async def close_made(made: Iterable[Provider], given: Iterable[Provider] = ()) -> None:
    """Close what was opened for model strings.

    Args:
        made: Providers made from strings. A connection in use stays open: another agent may have the same provider.
        given: Providers of the caller's, which close only what they have made from strings themselves.
    """
    closers = [getattr(provider, "aclose_unused", provider.aclose) for provider in made]
    closers += [provider.aclose_made for provider in given if isinstance(provider, MakesModels)]
    await close_all(closers)
