"""Cache of encoded messages, stored on the message and on the history."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Protocol, Self, TypeVar, cast

from rxloop.protocol.messages import Message
from rxloop.state.history import History

T = TypeVar("T")

_MAX_FORMS = 3
"""Number of cached forms per message. With a fallback, several models can receive it."""

_MAX_PART = 100
"""Maximum number of messages per encoding step. Encoding them takes a few milliseconds."""

encoded_parts: ContextVar[dict[object, tuple[int, object]] | None] = ContextVar("encoded_parts", default=None)
"""Encoded parts of a request: number of messages and result by key. None if the encoder must not pause."""


class EncodingPaused(Exception):
    """Raised by an encoder that needs another call to encode the same request.

    Args:
        prepare: Function to run in a thread before the next call. None if other tasks should run.
    """

    def __init__(self, prepare: Callable[[], object] | None) -> None:
        super().__init__()
        self.prepare = prepare


# Read the slot directly, because pydantic searches elsewhere first if it is empty.
_read_slot = vars(Message)["_wire"].__get__


def get_form(message: Message, key: object, form_type: type[T]) -> T | None:
    """Return a cached form, or None.

    Args:
        message: Encoded message.
        key: Codec and relevant settings.
        form_type: Expected type.
    """
    try:
        cached: tuple[object, ...] = _read_slot(message)
    except AttributeError:
        return None
    if cached[0] == key:
        return cast("T", cached[1])
    for index in range(2, len(cached), 2):
        if cached[index] == key:
            return cast("T", cached[index + 1])
    return None


def store_form(message: Message, key: object, form: T) -> T:
    """Cache an encoded form and return it. A few older forms are retained.

    Always copy orjson output first, since it keeps a buffer of at least 4 kB alive.
    """
    try:
        others: tuple[object, ...] = _read_slot(message)
    except AttributeError:
        others = ()
    object.__setattr__(message, "_wire", (key, form, *others[: 2 * (_MAX_FORMS - 1)]))
    return form


class MessageBuilder(Protocol):
    """Message sequence under construction."""

    def copy(self) -> Self:
        """Return an independent copy in constant time."""
        ...


B = TypeVar("B", bound=MessageBuilder)


def build_messages(
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

    Raises:
        EncodingPaused: After a part of a long conversation, unless `encoded_parts` is None.
    """
    end = len(messages) if end is None else end
    empty = new()
    cached = messages.get_derived(key, type(empty)) if isinstance(messages, History) else None
    count, result = cached if cached is not None and cached[0] <= end else (0, empty)
    parts, last = encoded_parts.get(), end
    if parts is not None and (part := parts.pop(key, None)) is not None:
        count, result = part[0], cast("B", part[1])
    elif count < end and result is not empty:
        result = result.copy()
    if parts is not None and end - count > _MAX_PART:
        last = count + _MAX_PART
    for index, message in enumerate(messages[max(count, first) : last], max(count, first)):
        add(result, index, message)
    if parts is not None and last < end:
        parts[key] = last, result
        raise EncodingPaused(None)
    if count < end and isinstance(messages, History):
        messages.set_derived(key, end, result)
    return result.copy() if isinstance(messages, History) else result
