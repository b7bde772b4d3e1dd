"""The type of a view."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from reactivex import Observable

from rxloop.protocol.events import AnyEvent, Event

A = TypeVar("A")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

VIEW = "rxloop_view"
"""The attribute of a view that tells its name, where its function does not."""

View = Callable[[Observable[A]], Observable[T]]
"""Works for a subscriber, outside the loop; any reactivex operator is one."""

EventView = View[Event, AnyEvent]
"""A view of events that gives events of any kind."""


def named(function: F, name: str) -> F:
    """Say of a view made of reactivex's operators what it is called in `op`."""
    vars(function)[VIEW] = name
    return function
