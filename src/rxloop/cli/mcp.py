"""`rxloop mcp`: servers for clients of the Model Context Protocol."""

from __future__ import annotations

import math
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from rxloop.cli.terminal import fail, running, say
from rxloop.errors import ConfigurationError
from rxloop.eventlog import SqliteSessionStore

mcp = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Serve tools to clients of the Model Context Protocol.",
)


@mcp.callback()
def _mcp() -> None:
    """Serve tools to clients of the Model Context Protocol."""


@mcp.command("sequential-thinking")
def sequential_thinking(
    http: Annotated[
        bool, typer.Option("--http", help="Serve over streamable HTTP instead of stdin and stdout.")
    ] = False,
    host: Annotated[str, typer.Option("--host", metavar="HOST", help="With --http: the address.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", metavar="PORT", min=0, max=65_535, help="With --http: the port.")
    ] = 8000,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host", metavar="NAME", help="With --http: another name by which clients may call; may be repeated."
        ),
    ] = None,
    session: Annotated[
        str | None,
        typer.Option("--session", metavar="NAME", help="One session for all clients, which is kept."),
    ] = None,
    path: Annotated[Path | None, typer.Option("--path", metavar="FILE", help="Keep the session in a database.")] = None,
    ttl: Annotated[
        float | None,
        typer.Option(
            "--ttl",
            metavar="SECONDS",
            help="Drop a session after this silence; with --http after a day, unless it has a name.",
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse what revises, or branches from, a thought that does not exist.")
    ] = False,
) -> None:
    """Serve the tool sequentialthinking, in the place of the reference server.

    Each client has a session of its own. Thoughts are shown on stderr unless DISABLE_THOUGHT_LOGGING is "true".
    """
    try:
        from rxloop.mcp.sequential_thinking import connection_sessions, sequential_thinking_server
        from rxloop.mcp.thought_log import ThoughtLog, logs_thoughts
        from rxloop.mcp.transports import IDLE, serve_http, serve_stdio

        if path is not None and session is None:
            raise ConfigurationError("--path keeps a session for later, and later it needs a name: add --session NAME")
        if session is not None and not session.strip():
            raise ConfigurationError("--session is blank: give it a name, or leave it out")
        if ttl is not None and not 0 < ttl < math.inf:
            raise ConfigurationError(f"--ttl {ttl:g}: give more than 0 seconds, or leave it out")
        silence = ttl if ttl is not None or session is not None or not http else IDLE
    except ConfigurationError as error:
        fail(error)

    async def main() -> None:
        store = None if path is None else SqliteSessionStore(path)
        sessions = connection_sessions(store, strict=strict, ttl=silence)
        try:
            if session is not None:
                # A file that cannot be used is said now, and not to the first client.
                await sessions.store.load("", session)
            with ThoughtLog() if logs_thoughts() else nullcontext() as log:
                server = sequential_thinking_server(sessions, session=session, log=log)
                if http:
                    hosts = allow_host or ()
                    await serve_http(server, host, port, allowed_hosts=hosts, ttl=ttl or IDLE, ready=say)
                else:
                    await serve_stdio(server)
        finally:
            await sessions.aclose()

    running(main())
