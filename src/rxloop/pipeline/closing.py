"""Closing several things, of which some may fail to, and what may have nothing to close."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any


async def in_turn(closers: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Call one after the other, also when one fails.

    Raises:
        Exception: The first failure; the others are notes on it.
    """
    failures: list[Exception] = []
    for close in closers:
        try:
            await close()
        except Exception as error:
            failures.append(error)
    if failures:
        for other in failures[1:]:
            failures[0].add_note(f"and then {type(other).__name__}: {other}")
        raise failures[0]


async def close_iterator(iterator: AsyncIterator[Any]) -> None:
    """Close an iterator that may be closed, as generators may: at once, and not when it is collected."""
    close = getattr(iterator, "aclose", None)
    if close is not None:
        await close()
