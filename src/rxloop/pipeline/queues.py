"""The seam of queues: what tells workers that there is something to do for a run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
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
        agent: str | None = None,
        version: str | None = None,
    ) -> None:
        """Ring for a run. One for which a bell waits already needs no second one.

        Args:
            task_id: The run.
            priority: A whole number; greater ones come first.
            at: Not before this time.
            tenant: Whose it is, for limits.
            agent: Only workers that have this agent can go on with it; None is for whoever hears it.
            version: Only workers of this version can go on with it; None is one that has no version.
        """
        ...

    async def serve(
        self,
        settle: Callable[[str], Awaitable[None]],
        *,
        concurrency: int,
        agents: Collection[str] | None = None,
        version: str | None = None,
    ) -> None:
        """Answer bells until it is cancelled, each at least once.

        Args:
            settle: Called with the run of a bell. A bell whose call is cancelled rings once more, and so does one whose
                call fails, a second or so later: it may be for another worker.
            concurrency: How many calls go on at once.
            agents: Those of this worker: it answers the bells for these, and those for none. None is all.
            version: That of this worker: it answers the bells for this version, and those for none.
        """
        ...

    async def waiting(self, version: str | None = None) -> int:
        """Count the bells that ring, and that nobody has answered yet.

        Args:
            version: Those that a worker of this version answers, and so not what waits for a version that is gone.
        """
        ...

    async def aclose(self) -> None:
        """Close connections; may be called more than once."""
        ...
