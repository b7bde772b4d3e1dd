"""Views: operators for the subscribers of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from reactivex import Observable

from rxloop.protocol.events import AnyEvent, Event

A = TypeVar("A")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

VIEW = "rxloop_view"
"""Attribute of a view: its name in messages, such as `op.text`."""

View = Callable[[Observable[A]], Observable[T]]
"""Works for a subscriber, outside the loop; any reactivex operator is one."""

EventView = View[Event, AnyEvent]
"""A view of events that gives events of any kind."""


def named(function: F, name: str) -> F:
    """Set the name of a view, and return the view."""
    vars(function)[VIEW] = name
    return function
