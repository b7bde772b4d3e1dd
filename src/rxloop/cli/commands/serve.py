"""Commands `serve` and `worker`: HTTP servers and background workers."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import typer

from rxloop.cli import options
from rxloop.cli.installation import check_server_packages
from rxloop.cli.service import Cluster, log_requests, open_runtime, open_worker, write_logs
from rxloop.cli.service.credentials import KEYS_VARIABLE, check_address, check_metrics_key, is_local, read_keys
from rxloop.cli.terminal import CANCELLED, report_errors
from rxloop.errors import ConfigurationError
from rxloop.runtime.runtime import Runtime
from rxloop.support.garbage import shorten_collections

log = logging.getLogger("rxloop")


JSONLog = Annotated[bool, typer.Option("--json", help="Write the log as JSON, one object per line.")]


@dataclass(frozen=True, slots=True)
class Protocols:
    """Additional protocols for the server."""

    agui: Annotated[bool, typer.Option("--agui", help="Also serve AG-UI at /agui.")] = False
    ui_stream: Annotated[bool, typer.Option("--ui-stream", help="Also serve the AI SDK at /ui.")] = False
    openai: Annotated[bool, typer.Option("--openai", help="Also serve the OpenAI API at /v1.")] = False
    a2a: Annotated[bool, typer.Option("--a2a", help="Also serve A2A at /a2a.")] = False
    mcp: Annotated[bool, typer.Option("--mcp", help="Also serve MCP at /mcp.")] = False
    view: Annotated[bool, typer.Option("--view", help="Also serve the viewer of runs at /view/.")] = False
    metrics: Annotated[
        bool, typer.Option("--metrics", help="Also serve metrics for Prometheus at /metrics, to the client `metrics`.")
    ] = False

    def list_names(self) -> list[str]:
        """Return the names of the enabled protocols."""
        return [each.name for each in fields(self) if getattr(self, each.name)]


@dataclass(frozen=True, slots=True)
class Access:
    """Network address and access control options."""

    host: Annotated[str, typer.Option("--host", metavar="HOST", help="Address to listen on.")] = "127.0.0.1"
    port: Annotated[
        int, typer.Option("--port", metavar="PORT", min=0, max=65_535, help="Port; 0 selects a free port.")
    ] = 8000
    keys: Annotated[
        Path | None,
        typer.Option(
            "--keys",
            metavar="FILE",
            help=f"File with client keys, one NAME=KEY per line. Alternatively, set {KEYS_VARIABLE}=NAME=KEY,...",
        ),
    ] = None
    without_keys: Annotated[
        bool, typer.Option("--without-keys", help="Allow public addresses without authentication.")
    ] = False
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-origin", metavar="URL", help="Allowed CORS origin, such as https://app.example. Can be repeated."
        ),
    ] = None

    max_connections: Annotated[
        int | None,
        typer.Option(
            "--max-connections",
            metavar="N",
            min=1,
            help="Maximum number of connections. Defaults to three quarters of the file descriptors, at most 10,000.",
        ),
    ] = None

    def read_keys(self, protocols: Protocols) -> dict[str, str]:
        """Return client names by key.

        Raises:
            ConfigurationError: The keys are invalid, or required but missing.
        """
        keys = read_keys(self.keys, os.environ.get(KEYS_VARIABLE))
        check_address(self.host, bool(keys), self.without_keys)
        if protocols.metrics:
            check_metrics_key(keys)
        if protocols.mcp and not (keys or is_local(self.host)):
            raise ConfigurationError(
                f"--mcp on {self.host} requires keys. Without keys, it only accepts requests to local host names."
            )
        return keys


@dataclass(frozen=True, slots=True)
class MetricsServer:
    """Address and access control options of the metrics of a worker."""

    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port",
            metavar="PORT",
            min=0,
            max=65_535,
            help="Serve metrics for Prometheus at /metrics on this port; 0 selects a free port.",
        ),
    ] = None
    metrics_host: Annotated[
        str, typer.Option("--metrics-host", metavar="HOST", help="Address to listen on for metrics.")
    ] = "127.0.0.1"
    without_keys: Annotated[
        bool,
        typer.Option(
            "--without-keys", help=f"Serve metrics without the key metrics=KEY in {KEYS_VARIABLE} on public addresses."
        ),
    ] = False

    def read_keys(self) -> dict[str, str]:
        """Return client names by key.

        Raises:
            ConfigurationError: The keys are invalid, or required but missing.
        """
        keys = read_keys(None, os.environ.get(KEYS_VARIABLE))
        if not (keys or self.without_keys or is_local(self.metrics_host)):
            raise ConfigurationError(
                f"--metrics-host {self.metrics_host} is public and requires a key; set {KEYS_VARIABLE}=metrics=KEY, or "
                "add --without-keys if another component controls access"
            )
        check_metrics_key(keys)
        return keys

    @asynccontextmanager
    async def serve(self, runtime: Runtime) -> AsyncGenerator[None]:
        """Serve metrics while the block is executed, if a port is set."""
        if self.metrics_port is None:
            yield
            return
        # Imported lazily because the extra is optional.
        from rxloop.cli.service.adapters import create_application, create_metrics
        from rxloop.cli.service.process import get_url, open_listener, serve_in_background

        keys = self.read_keys()
        app = create_application([create_metrics(runtime, keys)], (), self.metrics_host, keys=bool(keys))
        with open_listener(self.metrics_host, self.metrics_port) as listener:
            async with serve_in_background(app, listener):
                url = f"{get_url(listener)}/metrics"
                log.info("Serving metrics at %s", url, extra={"url": url})
                yield


def serve(
    ctx: typer.Context,
    agent: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:OBJECT",
            help="Agent, dict of agents, Runtime, or factory function without parameters.",
        ),
    ],
    protocols: Protocols,
    access: Access,
    db: options.Database = None,
    queue: Annotated[
        bool, typer.Option("--queue", help="Queue runs in Postgres for workers (`rxloop worker`).")
    ] = False,
    session_db: options.SessionDatabase = None,
    program_version: options.Version = None,
    grace: Annotated[
        float,
        typer.Option("--grace", metavar="SECONDS", min=0, help="Time for runs to end when the server is stopped."),
    ] = 10.0,
    json: JSONLog = False,
) -> None:
    """Serve agents over HTTP.

    SIGTERM or Ctrl-C shuts down runs, streams, connections and the log, in this order. The next process resumes
    unfinished runs. A second signal exits immediately.

    Exit codes: 0 graceful shutdown, 1 error, 2 invalid usage, 130 immediate exit.
    """
    with report_errors():
        check_server_packages("rxloop serve")
        keys = access.read_keys(protocols)
        typed = options.list_typed_options(ctx)
        for name in ("program_version", "session_db"):
            if name in typed and not queue:
                option = f"--{name.replace('_', '-')}"
                raise ConfigurationError(f"{option} requires --queue, because it only affects workers")
        cluster = Cluster(db, session_db, version=program_version) if queue else None
        runtime_context = open_runtime(agent, db, is_explicit="db" in typed, cluster=cluster)
        with write_logs(json=json):
            asyncio.run(_run_server(runtime_context, protocols, access, keys, grace))


async def _run_server(
    runtime_context: AbstractAsyncContextManager[Runtime],
    protocols: Protocols,
    access: Access,
    keys: dict[str, str],
    grace: float,
) -> None:
    # Imported lazily because the extra is optional.
    from rxloop.cli.service.adapters import create_adapters, create_application, describe_adapters
    from rxloop.cli.service.process import get_url, open_listener, serve_until_signal
    from rxloop.server import Shutdown

    host = access.host
    async with runtime_context as runtime:
        adapters = create_adapters(runtime, protocols.list_names(), keys)
        app = log_requests(create_application(adapters, access.allow_origin or (), host, keys=bool(keys)))
        shutdown = Shutdown(*(each.adapter for each in adapters), seconds=grace)
        with open_listener(host, access.port) as listener:
            url = get_url(listener)
            endpoints, names = describe_adapters(adapters), ", ".join(runtime.agents)
            without_keys = "this machine, without keys" if is_local(host) else "all clients, without keys"
            clients = ", ".join(dict.fromkeys(keys.values())) or without_keys
            storage = repr(runtime.log)
            if runtime.queue is not None and not runtime.is_worker:
                storage += ", executed by workers"

            def ready() -> None:
                data = (names, url, clients, endpoints, storage)
                log.info("Serving %s at %s to %s: %s; runs in %s", *data, extra={"url": url})

            async with runtime:
                with shorten_collections():
                    await serve_until_signal(app, listener, shutdown, ready, max_connections=access.max_connections)


def worker(
    ctx: typer.Context,
    agent: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:OBJECT",
            help="Agent, dict of agents, worker Runtime, or factory function without parameters.",
        ),
    ],
    metrics: MetricsServer,
    db: Annotated[
        str | None,
        typer.Option(
            "--db", "--dsn", envvar="RXLOOP_DB", metavar="DATABASE", help="Postgres database: postgresql://..."
        ),
    ] = None,
    session_db: options.SessionDatabase = None,
    concurrency: Annotated[
        int, typer.Option("--concurrency", metavar="N", min=1, help="Maximum number of concurrent runs of this worker.")
    ] = 32,
    tenant_limit: Annotated[
        int | None,
        typer.Option("--tenant-limit", metavar="N", min=1, help="Maximum number of concurrent runs per owner."),
    ] = None,
    program_version: options.Version = None,
    adopt_every: Annotated[
        float,
        typer.Option("--adopt-every", metavar="SECONDS", min=0.1, help="Interval between searches for orphaned runs."),
    ] = 2.0,
    grace: Annotated[
        float,
        typer.Option("--grace", metavar="SECONDS", min=0, help="Time for runs to end when the worker is stopped."),
    ] = 10.0,
    json: JSONLog = False,
) -> None:
    """Execute runs that servers have queued.

    The runs are started by `rxloop serve --queue`. Orphaned runs of other workers are adopted. On SIGTERM or Ctrl-C,
    the worker accepts no more runs, and other workers resume those that have not ended after the grace period. A
    second signal exits immediately.

    Exit codes: 0 graceful shutdown, 1 error, 2 invalid usage, 130 immediate exit.
    """
    with report_errors():
        if metrics.metrics_port is not None:
            check_server_packages("--metrics-port")
            metrics.read_keys()
        cluster = Cluster(db, session_db, tenant_limit, program_version)
        runtime_context = open_worker(
            agent,
            cluster,
            options.list_typed_options(ctx),
            concurrency=concurrency,
            adopt_every=adopt_every,
            grace=grace,
        )
        with write_logs(json=json):
            asyncio.run(_run_worker(runtime_context, metrics))


async def _run_worker(runtime_context: AbstractAsyncContextManager[Runtime], metrics: MetricsServer) -> None:
    stopped = asyncio.Event()

    def stop() -> None:
        if stopped.is_set():
            # Exiting immediately is safe, because acknowledged events are already in the log.
            os.write(2, b"exited without waiting\n")
            os._exit(CANCELLED)
        log.info("Stopping after a signal; a second signal exits immediately")
        stopped.set()

    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signal_number, stop)
    async with runtime_context as runtime:
        try:
            async with metrics.serve(runtime), runtime:
                with shorten_collections():
                    log.info("Executing runs of %s from %r", ", ".join(runtime.agents), runtime.log)
                    await stopped.wait()
        finally:
            for agent in runtime.agents.values():
                await agent.aclose()
    log.info("Stopped")
