"""Limits the size of results, by a walk that stops at the limit, before anything is made of the value."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Collection, Iterator
from enum import Enum
from typing import Any, cast

from pydantic import BaseModel

from rxloop.errors import ToolError
from rxloop.protocol.storable import DEPTH

VALUES = 200_000
"""How many values a result may hold in all."""
BYTES = 32_000_000
"""How long a result may be as JSON."""
PARTS = 100
"""How many images and files a result may have: each goes to the model again with every request that follows."""
PART_BYTES = 20_000_000
"""How large they may be together; most vendors take no more in a request."""
_BITS = 14_283
"""The bits of a number of 4,300 digits, the most that JSON is read with; to write more takes quadratic time."""
_SIMPLE = frozenset((float, bool, type(None)))
LESS = "Ask for less at once, or for a part of it."


class TooLarge(ToolError):
    """A result is beyond a limit, which the text names."""


def check_size(value: Any) -> None:
    """Refuse a value that is too large: an event of it would hold up all runs of the process.

    Raises:
        TooLarge: It is.
        ValueError: It is nested too deep, or has a part that can be read only once and may have no end.
    """
    kind = value.__class__
    if kind in _SIMPLE or (kind is int and value.bit_length() <= _BITS):
        return
    left, room = VALUES, BYTES
    parts: list[Any] = [value]
    for _ in range(DEPTH + 2):
        level, parts = parts, []
        for part in level:
            kind = part.__class__
            held = part.values() if kind is dict else part if kind is list or kind is tuple else _held(part)
            left -= len(held)
            if left < 0:
                raise TooLarge(f"The tool ran, but its result has more than {VALUES:,} values. {LESS}")
            for item in held:
                kind = item.__class__
                if kind is str:
                    room -= len(item)
                elif kind is int:
                    if item.bit_length() > _BITS:
                        raise ValueError("an integer of more than 4,300 digits")
                elif kind not in _SIMPLE:
                    parts.append(item)
            if room < 0:
                raise too_long()
        if not parts:
            return
    raise ValueError(f"nested more than {DEPTH} deep, or in itself: give it flatter, or as a text")


def _held(part: Any) -> Collection[Any]:
    """List the values that a value holds; none if it is simple."""
    if isinstance(part, int):
        return (int(part),)
    if isinstance(part, dict):
        return cast("dict[Any, Any]", part).values()
    if isinstance(part, list | tuple | set | frozenset | deque):
        return cast("Collection[Any]", part)
    if isinstance(part, BaseModel):
        return [*part.__dict__.values(), *(part.__pydantic_extra__ or {}).values()]
    if isinstance(part, Enum):
        return (part.value,)
    if isinstance(part, Iterator):
        kind = type(cast("Any", part)).__qualname__
        raise ValueError(f"it holds a {kind}, which can be read only once: make a list of it")
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        return [getattr(part, field.name, None) for field in dataclasses.fields(part)]
    return (str.__str__(part),) if isinstance(part, str) else ()


def too_long() -> TooLarge:
    """Make the error of a result that is too long as JSON."""
    return TooLarge(f"The tool ran, but its result is longer than {BYTES // 1_000_000} MB. {LESS}")
