"""Garbage collection with short pauses."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

_COMPLETE_EVERY = 20
"""Number of full collections until all objects are examined. Up to 80,000 new objects start a full collection."""
_COMPLETE_EVERY_WITH_LARGE_DATA = 100
"""The same while `ignore_large_data` is active. It is reached only if large data is processed without interruption."""

_SHORT_PER_FULL = 11
"""Number of collections of the middle generation until Python starts a full collection."""

_FROZEN_BY_PYTHON = 1_000
"""Maximum number of objects that Python itself excludes. Python 3.12 excludes 375 when it starts."""

_LARGE = 500
"""Minimum number of items of large data."""

_FREED = 200
"""Maximum number of objects freed per step."""


def free_in_parts(objects: list[Any]) -> None:
    """Remove all objects from a list in small parts.

    Call it in a thread. Freeing a long list of events at once would block all threads for 100 milliseconds.
    """
    while objects:
        del objects[-_FREED:]


class _Exclusion:
    """Callback of the garbage collector that excludes the survivors of collections from later ones (`gc.freeze`).

    Each exclusion resets the counters of the collector. Without a limit, frequent blocks would therefore prevent full
    collections, and garbage with reference cycles would never be freed.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        """Lock for the blocks, which can be in different threads. Collections do not acquire it."""
        self._blocks: dict[object, bool] = {}
        """Active blocks of both functions. The value is True for `ignore_large_data`."""
        self._exclusions = 0
        """Number of exclusions since the last collection that examined all objects. A full collection counts more."""
        self._is_complete_due = False
        """True if nothing may be excluded until the next full collection, which examines all objects."""
        self._used_by_program: bool | None = None

    @property
    def blocks(self) -> int:
        """Number of active blocks of both functions."""
        return len(self._blocks)

    @property
    def large_data(self) -> int:
        """Number of active blocks of `ignore_large_data`."""
        # Other threads may change the blocks, but not while they are copied.
        return sum([*self._blocks.values()])

    def is_used_by_program(self) -> bool:
        """Return True if the program had excluded objects itself before the first call."""
        if self._used_by_program is None:
            # Counting takes as long as examining the objects: 10 milliseconds per million, so do it only once.
            self._used_by_program = gc.get_freeze_count() > _FROZEN_BY_PYTHON
        return self._used_by_program

    def __call__(self, phase: str, info: Mapping[str, Any]) -> None:
        is_full = info["generation"] == 2
        if phase == "stop":
            if is_full:
                # Counting the excluded objects would take longer than the collection.
                gc.freeze()
            elif info["generation"] == 1 and self.large_data:
                self._exclude()
        elif is_full:
            self._count(_SHORT_PER_FULL)
            if self._is_complete_due:
                self.reset()
                gc.unfreeze()

    def _exclude(self) -> None:
        """Exclude all objects, unless a complete collection is due."""
        self._count(1)
        if not self._is_complete_due:
            gc.freeze()

    def _count(self, exclusions: int) -> None:
        self._exclusions += exclusions
        limit = _COMPLETE_EVERY_WITH_LARGE_DATA if self.large_data else _COMPLETE_EVERY
        self._is_complete_due = self._is_complete_due or self._exclusions >= limit * _SHORT_PER_FULL

    def reset(self) -> None:
        """Start counting again after all objects were examined."""
        self._exclusions, self._is_complete_due = 0, False

    def start_block(self, *, large_data: bool) -> object | None:
        """Start a block.

        Returns:
            A value for `end_block`, or None if the program excludes objects itself.
        """
        with self.lock:
            if not self.blocks:
                if large_data and self.is_used_by_program():
                    return None
                gc.callbacks.append(self)
            self._exclude()
            if self._is_complete_due and large_data and not self.large_data:
                # Now, before there is large data in memory, this takes the least time.
                gc.collect()
            block = object()
            self._blocks[block] = large_data
        return block

    def end_block(self, block: object) -> None:
        """End a block, in any thread. Do nothing if it has ended."""
        with self.lock:
            self._blocks.pop(block, None)
            if not self._blocks and self in gc.callbacks:
                gc.callbacks.remove(self)
                gc.unfreeze()

    def after_fork(self) -> None:
        """End all blocks in a forked process, which does not continue the functions and tasks that started them.

        The block of the function that forked the process ends early. This affects only the length of collections.
        """
        # Another thread of the parent process may have held the lock.
        self.lock = threading.RLock()
        self._blocks.clear()
        self.end_block(None)


# The garbage collector belongs to the process, like this object.
_EXCLUSION = _Exclusion()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_EXCLUSION.after_fork)


@contextmanager
def shorten_collections() -> Generator[None]:
    """Exclude long-lived objects from garbage collection for the duration of the block.

    A full collection examines all objects, which blocks all runs and clients for 30 to 150 milliseconds. In the block,
    objects that survive a full collection are excluded from the following ones, so that a pause only depends on the
    number of new objects. Every 20th full collection examines all objects, or the next one after 220 exclusions.
    """
    gc.collect()
    _EXCLUSION.reset()
    block = _EXCLUSION.start_block(large_data=False)
    try:
        yield
    finally:
        _EXCLUSION.end_block(block)


@contextmanager
def ignore_large_data(count: int = _LARGE) -> Generator[None]:
    """Exclude all objects that exist or survive a short collection from garbage collection in the block.

    Use it while large data is processed in any thread, such as the events of a long run. A full collection of this data
    would block all threads for up to 500 milliseconds, although it contains no garbage. Do not wait for clients in the
    block, because most garbage with reference cycles is not freed in the meantime.

    The block does nothing if the program had excluded objects itself before the first block, because their exclusion
    would end with the block.

    Args:
        count: Number of items, if it is known. The block does nothing for less than 500 items.
    """
    block = None if count < _LARGE else _EXCLUSION.start_block(large_data=True)
    try:
        yield
    finally:
        if block is not None:
            _EXCLUSION.end_block(block)
