"""Shared code for composite providers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from reactivex import Observable, abc

from rxloop.errors import (
    BadRequest,
    ConfigurationError,
    ContentFiltered,
    ContextLengthExceeded,
    MediaRefused,
    ProviderError,
)
from rxloop.pipeline.interfaces import MakesModels, Provider
from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol.events import Event, UsageEvent
from rxloop.providers.factories import resolve_model
from rxloop.support.tasks import close_all


class Combined:
    """Base class of providers that call other providers: `Fallback`, `Hedge` and `Limited`.

    Args:
        *models: Providers or model strings.

    Raises:
        ConfigurationError: A model is neither a provider nor a valid model string.
    """

    def __init__(self, *models: Provider | str) -> None:
        for model in models:
            value: Any = model
            if isinstance(value, str | Provider):
                continue
            name, hint = type(self).__name__.lower(), "; unpack the list" if isinstance(value, list | tuple) else ""
            raise ConfigurationError(f"{name}() requires providers or model strings, got {value!r}{hint}")
        self.providers = tuple(resolve_model(model) for model in models)
        """Providers in argument order."""
        self._made = [provider for provider, model in zip(self.providers, models, strict=True) if provider is not model]

    @property
    def enforces_schema(self) -> bool | None:
        """True if all models enforce `response_schema`; None if unknown."""
        answers = [getattr(provider, "enforces_schema", None) for provider in self.providers]
        return False if False in answers else None if None in answers else True

    async def aclose_made(self) -> None:
        """Close providers created from model strings."""
        await close_made(self._made, self.providers)

    async def aclose(self) -> None:
        """Close all providers, even if closing one of them fails."""
        await close_all([provider.aclose for provider in self.providers])


def another_may_help(error: Exception) -> bool:
    """Return True if another vendor could succeed.

    Invalid requests fail everywhere. Other failures are vendor-specific: keys, models, capacity, content filters,
    context windows, and supported media.
    """
    if isinstance(error, ContextLengthExceeded | ContentFiltered | MediaRefused):
        return True
    return isinstance(error, ProviderError) and not isinstance(error, BadRequest)


def ask(provider: Provider, request: ModelRequest) -> Observable[Event]:
    """Call the provider on subscription, turning exceptions into error notifications."""

    def subscribe(observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
        return provider.call(request).subscribe(observer, scheduler=scheduler)

    return Observable(subscribe)


def add_model_name(event: UsageEvent, provider: Provider) -> UsageEvent:
    """Add the model's name to a usage event, because the call has the name of the combined provider."""
    if "model" in event.metadata:
        return event
    return event.model_copy(update={"metadata": {**event.metadata, "model": provider.name}})


async def close_made(created: Iterable[Provider], providers: Iterable[Provider] = ()) -> None:
    """Close the providers that were created from model strings.

    Args:
        created: Created providers. Connections in use stay open, because another agent may use the same provider.
        providers: Providers of the caller. Only the providers that they created themselves are closed.
    """
    closers = [getattr(provider, "aclose_unused", provider.aclose) for provider in created]
    closers += [provider.aclose_made for provider in providers if isinstance(provider, MakesModels)]
    await close_all(closers)
