"""A worker: a process that carries out what others start."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from rxloop.agent import Agent
from rxloop.pipeline.logs import EventLog
from rxloop.pipeline.queues import Queue
from rxloop.runtime._driving import DepsOf
from rxloop.runtime.runtime import Runtime
from rxloop.workers.periodic import Periodic, start_on

_STOPS_IN = 5.0
"""Seconds after which what has not stopped is told so once more."""


async def work(
    agents: Mapping[str, Agent[Any, Any]],
    queue: Queue,
    *,
    log: EventLog,
    deps: DepsOf | None = None,
    periodic: Sequence[Periodic] = (),
    concurrency: int = 32,
    adopt_every: float = 2.0,
    grace: float = 10.0,
    version: str | None = None,
) -> None:
    """Bring to rest what is started, and go on with what dead workers have left, until it is cancelled.

    Then it takes nothing new, lets runs end within `grace`, and gives up those that have not: other workers go on with
    them. The log, the queue and the agents stay open. What it does is what a `Runtime` with `works=True` does.

    Example:
        >>> log, queue = PostgresEventLog(dsn), PostgresQueue(dsn)
        >>> await work({"support": support}, queue, log=log)

    Args:
        agents: By the names under which runs are started.
        queue: Calls for runs.
        log: Keeps the runs.
        deps: As for `Runtime`.
        periodic: Runs that are started by the clock.
        concurrency: How many runs go on here at once.
        adopt_every: Seconds between two looks for runs whose worker is gone.
        grace: Seconds that runs have to end in.
        version: As for `Runtime`.

    Raises:
        ConfigurationError: An argument is of a wrong kind.
        EventLogError: The log could not be read at the beginning.
    """
    runtime = Runtime(
        agents,
        log=log,
        deps=deps,
        concurrency=concurrency,
        adopt_every=adopt_every,
        grace=grace,
        queue=queue,
        works=True,
        version=version,
    )
    async with runtime:
        starting = [asyncio.create_task(start_on(runtime, each), name=f"rxloop-{each.name}") for each in periodic]
        try:
            if not starting:
                await asyncio.Event().wait()
            # One of them ends only by a mistake in what it is to start.
            ended, _ = await asyncio.wait(starting, return_when=asyncio.FIRST_COMPLETED)
            for each in ended:
                each.result()
        finally:
            while under_way := [each for each in starting if not each.done()]:
                for each in under_way:
                    each.cancel()
                # A library may take a cancellation for an error of its own.
                await asyncio.wait(under_way, timeout=_STOPS_IN)
