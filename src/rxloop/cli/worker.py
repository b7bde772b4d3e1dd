"""`rxloop worker`: a process that carries out what servers start."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from contextlib import AbstractAsyncContextManager
from typing import Annotated

import typer

from rxloop.cli import options
from rxloop.cli.serving.loaded import spared_by_collector
from rxloop.cli.serving.logs import writes_log
from rxloop.cli.serving.runtime import Cluster, worker_of
from rxloop.cli.terminal import CANCELLED, reporting
from rxloop.runtime.runtime import Runtime

log = logging.getLogger("rxloop")


def worker(
    ctx: typer.Context,
    agent: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:OBJECT",
            help="An agent, a dict of agents, a Runtime that works, or a function without parameters that makes one.",
        ),
    ],
    db: Annotated[
        str | None,
        typer.Option("--db", "--dsn", envvar="RXLOOP_DB", metavar="DATABASE", help="The Postgres: postgresql://..."),
    ] = None,
    session_db: options.SessionDatabase = None,
    concurrency: Annotated[
        int, typer.Option("--concurrency", metavar="N", min=1, help="How many runs go on here at once.")
    ] = 32,
    tenant_limit: Annotated[
        int | None,
        typer.Option("--tenant-limit", metavar="N", min=1, help="How many runs of one owner go on at once."),
    ] = None,
    program_version: options.Version = None,
    adopt_every: Annotated[
        float,
        typer.Option(
            "--adopt-every", metavar="SECONDS", min=0.1, help="How often to look for runs whose worker is gone."
        ),
    ] = 2.0,
    grace: Annotated[
        float,
        typer.Option("--grace", metavar="SECONDS", min=0, help="How long runs have to end when the worker is stopped."),
    ] = 10.0,
    json: Annotated[bool, typer.Option("--json", help="Write the log as JSON, one object a line.")] = False,
) -> None:
    """Carry out the runs that servers start.

    It works on what `rxloop serve --queue` starts, and goes on with the runs of workers that are gone. SIGTERM or
    Ctrl-C ends it in order: it takes nothing new, and what has not ended within the grace goes on in another worker. A
    second signal leaves at once.

    Exit codes: 0 stopped in order, 1 something could not be done, 2 wrong usage, 130 left at once.
    """
    with reporting():
        cluster = Cluster(db, session_db, tenant_limit, program_version)
        working = worker_of(
            agent, cluster, options.typed(ctx), concurrency=concurrency, adopt_every=adopt_every, grace=grace
        )
        with writes_log(json=json):
            asyncio.run(_work(working))


async def _work(working: AbstractAsyncContextManager[Runtime]) -> None:
    stopped = asyncio.Event()

    def stop() -> None:
        if stopped.is_set():
            # Nothing is waited for, which is safe: what the log acknowledged is in it.
            os.write(2, b"left without waiting\n")
            os._exit(CANCELLED)
        log.info("stopping: a signal came; a second one leaves at once")
        stopped.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    async with working as runtime:
        try:
            async with runtime:
                with spared_by_collector():
                    log.info("working on %s of %r", ", ".join(runtime.agents), runtime.log)
                    await stopped.wait()
        finally:
            for agent in runtime.agents.values():
                await agent.aclose()
    log.info("stopped")
