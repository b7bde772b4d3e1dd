"""The type of a view, and where a view takes its time from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from reactivex import Observable, abc

from rxloop.stream.scheduler import RunScheduler

A = TypeVar("A")
T = TypeVar("T")

View = Callable[[Observable[A]], Observable[T]]
"""Works for a subscriber, outside the loop; any reactivex operator is one."""


def timers(scheduler: abc.SchedulerBase | None) -> abc.SchedulerBase:
    """The scheduler of a subscription, or the running event loop where none was given.

    Stock operators fall back on a timer of another thread instead, where a run must not be touched.
    """
    return scheduler if scheduler is not None else RunScheduler(asyncio.get_running_loop())
