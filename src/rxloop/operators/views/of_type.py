"""The view that keeps the events of some classes."""

from __future__ import annotations

from typing import Any, TypeVar, cast, overload

from reactivex import operators as ops

from rxloop.errors import ConfigurationError
from rxloop.operators.views._types import View, named
from rxloop.protocol.events import Event

A = TypeVar("A", bound=Event)
B = TypeVar("B", bound=Event)
C = TypeVar("C", bound=Event)
D = TypeVar("D", bound=Event)
E = TypeVar("E", bound=Event)


@overload
def of_type(first: type[A], /) -> View[Event, A]: ...
@overload
def of_type(first: type[A], second: type[B], /) -> View[Event, A | B]: ...
@overload
def of_type(first: type[A], second: type[B], third: type[C], /) -> View[Event, A | B | C]: ...
@overload
def of_type(first: type[A], second: type[B], third: type[C], fourth: type[D], /) -> View[Event, A | B | C | D]: ...
@overload
def of_type(
    first: type[A], second: type[B], third: type[C], fourth: type[D], fifth: type[E], /
) -> View[Event, A | B | C | D | E]: ...
@overload
def of_type(first: type[Event], /, *others: type[Event]) -> View[Event, Event]: ...


def of_type(first: type[Event], /, *others: type[Event]) -> View[Any, Any]:
    """Keep the events of the given classes, and tell the type checker so.

    ::

        source                 --S--a--a--C--|
        of_type(S, C)          --S--------C--|

    Example:
        >>> async for event in run.pipe(op.of_type(ToolStartEvent, ToolCompleteEvent)):
        ...     match event:
        ...         case ToolStartEvent(): print("->", event.name)
        ...         case ToolCompleteEvent(): print("<-", event.content)

    Args:
        first: A class of events; its subclasses count too.
        others: More of them. Up to five classes in all, the type of the events is their union; beyond that it is
            `Event`.

    Returns:
        A view of the events of these classes, in order.

    Raises:
        ConfigurationError: One of them is not a class.
    """
    classes = (first, *others)
    for kind in cast("tuple[Any, ...]", classes):
        if not isinstance(kind, type):
            raise ConfigurationError(
                f"op.of_type({kind!r}) cannot be used: give classes of events, as ToolStartEvent is"
            )
    # `isinstance` is slow for a class that is none of them, and nearly every event is of such a class.
    known: dict[type[Event], bool] = {}

    def is_kept(event: Event) -> bool:
        kept = known.get(type(event))
        if kept is None:
            kept = known[type(event)] = isinstance(event, classes)
        return kept

    return named(ops.filter(is_kept), "of_type")
