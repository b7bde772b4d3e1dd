"""`rxloop serve`: agents behind an HTTP API, and behind other protocols."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Annotated

import typer

from rxloop.cli import options
from rxloop.cli.serving.keys import VARIABLE, check_address, read_keys
from rxloop.cli.serving.logs import log_requests, writes_log
from rxloop.cli.serving.runtime import runtime_of
from rxloop.cli.terminal import reporting
from rxloop.runtime.runtime import Runtime

log = logging.getLogger("rxloop")


def serve(
    ctx: typer.Context,
    agent: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:OBJECT",
            help="An agent, a dict of agents, a Runtime, or a function without parameters that makes one.",
        ),
    ],
    host: Annotated[str, typer.Option("--host", metavar="HOST", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", metavar="PORT", min=0, max=65_535, help="The port; 0 takes a free one.")
    ] = 8000,
    keys: Annotated[
        Path | None,
        typer.Option(
            "--keys",
            metavar="FILE",
            help=f"Who may ask: lines such as ann=KEY. Or {VARIABLE}, with commas between.",
        ),
    ] = None,
    without_keys: Annotated[
        bool, typer.Option("--without-keys", help="Let in everybody who reaches an address that is not local.")
    ] = False,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-origin",
            metavar="URL",
            help="A site whose pages may ask, such as https://app.example; may be repeated.",
        ),
    ] = None,
    db: options.Database = None,
    grace: Annotated[
        float,
        typer.Option("--grace", metavar="SECONDS", min=0, help="How long runs have to end when the server is stopped."),
    ] = 10.0,
    json: Annotated[bool, typer.Option("--json", help="Write the log as JSON, one object a line.")] = False,
) -> None:
    """Serve agents over HTTP.

    SIGTERM or Ctrl-C ends it in order: runs, streams, connections, the log. What has not ended by then goes on in the
    next process. A second signal leaves at once.

    Exit codes: 0 stopped in order, 1 something could not be done, 2 wrong usage, 130 left at once.
    """
    with reporting():
        known = read_keys(keys, os.environ.get(VARIABLE))
        check_address(host, bool(known), without_keys)
        source = ctx.get_parameter_source("db")
        serving = runtime_of(agent, db, named=source is not None and source.name == "COMMANDLINE")
        with writes_log(json=json):
            asyncio.run(_serve(serving, [], host, port, known, allow_origin or (), grace))


async def _serve(
    serving: AbstractAsyncContextManager[Runtime],
    chosen: Sequence[str],
    host: str,
    port: int,
    keys: dict[str, str],
    origins: Sequence[str],
    grace: float,
) -> None:
    # Imported here: without the extra, it says so.
    from rxloop.cli.serving.doors import DOORS, application
    from rxloop.cli.serving.process import address, listening, until_signalled
    from rxloop.server import Shutdown

    async with serving as runtime:
        app, doors = application(runtime, chosen, keys, origins, host)
        with listening(host, port) as listener:
            url = address(listener)
            there = ", ".join(["the API", *(f"{DOORS[name].title} at {DOORS[name].prefix}" for name in chosen)])

            def ready() -> None:
                names = ", ".join(runtime.agents)
                log.info("serving %s at %s: %s; runs in %r", names, url, there, runtime.log, extra={"url": url})

            async with runtime:
                await until_signalled(log_requests(app), listener, Shutdown(*doors, seconds=grace), ready)
