"""`rxloop mcp`: servers for clients of the Model Context Protocol."""

from __future__ import annotations

import math
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, nullcontext, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup
from typing_extensions import override

from rxloop.agents.agent import Agent
from rxloop.cli import options
from rxloop.cli.agent_loader import agents_of, load, made_of
from rxloop.cli.database import opened
from rxloop.cli.terminal import fail, running, say
from rxloop.errors import ConfigurationError, UnknownSession
from rxloop.pipeline.event_log import EventLog
from rxloop.storage import MemoryEventLog, SqliteArtifacts

if TYPE_CHECKING:
    from rxloop.server.mcp.adapter import McpServer

AGENTS = "agent"
"""The command that serves agents; its name may be left out."""

Http = Annotated[bool, typer.Option("--http", help="Serve over streamable HTTP instead of stdin and stdout.")]
HttpHost = Annotated[str, typer.Option("--host", metavar="HOST", help="With --http: the address.")]
HttpPort = Annotated[int, typer.Option("--port", metavar="PORT", min=0, max=65_535, help="With --http: the port.")]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-host", metavar="NAME", help="With --http: another name by which clients may call; may be repeated."
    ),
]


class _Group(TyperGroup):
    """Takes `module:agent` in the place of a command's name."""

    @override
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        return super().resolve_command(ctx, [AGENTS, *args] if ":" in args[0] else args)


mcp = typer.Typer(
    cls=_Group,
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
    http: Http = False,
    host: HttpHost = "127.0.0.1",
    port: HttpPort = 8000,
    allow_host: AllowHost = None,
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
        artifacts = None if path is None else SqliteArtifacts(path)
        sessions = connection_sessions(artifacts, strict=strict, ttl=silence)
        try:
            if session is not None:
                # A file that cannot be used is said now, and not to the first client.
                with suppress(UnknownSession):
                    await sessions.get_session(session)
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


@mcp.command(AGENTS)
def agents(
    references: Annotated[
        list[str],
        typer.Argument(
            metavar="MODULE:AGENT...", help="Agents, dicts of agents, functions that make them, or an `mcp_server`."
        ),
    ],
    http: Http = False,
    host: HttpHost = "127.0.0.1",
    port: HttpPort = 8000,
    allow_host: AllowHost = None,
    wait: Annotated[
        float | None,
        typer.Option("--wait", metavar="SECONDS", help="Answer a call after so long, though its run goes on."),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Let a run go on when the client that called is gone.")] = False,
    db: options.Database = None,
    no_log: options.NoLog = False,
) -> None:
    """Serve agents as tools: `rxloop mcp module:agent`.

    A call is a run of the agent, kept in the database: what a process leaves when it dies, the next one goes on with.
    """
    try:
        from rxloop.mcp.transports import serve_http, serve_stdio
        from rxloop.server.core.adapter import OnDisconnect

        leaves: OnDisconnect = "keep" if keep else "cancel"
        # Stdout belongs to the protocol, whatever a module prints.
        with redirect_stdout(sys.stderr):
            found = [(reference, load(reference, "rxloop mcp")) for reference in references]
    except ConfigurationError as error:
        fail(error)

    async def main() -> None:
        async with _log(db, kept=not no_log) as log:
            door = _door(found, log, wait, leaves)
            async with door.host.runtime as runtime:
                try:
                    if http:
                        await serve_http(door.server, host, port, allowed_hosts=allow_host or (), ready=say)
                    else:
                        await serve_stdio(door.server)
                finally:
                    await door.drain()
            for agent in runtime.agents.values():
                await agent.aclose()

    running(main())


def _door(found: Sequence[tuple[str, Any]], log: EventLog, wait: float | None, leaves: Any) -> McpServer:
    """Make a server of what was loaded.

    Raises:
        ConfigurationError: It is neither agents nor a server, or two agents have one name.
    """
    from rxloop.runtime.runtime import Runtime
    from rxloop.server.mcp.adapter import McpServer, mcp_server

    if len(found) == 1 and isinstance(found[0][1], McpServer):
        return found[0][1]
    agents: dict[str, Agent[Any, Any]] = {}
    for reference, each in found:
        with redirect_stdout(sys.stderr):
            made = made_of(each, reference, "rxloop mcp")
        more = agents_of(made, reference)
        if more is None:
            raise ConfigurationError(
                f"rxloop mcp {reference!r} is {made!r}: it must be an Agent, a dict of agents, or a function "
                "that gives one"
            )
        twice = agents.keys() & more.keys()
        if twice:
            raise ConfigurationError(f"two agents are called {min(twice)!r}: give one of them another name=")
        agents |= more
    return mcp_server(Runtime(agents, log=log), wait=wait, on_disconnect=leaves)


@asynccontextmanager
async def _log(db: str | None, *, kept: bool) -> AsyncGenerator[EventLog]:
    if not kept:
        yield MemoryEventLog()
        return
    async with opened(db, write=True) as log:
        yield log
