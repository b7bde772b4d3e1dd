"""The seam of queues: what tells workers that there is something to do for a run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Protocol


class Queue(Protocol):
    """Rings for runs that workers are to bring to rest. The log alone says what is to be done.

    A bell may come late, twice, in another order or not at all: who answers it reads the log, and workers look for runs
    that nobody has begun. So what a queue is for is what the log cannot do: to be quick, and to say who comes first.
    """

    async def ring(
        self,
        task_id: str,
        *,
        priority: int = 0,
        at: datetime | None = None,
        tenant: str | None = None,
        version: str | None = None,
    ) -> None:
        """Ring for a run. One for which a bell waits already needs no second one.

        Args:
            task_id: The run.
            priority: Greater ones come first.
            at: Not before this time.
            tenant: Whose it is, for limits.
            version: Only workers of this version can go on with it; None is one that has no version.
        """
        ...

    async def serve(
        self, settle: Callable[[str], Awaitable[None]], *, concurrency: int, version: str | None = None
    ) -> None:
        """Answer bells until it is cancelled, each at least once.

        Args:
            settle: Called with the run of a bell. A bell whose call fails, or is cancelled, rings once more.
            concurrency: How many calls go on at once.
            version: That of this worker: it answers the bells for this version, and those for none.
        """
        ...

    async def waiting(self) -> int:
        """Count the bells that ring, and that nobody has answered yet."""
        ...

    async def aclose(self) -> None:
        """Close connections; may be called more than once."""
        ...
