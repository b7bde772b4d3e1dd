"""Garbage collection with short pauses."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

_MAX_NEW = 200_000
"""Number of new objects between two full collections in `shorten_collections`."""

_MAX_NEW_LARGE = 1_000_000
"""Maximum number of new objects in blocks of `ignore_large_data` that delay the next full collection after the blocks.
Reading a run of 50,000 events creates 330,000 objects."""

_MAX_NEW_WITH_LARGE_DATA = 12_000_000
"""Number of new objects between two full collections in `ignore_large_data`. A full collection would block all threads
for up to 500 milliseconds."""

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


class _Threshold:
    """Threshold of the oldest generation, after which Python examines all objects."""

    def __init__(self) -> None:
        # Allocations can start collections, whose finalizers can end blocks in the thread that holds the lock.
        self.lock = threading.RLock()
        self._short_blocks = 0
        """Number of active blocks of `shorten_collections`."""
        self.large_blocks = 0
        """Number of active blocks of `ignore_large_data`."""
        self._started = 0
        """Counter of the oldest generation at the start of the first active block of `ignore_large_data`."""
        self._counted = 0
        """Part of the counter that was counted in blocks of `ignore_large_data`."""
        self._process = object()
        """Identity of this process. Blocks of a parent process have no effect."""
        self._original = self._set = -1
        """Threshold of the program, and the last threshold set by this object."""

    @contextmanager
    def raised(self, *, large_data: bool) -> Generator[None]:
        """Raise the threshold in the block. The block can end in any thread."""
        process = self._process
        self._change_blocks(1, large_data)
        try:
            yield
        finally:
            if process is self._process:
                self._change_blocks(-1, large_data)

    def _change_blocks(self, change: int, large_data: bool) -> None:
        with self.lock:
            if large_data:
                if not self.large_blocks:
                    self._started = gc.get_count()[2]
                self.large_blocks += change
                if not self.large_blocks:
                    self._counted += gc.get_count()[2] - self._started
                if self._on_collection not in gc.callbacks:
                    gc.callbacks.append(self._on_collection)
            else:
                self._short_blocks += change
            self._update()

    def _update(self) -> None:
        young, middle, old = gc.get_threshold()
        if old != self._set:
            # The program has changed it.
            self._original = old
        wanted = max(self._original, _count_collections(_MAX_NEW)) if self._short_blocks else self._original
        if self.large_blocks:
            wanted = max(wanted, _count_collections(_MAX_NEW_WITH_LARGE_DATA))
        else:
            # Otherwise, the next allocations would start a collection of large data that is still in memory.
            wanted += min(self._counted, _count_collections(_MAX_NEW_LARGE))
        gc.set_threshold(young, middle, wanted)
        self._set = wanted

    def _on_collection(self, phase: str, info: Mapping[str, Any]) -> None:
        """Restore the threshold after a full collection. Called by the garbage collector."""
        if phase == "stop" and info["generation"] == 2:
            with self.lock:
                self._started = self._counted = 0
                self._update()

    def after_fork(self) -> None:
        """End all blocks, because the other threads no longer exist."""
        self._process = object()
        self._short_blocks = self.large_blocks = self._counted = 0
        self._update()
        self.lock.release()


def _count_collections(new_objects: int) -> int:
    """Return how many collections of the middle generation a number of new objects causes."""
    young, middle, _ = gc.get_threshold()
    return new_objects // (max(young, 1) * max(middle, 1))


# The garbage collector belongs to the process, like this object.
_THRESHOLD = _Threshold()

if hasattr(os, "register_at_fork"):
    # No other thread changes the threshold during the fork.
    _LOCK = _THRESHOLD.lock
    os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_THRESHOLD.after_fork)


@contextmanager
def shorten_collections() -> Generator[None]:
    """Shorten the pauses of garbage collections in the block.

    A full collection examines all objects, which blocks all runs and clients for 30 to 150 milliseconds. This function
    excludes the objects that exist at the start of the block, such as modules, from all later collections
    (`gc.freeze`). In the block, a full collection takes place after 200,000 new objects. The default of Python 3.11 is
    70,000.
    """
    gc.collect()
    gc.freeze()
    with _THRESHOLD.raised(large_data=False):
        yield


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
    if not (is_loaded or is_processing_large_data()) and gc.get_count()[2] >= _count_collections(_MAX_NEW_LARGE):
        gc.collect()
    with _THRESHOLD.raised(large_data=True):
        yield


def is_processing_large_data() -> bool:
    """Return True if an `ignore_large_data` block is active in any thread."""
    return _THRESHOLD.large_blocks > 0
