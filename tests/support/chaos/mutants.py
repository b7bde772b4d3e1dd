"""Agents whose workers have an engine with one thing broken, for judges that have to find it out.

Only in the process of a worker: whoever starts and judges the runs keeps the engine as it is.
"""

from __future__ import annotations

import sys
from typing import Any

from rxloop import Agent
from support.workers.clerk import clerk


def in_a_worker() -> bool:
    spec = sys.modules["__main__"].__spec__
    return spec is not None and spec.name == "rxloop.testing.chaos.worker"


def unfenced() -> Agent[Any, str]:
    """A worker that does not hear that it has lost a turn, and writes wherever it believes to be."""
    if in_a_worker():
        from rxloop.coordination.lease import Lease
        from rxloop.storage.postgres import rows

        statement = rows._APPEND
        for guard in (" AND r.seq = b.expected AND NOT h.fenced", " WHERE NOT fenced"):
            assert guard in statement
            statement = statement.replace(guard, "")
        rows._APPEND = rows._APPEND_NEW = statement
        Lease._lose = lambda self: None
        Lease.check = lambda self, on_confirmed, on_error: None
    return clerk()


def repeating() -> Agent[Any, str]:
    """A worker that begins once more what the one before it had begun."""
    if in_a_worker():
        from rxloop.run.attempt import Attempt
        from rxloop.state.earlier_attempts import EarlierAttempts

        def earlier(self: Attempt) -> EarlierAttempts:
            self.recorder.earlier.interrupted.clear()
            return self.recorder.earlier

        Attempt.earlier = property(earlier)  # pyright: ignore[reportAttributeAccessIssue]
    return clerk()


def hasty() -> Agent[Any, str]:
    """A worker that does not wait for the log: it tells of checkpoints, and begins calls, that are not written yet."""
    if in_a_worker():
        from rxloop.run.recorder import Recorder

        async def durable(self: Recorder) -> int | None:
            return self.stamp.numbering.seq

        Recorder.durable = durable
        Recorder.durable_now = lambda self: self.stamp.numbering.seq
    return clerk()
