"""Commands `serve` and `worker`: HTTP servers and background workers."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from rxloop.cli import options
from rxloop.cli.service import Cluster, log_requests, runtime_of, spared_by_collector, worker_of, writes_log
from rxloop.cli.service.credentials import VARIABLE, check_address, is_local, read_keys
from rxloop.cli.terminal import CANCELLED, reporting
from rxloop.errors import ConfigurationError
from rxloop.runtime.runtime import Runtime

log = logging.getLogger("rxloop")


JSONLog = Annotated[bool, typer.Option("--json", help="Write the log as JSON, one object a line.")]


@dataclass(frozen=True, slots=True)
class Protocols:
    """Additional protocols for the server."""

    agui: Annotated[bool, typer.Option("--agui", help="Speak AG-UI, too, at /agui.")] = False
    ui_stream: Annotated[bool, typer.Option("--ui-stream", help="Speak to the AI SDK, too, at /ui.")] = False
    openai: Annotated[bool, typer.Option("--openai", help="Speak as OpenAI's API does, too, at /v1.")] = False
    a2a: Annotated[bool, typer.Option("--a2a", help="Speak A2A, too, at /a2a.")] = False
    mcp: Annotated[bool, typer.Option("--mcp", help="Speak MCP, too, at /mcp.")] = False

    def names(self) -> list[str]:
        """Return the names of the enabled protocols."""
        return [each.name for each in fields(self) if getattr(self, each.name)]


@dataclass(frozen=True, slots=True)
class Access:
    """Network address and access control options."""

    host: Annotated[str, typer.Option("--host", metavar="HOST", help="The address to listen on.")] = "127.0.0.1"
    port: Annotated[
        int, typer.Option("--port", metavar="PORT", min=0, max=65_535, help="The port; 0 takes a free one.")
    ] = 8000
    keys: Annotated[
        Path | None,
        typer.Option(
            "--keys", metavar="FILE", help=f"Who may ask: lines such as ann=KEY. Or {VARIABLE}, with commas between."
        ),
    ] = None
    without_keys: Annotated[
        bool, typer.Option("--without-keys", help="Let in everybody who reaches an address that is not local.")
    ] = False
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-origin",
            metavar="URL",
            help="A site whose pages may ask, such as https://app.example; may be repeated.",
        ),
    ] = None

    def read_keys(self, protocols: Protocols) -> dict[str, str]:
        """Return client names by key.

        Raises:
            ConfigurationError: The keys are invalid, or required but missing.
        """
        known = read_keys(self.keys, os.environ.get(VARIABLE))
        check_address(self.host, bool(known), self.without_keys)
        if protocols.mcp and not (known or is_local(self.host)):
            raise ConfigurationError(
                f"--mcp on {self.host} needs keys: without them it answers only those who call this machine by a local "
                "name"
            )
        return known


def serve(
    ctx: typer.Context,
    agent: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:OBJECT",
            help="An agent, a dict of agents, a Runtime, or a function without parameters that makes one.",
        ),
    ],
    protocols: Protocols,
    access: Access,
    db: options.Database = None,
    queue: Annotated[
        bool, typer.Option("--queue", help="Leave the runs to workers (`rxloop worker`), which a Postgres calls.")
    ] = False,
    session_db: options.SessionDatabase = None,
    program_version: options.Version = None,
    grace: Annotated[
        float,
        typer.Option("--grace", metavar="SECONDS", min=0, help="How long runs have to end when the server is stopped."),
    ] = 10.0,
    json: JSONLog = False,
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
        keys = access.read_keys(protocols)
        typed = options.typed(ctx)
        for name in ("program_version", "session_db"):
            if name in typed and not queue:
                option = f"--{name.replace('_', '-')}"
                raise ConfigurationError(f"{option} is for runs that workers carry out: add --queue")
        cluster = Cluster(db, session_db, version=program_version) if queue else None
        serving = runtime_of(agent, db, named="db" in typed, cluster=cluster)
        with writes_log(json=json):
            asyncio.run(_serve(serving, protocols, access, keys, grace))


async def _serve(
    serving: AbstractAsyncContextManager[Runtime],
    protocols: Protocols,
    access: Access,
    keys: dict[str, str],
    grace: float,
) -> None:
    # Imported lazily because the extra is optional.
    from rxloop.cli.service.adapters import application, described, opened_doors
    from rxloop.cli.service.process import address, listening, until_signalled
    from rxloop.server import Shutdown

    host = access.host
    async with serving as runtime:
        doors = opened_doors(runtime, protocols.names(), keys)
        app = log_requests(application(doors, access.allow_origin or (), host, keys=bool(keys)))
        ending = Shutdown(*(each.door for each in doors), seconds=grace)
        with listening(host, access.port) as listener:
            url = address(listener)
            there, names = described(doors), ", ".join(runtime.agents)
            people = ", ".join(dict.fromkeys(keys.values())) or (
                "this machine, without keys" if is_local(host) else "everybody, without keys"
            )

            where = repr(runtime.log)
            if runtime.queue is not None and not runtime.works:
                where += ", which workers carry out"

            def ready() -> None:
                log.info("serving %s at %s to %s: %s; runs in %s", names, url, people, there, where, extra={"url": url})

            async with runtime:
                with spared_by_collector():
                    await until_signalled(app, listener, ending, ready)


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
    json: JSONLog = False,
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
            # Exiting immediately is safe, because acknowledged events are already in the log.
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
