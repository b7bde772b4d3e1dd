"""A table of what there is for each class of events."""

from __future__ import annotations

from typing import TypeVar

from rxloop.protocol.events import Event

T = TypeVar("T")


class ByClass(dict[type[Event], T | None]):
    """A table by class; a subclass has what the nearest class that it comes from has, and None is for the others."""

    def __missing__(self, cls: type[Event]) -> T | None:
        value = self[cls] = next((found for base in cls.__mro__ if (found := self.get(base)) is not None), None)
        return value
