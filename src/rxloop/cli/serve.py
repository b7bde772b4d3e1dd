"""`rxloop serve`: agents behind an HTTP API, and behind other protocols."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from rxloop.cli import options
from rxloop.cli.serving.keys import VARIABLE, check_address, is_local, read_keys
from rxloop.cli.serving.logs import log_requests, writes_log
from rxloop.cli.serving.runtime import Cluster, runtime_of
from rxloop.cli.terminal import reporting
from rxloop.errors import ConfigurationError
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
    agui: Annotated[bool, typer.Option("--agui", help="Speak AG-UI, too, at /agui.")] = False,
    ui_stream: Annotated[bool, typer.Option("--ui-stream", help="Speak to the AI SDK, too, at /ui.")] = False,
    openai: Annotated[bool, typer.Option("--openai", help="Speak as OpenAI's API does, too, at /v1.")] = False,
    a2a: Annotated[bool, typer.Option("--a2a", help="Speak A2A, too, at /a2a.")] = False,
    mcp: Annotated[bool, typer.Option("--mcp", help="Speak MCP, too, at /mcp.")] = False,
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
    queue: Annotated[
        bool, typer.Option("--queue", help="Leave the runs to workers (`rxloop worker`), which a Postgres calls.")
    ] = False,
    session_db: options.SessionDatabase = None,
    tenant_limit: options.TenantLimit = None,
    program_version: options.Version = None,
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
        for needed in ("starlette", "uvicorn"):
            if find_spec(needed) is None:
                raise ConfigurationError(
                    f'rxloop serve needs {needed}, which is not installed: pip install "rxloop[serve]"'
                )
        known = read_keys(keys, os.environ.get(VARIABLE))
        check_address(host, bool(known), without_keys)
        if mcp and not (known or is_local(host)):
            raise ConfigurationError(
                f"--mcp on {host} needs keys: without them it answers only those who call this machine by a local name"
            )
        wanted = {"agui": agui, "ui_stream": ui_stream, "openai": openai, "a2a": a2a, "mcp": mcp}
        chosen = [name for name, there in wanted.items() if there]
        source = ctx.get_parameter_source("db")
        given = {"--tenant-limit": tenant_limit, "--program-version": program_version}
        if not queue and (alone := [name for name, value in given.items() if value is not None]):
            raise ConfigurationError(f"{alone[0]} is for runs that workers carry out: add --queue")
        serving = runtime_of(
            agent,
            db,
            named=source is not None and source.name == "COMMANDLINE",
            cluster=Cluster(db, session_db, tenant_limit, program_version) if queue else None,
        )
        with writes_log(json=json):
            asyncio.run(_serve(serving, chosen, host, port, known, allow_origin or (), grace))


async def _serve(
    serving: AbstractAsyncContextManager[Runtime],
    chosen: Sequence[str],
    host: str,
    port: int,
    keys: dict[str, str],
    origins: Sequence[str],
    grace: float,
) -> None:
    # Imported here: the extra may be missing.
    from rxloop.cli.serving.doors import application, described, opened_doors
    from rxloop.cli.serving.process import address, listening, until_signalled
    from rxloop.server import Shutdown

    async with serving as runtime:
        doors = opened_doors(runtime, chosen, keys)
        app = log_requests(application(doors, origins, host, keys=bool(keys)))
        ending = Shutdown(*(each.door for each in doors), seconds=grace)
        with listening(host, port) as listener:
            url = address(listener)
            there, names = described(doors), ", ".join(runtime.agents)
            people = ", ".join(dict.fromkeys(keys.values())) or (
                "this machine, without keys" if is_local(host) else "everybody, without keys"
            )

            def ready() -> None:
                log.info(
                    "serving %s at %s to %s: %s; runs in %r", names, url, people, there, runtime.log, extra={"url": url}
                )

            async with runtime:
                await until_signalled(app, listener, ending, ready)
