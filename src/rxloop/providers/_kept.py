"""What a message became on a wire, kept on the message itself, so that it is encoded once and not in every request."""

from __future__ import annotations

from typing import TypeVar, cast

from rxloop.protocol.messages import Message

T = TypeVar("T")

# The slot itself: where it is empty, pydantic would look for the name in other places first.
_slot = vars(Message)["_wire"].__get__


def kept(message: Message, key: object, kind: type[T]) -> T | None:
    """What was kept of a message under this key; None where nothing is, or another wire's form of it.

    Args:
        message: The message.
        key: Names the wire and all of its rules that the form depends on.
        kind: The type of what is kept under this key.
    """
    try:
        found: tuple[object, object] = _slot(message)
    except AttributeError:
        return None
    return cast("T", found[1]) if found[0] == key else None


def keep(message: Message, key: object, form: T) -> T:
    """Keep what a message became under this key, in the place of what was kept before; return it.

    Bytes that orjson has made should be copied before: they hold the whole buffer that it wrote to, 4 kB at least.
    """
    object.__setattr__(message, "_wire", (key, form))
    return form
