"""A provider that chooses a model for each request."""

from __future__ import annotations

from collections.abc import Callable

from reactivex import Observable

from rxloop.pipeline.requests import ModelRequest
from rxloop.pipeline.seams import Provider
from rxloop.protocol.events import Event
from rxloop.providers._answers import close_all, close_made, counting
from rxloop.providers.models import resolve_model


def routed(choose: Callable[[ModelRequest], Provider | str], *, name: str = "routed") -> Routed:
    """A provider that asks a function which model answers a request.

    Example:
        >>> def by_plan(request):
        ...     return "zai:glm-4.7" if request.ctx.metadata.get("plan") == "pro" else "ollama:qwen3"
        >>> agent = Agent(routed(by_plan))

    Args:
        choose: Called for each request just before it is sent; the metadata of the run is in `request.ctx.metadata`.
        name: What it is called on the stream.
    """
    return Routed(choose, name)


class Routed:
    """A provider that chooses a model for each request; made by `routed`."""

    def __init__(self, choose: Callable[[ModelRequest], Provider | str], name: str) -> None:
        self._choose = choose
        self._name = name
        self._made: dict[str, Provider] = {}
        self._given: list[Provider] = []

    @property
    def name(self) -> str:
        """What it is called on the stream."""
        return self._name

    @property
    def keeps_to_schema(self) -> bool:
        """No: which model it will be is not known when the prompt is written, and the words for it serve any."""
        return False

    def call(self, request: ModelRequest) -> Observable[Event]:
        """The answer of the chosen model."""
        chosen = self._choose(request)
        if not isinstance(chosen, str):
            if not any(chosen is known for known in self._given):
                self._given.append(chosen)
            return counting(chosen.call(request), chosen)
        provider = self._made.get(chosen)
        if provider is None:
            provider = self._made[chosen] = resolve_model(chosen)
        return counting(provider.call(request), provider)

    async def aclose_made(self) -> None:
        """Close the models that were made of strings."""
        await close_made(self._made.values(), self._given)

    async def aclose(self) -> None:
        """Close every model that has been chosen."""
        await close_all(*self._made.values(), *self._given)
