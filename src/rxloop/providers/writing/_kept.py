"""What a message became on a wire, kept on the message itself, so that it is encoded once and not in every request."""

from __future__ import annotations

from typing import TypeVar, cast

from rxloop.protocol.messages import Message

T = TypeVar("T")

_WIRES = 3
"""How many wires' forms a message keeps: a fallback has several models, and the next ones are asked as often as the
first one fails."""

# The slot itself: where it is empty, pydantic would look for the name in other places first.
_slot = vars(Message)["_wire"].__get__


def kept(message: Message, key: object, kind: type[T]) -> T | None:
    """What was kept of a message under this key; None where nothing is, or other wires' forms of it.

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
    object.__setattr__(message, "_wire", (key, form, *others[: 2 * (_WIRES - 1)]))
    return form
