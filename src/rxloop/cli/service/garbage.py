"""Garbage collection with short pauses."""

from __future__ import annotations

import gc
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Any

_COMPLETE_EVERY = 20
"""Number of full collections until all objects are examined. Up to 80,000 new objects start a full collection."""


@contextmanager
def shorten_collections() -> Generator[None]:
    """Exclude long-lived objects from garbage collection for the duration of the block.

    A full collection examines all objects, which blocks all runs and clients for 30 to 150 milliseconds. In the block,
    objects that survive a full collection are excluded from the following ones (`gc.freeze`), so that a pause only
    depends on the number of new objects. Every 20th full collection examines all objects.
    """
    numbers = count(1)

    def exclude_survivors(phase: str, info: Mapping[str, Any]) -> None:
        if info["generation"] != 2:
            return
        if phase == "stop":
            # Counting the excluded objects would take longer than the collection.
            gc.freeze()
        elif next(numbers) % _COMPLETE_EVERY == 0:
            gc.unfreeze()

    gc.collect()
    gc.freeze()
    gc.callbacks.append(exclude_survivors)
    try:
        yield
    finally:
        gc.callbacks.remove(exclude_survivors)
        gc.unfreeze()
