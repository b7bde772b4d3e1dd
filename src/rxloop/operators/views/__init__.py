"""Views for subscribers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from reactivex import Observable

from rxloop.protocol.events import AnyEvent, Event
from rxloop.stream.stream import VIEW as VIEW

A = TypeVar("A")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

View = Callable[[Observable[A]], Observable[T]]
"""Operator for a subscriber, outside the loop. Any reactivex operator is a view."""

EventView = View[Event, AnyEvent]
"""View that filters or replaces events."""


def name_view(function: F, name: str) -> F:
    """Set a view's name for messages, and return the view."""
    vars(function)[VIEW] = name
    return function
