"""Agents whose workers violate one guarantee, to test the checkers.

Only worker processes are patched. The process that starts and checks the runs is not.
"""

from __future__ import annotations

import sys
from typing import Any

from rxloop import Agent
from support.workers.clerk import clerk


def is_worker_process() -> bool:
    spec = sys.modules["__main__"].__spec__
    return spec is not None and spec.name == "rxloop.testing.chaos.worker"


def unfenced() -> Agent[Any, str]:
    """Return an agent whose worker ignores a lost lease and keeps writing."""
    if is_worker_process():
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
    """Create an agent whose worker repeats calls of earlier attempts."""
    if is_worker_process():
        from rxloop.run.attempt import Attempt
        from rxloop.state.earlier_attempts import EarlierAttempts

        def earlier(self: Attempt) -> EarlierAttempts:
            self.recorder.earlier.interrupted.clear()
            return self.recorder.earlier

        Attempt.earlier = property(earlier)  # pyright: ignore[reportAttributeAccessIssue]
    return clerk()


def hasty() -> Agent[Any, str]:
    """Create an agent whose worker starts calls and reports checkpoints before they are stored."""
    if is_worker_process():
        from rxloop.run.recorder import Recorder

        async def durable(self: Recorder) -> int | None:
            return self.stamp.numbering.seq

        Recorder.durable = durable
        Recorder.durable_now = lambda self: self.stamp.numbering.seq
    return clerk()
