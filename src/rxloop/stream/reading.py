"""What a reader holds of a run that it cannot keep: one out of a log, or of another machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from reactivex import abc

from rxloop.errors import RxloopError
from rxloop.stream.scheduler import RunScheduler
from rxloop.stream.scope import Gate


class Reading:
    """The hold of a run that goes on elsewhere: there is nothing to keep, and the gate stops the reading alone."""

    def __init__(self) -> None:
        self.gate = Gate()

    def scheduler(self) -> abc.SchedulerBase:
        """The scheduler of the event loop that runs; nothing is started."""
        try:
            return RunScheduler(asyncio.get_running_loop(), for_readers=True)
        except RuntimeError:
            raise RxloopError(
                "reading a run needs a running event loop of asyncio (trio is not supported): do it inside async code"
            ) from None

    def keep(self) -> Callable[[], None]:
        """Nothing is kept."""
        return lambda: None
