"""Encoded messages, cached on the message and on the history."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, Self, TypeVar, cast

from rxloop.protocol.messages import Message
from rxloop.state.history import History

T = TypeVar("T")

_CODECS = 3
"""How many codecs' forms a message keeps: a fallback has several models, and the next ones are asked as often as the
first one fails."""

# The slot itself: where it is empty, pydantic would look for the name in other places first.
_slot = vars(Message)["_wire"].__get__


def kept(message: Message, key: object, kind: type[T]) -> T | None:
    """What was kept of a message under this key; None where nothing is, or other codecs' forms of it.

    Args:
        message: The message.
        key: Names the wire and all of its rules that the form depends on.
        kind: The type of what is kept under this key.
    """
    try:
        found: tuple[object, ...] = _slot(message)
    except AttributeError:
        return None
    if found[0] == key:
        return cast("T", found[1])
    for place in range(2, len(found), 2):
        if found[place] == key:
            return cast("T", found[place + 1])
    return None


def keep(message: Message, key: object, form: T) -> T:
    """Keep what a message became under this key, beside the forms of a few others; return it.

    Bytes that orjson has made should be copied before: they hold the whole buffer that it wrote to, 4 kB at least.
    """
    try:
        others: tuple[object, ...] = _slot(message)
    except AttributeError:
        others = ()
    object.__setattr__(message, "_wire", (key, form, *others[: 2 * (_CODECS - 1)]))
    return form


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
