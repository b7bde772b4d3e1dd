"""Views for subscribers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from reactivex import Observable

from rxloop.errors import ConfigurationError
from rxloop.protocol.events import AnyEvent, Event
from rxloop.stream.stream import VIEW as VIEW
from rxloop.stream.stream import check_view

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


def check_views(views: Any) -> None:
    """Check that an argument is a list of views.

    Raises:
        ConfigurationError: The argument is not a list, or one of its items is not a view.
    """
    if not isinstance(views, Sequence) or isinstance(views, str):
        raise ConfigurationError(f"views must be a list, such as views=[op.spans()], got {views!r}")
    for view in views:  # pyright: ignore[reportUnknownVariableType]
        check_view(view)
