"""Time limits for what user code prepares."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from rxloop.errors import RxloopError
from rxloop.pipeline.run_context import RunContext
from rxloop.stream.scope import TimeScope
from rxloop.support.tasks import GRACE

T = TypeVar("T")


async def _wait(task: asyncio.Future[Any], seconds: float | None, scope: TimeScope | None) -> None:
    """Wait for a task for a limited time, which stops while a person is asked."""
    if seconds is None or scope is None:
        await asyncio.wait([task], timeout=seconds)
        return
    expired: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    with scope.start_limit(seconds, lambda: expired.done() or expired.set_result(None)):
        await asyncio.wait([task, expired], return_when=asyncio.FIRST_COMPLETED)


async def limit_time(ctx: RunContext[Any], work: Callable[[], Awaitable[T]], who: str | Callable[[], str]) -> T:
    """Wait for some work, which may take `limits.preparation` seconds and is abandoned when it takes more.

    The time in which a person is asked does not count.

    Args:
        ctx: That of the run; outside one there is no limit.
        work: Begins the work, which is awaited in a task of its own: what does not listen when it is cancelled cannot
            hold the run. It is a function because a coroutine would never be awaited if this one is cancelled before
            its first step.
        who: Does the work; or what tells it when the time is over.

    Raises:
        RxloopError: It took longer.
    """
    seconds = None if ctx.run is None else ctx.info.limits.preparation
    task = asyncio.ensure_future(work())
    try:
        await _wait(task, seconds, ctx.time_scope or (None if ctx.run is None else ctx.info.time_scope))
    except asyncio.CancelledError:
        task.cancel()
        # So that nothing of it is left, if it listens.
        await asyncio.wait([task], timeout=GRACE)
        raise
    if task.done():
        return task.result()
    task.cancel()
    name = who if isinstance(who, str) else who()
    raise RxloopError(
        f"{name} took more than {seconds:g} s: if it may take so long, give the run Limits(preparation=...)"
    )
