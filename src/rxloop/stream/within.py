"""Time limits for what others wrote and the run waits for."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from rxloop.errors import RxloopError
from rxloop.pipeline.run_context import RunContext
from rxloop.protocol.settings import Limits
from rxloop.stream.scope import GRACE

T = TypeVar("T")


async def called(function: Callable[..., T | Awaitable[T]], *arguments: Any) -> T:
    """Call a function of somebody else's, sync or async.

    A plain one runs in a thread: on the event loop, one that never returns would hold every run of the process, and
    no time limit would help.
    """
    made: Any
    if inspect.iscoroutinefunction(function):
        made = function(*arguments)
    else:
        # Not before it is needed: importing rxloop is quicker without.
        from rxloop.stream.threads import in_thread

        made = await in_thread(lambda: function(*arguments))
    return await made if inspect.isawaitable(made) else made


async def within(ctx: RunContext[Any], work: Awaitable[T], who: str | Callable[[], str]) -> T:
    """Wait for some work, which may take `limits.preparation` seconds and is abandoned when it takes more.

    Args:
        ctx: That of the run; outside one there is no limit.
        work: What is awaited, in a task of its own: what does not listen when it is cancelled cannot hold the run.
        who: Does the work; or what tells it when the time is over.

    Raises:
        RxloopError: It took longer.
    """
    limits: Limits | None = getattr(ctx.run, "limits", None)
    seconds = None if limits is None else limits.preparation
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task], timeout=seconds)
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
