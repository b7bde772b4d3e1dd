"""What a conversation became on a wire, kept on its history, so that a request costs what is new in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, Self, TypeVar

from rxloop.protocol.messages import Message
from rxloop.state.history import History


class Building(Protocol):
    """The messages of a request, as a wire puts them one behind the other."""

    def copy(self) -> Self:
        """One that grows by itself; it costs what is not yet joined, and not the whole conversation."""
        ...


B = TypeVar("B", bound=Building)


def built(
    messages: Sequence[Message],
    key: object,
    new: Callable[[], B],
    add: Callable[[B, int, Message], None],
    *,
    first: int = 0,
    end: int | None = None,
) -> B:
    """Build a part of a request; of a history, only what is new since a shorter version was built.

    Args:
        messages: The messages of the request.
        key: Names the wire and all of its rules that what is built depends on.
        new: Makes the beginning.
        add: Adds a message, whose place it is told.
        first: The place of the first message that is added. The messages before it do not change what is built.
        end: The place behind the last one; the next request is built from there on. None takes all messages.

    Returns:
        What the caller may add more to.
    """
    end = len(messages) if end is None else end
    begun = new()
    found = messages.built(key, type(begun)) if isinstance(messages, History) else None
    count, made = found if found is not None and found[0] <= end else (0, begun)
    if count < end:
        made = made if made is begun else made.copy()
        for place, message in enumerate(messages[max(count, first) : end], max(count, first)):
            add(made, place, message)
        if isinstance(messages, History):
            messages.keep(key, end, made)
    return made.copy() if isinstance(messages, History) else made
