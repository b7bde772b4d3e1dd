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
_COMPLETE_EVERY_WITH_LARGE_DATA = 400
"""The same while `ignore_large_data` is active. It is reached only if large data is processed without interruption."""

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
    """Callback of the garbage collector that excludes the survivors of collections from later ones (`gc.freeze`)."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """Lock for the blocks, which can be in different threads. Collections do not acquire it."""
        self.blocks = 0
        """Number of active blocks of both functions."""
        self.large_data = 0
        """Number of active blocks of `ignore_large_data`."""
        self._collections = 0
        """Number of full collections since the last one that examined all objects."""
        self._used_by_program: bool | None = None

    def is_used_by_program(self) -> bool:
        """Return True if the program had excluded objects itself before the first call."""
        if self._used_by_program is None:
            # Counting takes as long as examining the objects: 10 milliseconds per million, so do it only once.
            self._used_by_program = gc.get_freeze_count() > _FROZEN_BY_PYTHON
        return self._used_by_program

    def __call__(self, phase: str, info: Mapping[str, Any]) -> None:
        is_full = info["generation"] == 2
        if phase == "stop":
            if is_full or (self.large_data and info["generation"] == 1):
                # Counting the excluded objects would take longer than the collection.
                gc.freeze()
        elif is_full:
            self._collections += 1
            if self._collections >= (_COMPLETE_EVERY_WITH_LARGE_DATA if self.large_data else _COMPLETE_EVERY):
                self._collections = 0
                gc.unfreeze()

    def start_block(self, large_data: int = 0) -> None:
        with self.lock:
            if not self.blocks:
                self._collections = 0
                gc.callbacks.append(self)
            self.blocks += 1
            self.large_data += large_data

    def end_block(self, large_data: int = 0) -> None:
        with self.lock:
            self.blocks -= 1
            self.large_data -= large_data
            if not self.blocks:
                gc.callbacks.remove(self)
                gc.unfreeze()

    def after_fork(self) -> None:
        # Another thread of the parent process may have held the lock.
        self.lock = threading.Lock()


# The garbage collector belongs to the process, like this object.
_EXCLUSION = _Exclusion()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_EXCLUSION.after_fork)


@contextmanager
def shorten_collections() -> Generator[None]:
    """Exclude long-lived objects from garbage collection for the duration of the block.

    A full collection examines all objects, which blocks all runs and clients for 30 to 150 milliseconds. In the block,
    objects that survive a full collection are excluded from the following ones, so that a pause only depends on the
    number of new objects. Every 20th full collection examines all objects.
    """
    gc.collect()
    gc.freeze()
    _EXCLUSION.start_block()
    try:
        yield
    finally:
        _EXCLUSION.end_block()


@contextmanager
def ignore_large_data(count: int = _LARGE) -> Generator[None]:
    """Exclude all objects that exist or survive a short collection from garbage collection in the block.

    Use it while large data is processed in any thread, such as the events of a long run. A full collection of this data
    would block all threads for up to 500 milliseconds, although it contains no garbage.

    The block does nothing if the program had excluded objects itself before the first block, because their exclusion
    would end with the block.

    Args:
        count: Number of items, if it is known. The block does nothing for less than 500 items.
    """
    if count < _LARGE or (not _EXCLUSION.blocks and _EXCLUSION.is_used_by_program()):
        yield
        return
    _EXCLUSION.start_block(large_data=1)
    gc.freeze()
    try:
        yield
    finally:
        _EXCLUSION.end_block(large_data=1)
