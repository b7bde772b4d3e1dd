"""A provider that chooses a model for each request."""

from __future__ import annotations

from collections.abc import Callable

from reactivex import Observable, abc

from rxloop.pipeline.closing import in_turn
from rxloop.pipeline.requests import ModelRequest
from rxloop.pipeline.seams import Provider
from rxloop.protocol.events import Event, UsageEvent
from rxloop.providers._combined import close_made, counted
from rxloop.providers.models import resolve_model


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
        await in_turn([provider.aclose for provider in self._made.values()])
