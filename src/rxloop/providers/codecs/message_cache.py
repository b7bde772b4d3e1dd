"""Cache of encoded messages, stored on the message and on the history."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, Self, TypeVar, cast

from rxloop.protocol.messages import Message
from rxloop.state.history import History

T = TypeVar("T")

_CODECS = 3
"""Number of cached forms per message. With a fallback, several models can receive it."""

# Read the slot directly, because pydantic searches elsewhere first if it is empty.
_slot = vars(Message)["_wire"].__get__


def kept(message: Message, key: object, kind: type[T]) -> T | None:
    """Return a cached form, or None.

    Args:
        message: Encoded message.
        key: Codec and relevant settings.
        kind: Expected type.
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
    """Cache an encoded form and return it. A few older forms are retained.

    Always copy orjson output first, since it keeps a buffer of at least 4 kB alive.
    """
    try:
        others: tuple[object, ...] = _slot(message)
    except AttributeError:
        others = ()
    object.__setattr__(message, "_wire", (key, form, *others[: 2 * (_CODECS - 1)]))
    return form


class Building(Protocol):
    """Message sequence under construction."""

    def copy(self) -> Self:
        """Return an independent copy in constant time."""
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
    """Encode messages incrementally. If they are a history, only new messages are encoded.

    Args:
        messages: Request messages.
        key: Codec and relevant settings.
        new: Creates an empty result.
        add: Adds a message, given its index.
        first: Index of the first message to add. Earlier messages must not affect the result.
        end: Index after the last message to reuse for the next request. None means all messages.

    Returns:
        A result that the caller can extend.
    """
    end = len(messages) if end is None else end
    begun = new()
    found = messages.get_derived(key, type(begun)) if isinstance(messages, History) else None
    count, made = found if found is not None and found[0] <= end else (0, begun)
    if count < end:
        made = made if made is begun else made.copy()
        for place, message in enumerate(messages[max(count, first) : end], max(count, first)):
            add(made, place, message)
        if isinstance(messages, History):
            messages.set_derived(key, end, made)
    return made.copy() if isinstance(messages, History) else made
