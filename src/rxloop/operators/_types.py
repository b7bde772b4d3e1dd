"""The type of a view, and where a view takes its time from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from reactivex import Observable, abc
from reactivex.scheduler.eventloop import AsyncIOScheduler

from rxloop.stream.scheduler import RunScheduler

A = TypeVar("A")
T = TypeVar("T")

View = Callable[[Observable[A]], Observable[T]]
"""Works for a subscriber, outside the loop; any reactivex operator is one."""


def timers(scheduler: abc.SchedulerBase | None) -> abc.SchedulerBase:
    """The scheduler of a subscription, or the running event loop where none was given.

    Stock operators fall back on a timer of another thread instead, where a run must not be touched. And the stock
    scheduler of asyncio, which `await` on an Observable brings along, tells the time by the clock on the wall while its
    timers go by the loop: after a change of the one, a view that compares the two would be wrong.
    """
    if scheduler is None or type(scheduler) is AsyncIOScheduler:
        return RunScheduler(asyncio.get_running_loop())
    return scheduler
