"""What has been found out about a message, kept for as long as the message lives, or about a short text."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Generic, TypeVar
from weakref import ref

from rxloop.protocol.messages import Message

T = TypeVar("T")


LONGEST = 64
"""Characters of the longest text that is kept."""
MOST = 16_384


def for_short_texts(work_out: Callable[[str], T]) -> Callable[[str], T]:
    """Let a pure function of a text work short texts out once: the same few words come again and again.

    Longer ones are somebody's own, and not kept.
    """
    kept = lru_cache(maxsize=MOST)(work_out)

    @wraps(work_out)
    def found(text: str) -> T:
        return kept(text) if len(text) <= LONGEST else work_out(text)

    return found


class PerMessage(Generic[T]):
    """A pure function of a message that works each message out once.

    Messages are frozen, and those of a history are the same objects from request to request, so their identity is the
    key. An entry goes when its message does.
    """

    __slots__ = ("_kept", "_work_out")

    def __init__(self, work_out: Callable[[Message], T]) -> None:
        self._work_out = work_out
        self._kept: dict[int, tuple[ref[Message], T]] = {}

    def __call__(self, message: Message) -> T:
        key = id(message)
        entry = self._kept.get(key)
        if entry is not None and entry[0]() is message:
            return entry[1]
        value = self._work_out(message)
        kept = self._kept
        # The callback runs before the id can be given to another object.
        self._kept[key] = (ref(message, lambda gone: kept.pop(key, None)), value)
        return value
