"""Waiting for tasks to end, which nothing cuts short."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any


async def all_over(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Wait until tasks are over, however often the waiting task is cancelled itself; that is raised at the end."""
    # Imported here: importing rxloop is quicker without.
    from anyio import CancelScope

    cancelled: asyncio.CancelledError | None = None
    with CancelScope(shield=True):
        while under_way := [task for task in tasks if not task.done()]:
            try:
                await asyncio.wait(under_way)
            except asyncio.CancelledError as error:
                cancelled = error
    if cancelled is not None:
        raise cancelled
