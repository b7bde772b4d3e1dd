"""What a stream holds that is of no single run: an event loop, and a gate of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from reactivex import abc

from rxloop.errors import RxloopError
from rxloop.stream.scheduler import RunScheduler
from rxloop.stream.scope import Gate


class OwnLoop:
    """The hold of a stream that keeps no run going: a reader that is slow holds back its own reading alone."""

    def __init__(self) -> None:
        self.gate = Gate()

    def scheduler(self) -> abc.SchedulerBase:
        """The scheduler of the event loop that runs."""
        try:
            return RunScheduler(asyncio.get_running_loop(), for_readers=True)
        except RuntimeError:
            raise RxloopError(
                "the stream of a runtime needs a running event loop of asyncio: use it in async code"
            ) from None

    def keep(self) -> Callable[[], None]:
        """Nothing is kept."""
        return lambda: None
