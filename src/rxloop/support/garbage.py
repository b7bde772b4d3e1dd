"""Garbage collection with short pauses."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

_MAX_NEW = 2_000_000
"""Number of new objects between two full collections in `shorten_collections`. A run of 50,000 events has 600,000."""
_MAX_NEW_WITH_LARGE_DATA = 12_000_000
"""The same in `ignore_large_data`. A full collection would block all threads for up to 500 milliseconds."""

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


class _Interval:
    """Number of new objects between two full collections of this process."""

    def __init__(self) -> None:
        # Finalizers can end blocks while their thread starts another one.
        self.lock = threading.RLock()
        self._blocks: dict[object, int] = {}
        """Minimum number of new objects, by active block."""
        self._before = gc.get_threshold()[2]
        """Threshold of the oldest generation before the first active block."""

    @property
    def blocks(self) -> list[int]:
        """Minimum number of new objects of each active block."""
        # Other threads may add blocks in the meantime. Copying is atomic.
        return [*self._blocks.copy().values()]

    def start_block(self, new_objects: int) -> object:
        """Delay full collections until a number of new objects exists, and return a value for `end_block`."""
        block = object()
        with self.lock:
            if not self._blocks:
                self._before = gc.get_threshold()[2]
            self._blocks[block] = new_objects
            self._set_threshold()
        return block

    def end_block(self, block: object) -> None:
        """End a block. Can be called in any thread, and has no effect if the block has already ended."""
        with self.lock:
            if self._blocks.pop(block, None) is not None:
                self._set_threshold()

    def _set_threshold(self) -> None:
        young, middle, _ = gc.get_threshold()
        collections = max(self._blocks.values(), default=0) // (young * middle or 1)
        gc.set_threshold(young, middle, max(self._before, collections))

    def after_fork(self) -> None:
        """End all blocks. Called in a forked process, in which other threads no longer exist."""
        # Another thread of the parent process may have held the lock.
        self.lock = threading.RLock()
        for block in [*self._blocks]:
            self.end_block(block)


# The garbage collector belongs to the process, like this object.
_INTERVAL = _Interval()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_INTERVAL.after_fork)


@contextmanager
def shorten_collections() -> Generator[None]:
    """Shorten the pauses of garbage collections in the block.

    A full collection examines all objects, which blocks all runs and clients for 30 to 150 milliseconds. This function
    excludes the objects that exist at the start of the block, such as modules, from all later collections
    (`gc.freeze`). In the block, a full collection takes place after two million new objects instead of 70,000.
    """
    gc.collect()
    gc.freeze()
    block = _INTERVAL.start_block(_MAX_NEW)
    try:
        yield
    finally:
        _INTERVAL.end_block(block)


@contextmanager
def ignore_large_data(count: int = _LARGE, *, is_loaded: bool = False) -> Generator[None]:
    """Delay full garbage collections during the block until there are twelve million new objects.

    Use it while large data is processed in any thread, such as the events of a long run. A full collection of this data
    would block all threads for up to 500 milliseconds, although it contains no garbage. Do not wait for clients in the
    block, because most garbage with reference cycles is not freed in the meantime.

    Args:
        count: Number of items, if it is known. The block does nothing for less than 500 items.
        is_loaded: Whether the data is in memory. Otherwise, a full collection may take place before the block, because
            it takes the least time then.
    """
    if count < _LARGE:
        yield
        return
    if not is_loaded and not is_processing_large_data() and _is_collection_near():
        gc.collect()
    block = _INTERVAL.start_block(_MAX_NEW_WITH_LARGE_DATA)
    try:
        yield
    finally:
        _INTERVAL.end_block(block)


def _is_collection_near() -> bool:
    """Return True if there are one million new objects since the last full collection."""
    young, middle, _ = gc.get_threshold()
    return gc.get_count()[2] * young * middle >= _MAX_NEW // 2


def is_processing_large_data() -> bool:
    """Return True if an `ignore_large_data` block is active in any thread."""
    return _MAX_NEW_WITH_LARGE_DATA in _INTERVAL.blocks
