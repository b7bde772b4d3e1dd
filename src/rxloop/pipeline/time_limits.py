"""Time limits for user code that prepares a request."""

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
    """Wait for a task with a time limit, which pauses while a question is open."""
    if seconds is None or scope is None:
        await asyncio.wait([task], timeout=seconds)
        return
    expired: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    with scope.start_limit(seconds, lambda: expired.done() or expired.set_result(None)):
        await asyncio.wait([task, expired], return_when=asyncio.FIRST_COMPLETED)


async def limit_time(ctx: RunContext[Any], work: Callable[[], Awaitable[T]], label: str | Callable[[], str]) -> T:
    """Await user code with the time limit `limits.preparation`, then cancel it.

    The limit pauses while a question is open.

    Args:
        ctx: Run context. There is no limit outside a run.
        work: Function that starts the work. It runs in its own task, so code that ignores cancellation cannot block the
            run. A coroutine would never be awaited if this call is cancelled before its first step.
        label: Name for the error message, or a function that returns it.

    Raises:
        RxloopError: If the time limit is exceeded.
    """
    seconds = None if ctx.run is None else ctx.info.limits.preparation
    task = asyncio.ensure_future(work())
    try:
        await _wait(task, seconds, ctx.time_scope or (None if ctx.run is None else ctx.info.time_scope))
    except asyncio.CancelledError:
        task.cancel()
        # Give the task time to handle its cancellation.
        await asyncio.wait([task], timeout=GRACE)
        raise
    if task.done():
        return task.result()
    task.cancel()
    name = label if isinstance(label, str) else label()
    raise RxloopError(f"{name} took more than {seconds:g} s; increase the limit with Limits(preparation=...)")
