"""Garbage collection with short pauses."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

_MAX_EXCLUDED = 6_000_000
"""Number of new objects that may be excluded until a collection examines all objects. A run of 50,000 events has
600,000. The collection blocks all threads for 30 to 100 milliseconds, so it should be rare."""
_MAX_EXCLUDED_WITH_LARGE_DATA = 12_000_000
"""The same while `ignore_large_data` is active. The collection would take up to 500 milliseconds."""

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
        self._excluded = 0
        """Number of objects excluded since the last collection that examined all objects, if none was freed."""
        self._used_by_program: bool | None = None

    @property
    def blocks(self) -> int:
        """Number of active blocks of both functions."""
        return len(self._blocks)

    @property
    def large_data(self) -> int:
        """Number of active blocks of `ignore_large_data`."""
        # Copy the values, because other threads may add blocks.
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
            self._count()
            if self._is_complete_due:
                self.reset()
                gc.unfreeze()

    def _exclude(self) -> None:
        """Exclude all objects, unless a complete collection is due."""
        self._count()
        if not self._is_complete_due:
            gc.freeze()

    def _count(self) -> None:
        """Count the objects created since the last exclusion."""
        young, middle, old = gc.get_count()
        young_per_middle, middle_per_old, _ = gc.get_threshold()
        self._excluded += young + young_per_middle * (middle + middle_per_old * old)

    @property
    def _is_complete_due(self) -> bool:
        """True if nothing may be excluded until the next full collection, which examines all objects."""
        return self._excluded >= (_MAX_EXCLUDED_WITH_LARGE_DATA if self.large_data else _MAX_EXCLUDED)

    def reset(self) -> None:
        """Start counting again after all objects were examined."""
        self._excluded = 0

    def start_block(self, *, large_data: bool, may_collect: bool = False) -> object | None:
        """Start a block.

        Args:
            large_data: True for `ignore_large_data`.
            may_collect: Whether to start a complete collection if it is due.

        Returns:
            A value for `end_block`, or None if the program excludes objects itself.
        """
        if may_collect and self._is_complete_due and not self.large_data:
            # Finalizers can wait for other threads, so do not hold the lock.
            gc.collect()
            self.reset()
        with self.lock:
            if not self.blocks:
                if large_data and self.is_used_by_program():
                    return None
                gc.callbacks.append(self)
            block = object()
            self._blocks[block] = large_data
            self._exclude()
        return block

    def end_block(self, block: object) -> None:
        """End a block. Can be called in any thread, and has no effect if the block has already ended."""
        with self.lock:
            self._blocks.pop(block, None)
            if not self._blocks and self in gc.callbacks:
                gc.callbacks.remove(self)
                gc.unfreeze()

    def after_fork(self) -> None:
        """End all blocks. Called in a forked process, in which other threads no longer exist."""
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
    number of new objects. After six million new objects, the next full collection examines all objects.
    """
    gc.collect()
    _EXCLUSION.reset()
    block = _EXCLUSION.start_block(large_data=False)
    try:
        yield
    finally:
        _EXCLUSION.end_block(block)


@contextmanager
def ignore_large_data(count: int = _LARGE, *, is_loaded: bool = False) -> Generator[None]:
    """Exclude all objects that exist or survive a short collection from garbage collection in the block.

    Use it while large data is processed in any thread, such as the events of a long run. A full collection of this data
    would block all threads for up to 500 milliseconds, although it contains no garbage. Do not wait for clients in the
    block, because most garbage with reference cycles is not freed in the meantime.

    The block does nothing if the program had excluded objects itself before the first block, because their exclusion
    would end with the block.

    Args:
        count: Number of items, if it is known. The block does nothing for less than 500 items.
        is_loaded: Whether the data is in memory. Otherwise, a collection that examines all objects may take place first
            if it is due, because it takes the least time then.
    """
    block = None if count < _LARGE else _EXCLUSION.start_block(large_data=True, may_collect=not is_loaded)
    try:
        yield
    finally:
        _EXCLUSION.end_block(block)


def is_processing_large_data() -> bool:
    """Return True if an `ignore_large_data` block is active in any thread."""
    return _EXCLUSION.large_data > 0
