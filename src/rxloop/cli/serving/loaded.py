"""What a server and a worker have loaded when they begin."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def spared_by_collector() -> Generator[None]:
    """Have the garbage collector pass over what is there, while the block lasts.

    It stays anyway, and each time that the collector went through all of it, all runs and readers stood still for some
    30 milliseconds.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
