"""The scheduler of a run."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import TypeVar

from reactivex import abc
from reactivex.scheduler import CurrentThreadScheduler
from reactivex.scheduler.eventloop import AsyncIOScheduler

S = TypeVar("S")


class RunScheduler(AsyncIOScheduler):
    """A trampoline for what is due now, the event loop for what is due later.

    The stock `AsyncIOScheduler` sends both to the loop, which makes `just` and `start_with` asynchronous; without any
    scheduler the time operators fire on threads of their own.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._began = super().now - timedelta(seconds=loop.time())

    @property
    def now(self) -> datetime:
        """The time of the event loop, by which the timers go: where a test lets the loop jump, this jumps with it."""
        return self._began + timedelta(seconds=self._loop.time())

    def schedule(self, action: abc.ScheduledAction[S], state: S | None = None) -> abc.DisposableBase:
        """Run the action now, or behind what is running now."""
        return CurrentThreadScheduler.singleton().schedule(action, state)
