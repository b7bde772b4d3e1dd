"""Command `mcp`: MCP servers for thinking tools and agents."""

from __future__ import annotations

import math
import os
import queue
import sys
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext, redirect_stdout, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer
from rich.box import ROUNDED
from rich.console import Console
from rich.panel import Panel
from rich.text import Text
from typer.core import TyperGroup
from typing_extensions import override

from rxloop.agents.agent import Agent
from rxloop.cli import options
from rxloop.cli.agent_loader import call_factory, load, to_agents
from rxloop.cli.database import open_database
from rxloop.cli.terminal import CANCELLED, fail, notify, run_main
from rxloop.errors import ConfigurationError, UnknownSession
from rxloop.pipeline.event_log import EventLog
from rxloop.storage import MemoryEventLog, SqliteArtifacts
from rxloop.support.text import to_one_line, to_visible
from rxloop.thinking.sessions.result import ThoughtResult

if TYPE_CHECKING:
    from rxloop.server.core.adapter import OnDisconnect
    from rxloop.server.mcp.adapter import McpServer


_DEFAULT_TIMEOUT = 24 * 60 * 60.0
"""Default session timeout for HTTP clients, in seconds."""

AGENTS = "agent"
"""Name of the default command."""

Http = Annotated[bool, typer.Option("--http", help="Serve over streamable HTTP instead of stdin and stdout.")]
HttpHost = Annotated[str, typer.Option("--host", metavar="HOST", help="With --http: address to listen on.")]
HttpPort = Annotated[int, typer.Option("--port", metavar="PORT", min=0, max=65_535, help="With --http: port.")]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-host", metavar="NAME", help="With --http: additional host name for clients. Can be repeated."
    ),
]


class _Group(TyperGroup):
    """Command group that accepts `module:agent` instead of a command name."""

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
def _import_mcp() -> None:
    """Serve tools to clients of the Model Context Protocol."""


@mcp.command("sequential-thinking")
def sequential_thinking(
    http: Http = False,
    host: HttpHost = "127.0.0.1",
    port: HttpPort = 8000,
    allow_host: AllowHost = None,
    session: Annotated[
        str | None, typer.Option("--session", metavar="NAME", help="Name of a permanent session for all clients.")
    ] = None,
    path: Annotated[Path | None, typer.Option("--path", metavar="FILE", help="Database of the session.")] = None,
    ttl: Annotated[
        float | None,
        typer.Option(
            "--ttl",
            metavar="SECONDS",
            help="Idle time before sessions are removed. Defaults to a day for unnamed sessions with --http.",
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Reject revisions and branches of thoughts that do not exist.")
    ] = False,
    strategy: Annotated[
        list[str] | None,
        typer.Option(
            "--strategy",
            metavar="NAME",
            help="Add the tool strategic_thinking with this reasoning strategy, such as react. Can be repeated.",
        ),
    ] = None,
) -> None:
    """Serve the tool sequentialthinking, as a replacement for the reference server.

    Each client has its own session. Thoughts are shown on stderr unless DISABLE_THOUGHT_LOGGING is "true".
    """
    try:
        # Fails if the `mcp` extra is not installed.
        from rxloop.server.mcp.thinking_tools import make_connection_sessions
        from rxloop.strategies import get_stages

        if path is not None and session is None:
            raise ConfigurationError("--path requires a session name; add --session NAME")
        if session is not None and not session.strip():
            raise ConfigurationError("--session must not be blank")
        if ttl is not None and not 0 < ttl < math.inf:
            raise ConfigurationError(f"--ttl must be a positive number of seconds, got {ttl:g}")
        session_timeout = ttl if ttl is not None or session is not None or not http else _DEFAULT_TIMEOUT
        strategies = [get_stages(name) for name in strategy or ()]
    except ConfigurationError as error:
        fail(error)

    async def main() -> int:
        from rxloop.runtime.runtime import Runtime
        from rxloop.server import ServerLimits, ThinkingTools, mcp_server
        from rxloop.server.mcp.thinking_tools import MAX_BODY_BYTES

        artifacts = None if path is None else SqliteArtifacts(path)
        sessions = make_connection_sessions(artifacts, strict=strict, ttl=session_timeout)
        try:
            if session is not None:
                # Detect an unusable file before the first client connects.
                with suppress(UnknownSession):
                    await sessions.get_session(session)
            with ThoughtLog() if is_thought_log_enabled() else nullcontext() as log:
                tools = ThinkingTools(sessions, session=session, strategies=strategies, on_thought=log)
                server = mcp_server(
                    Runtime({}, log=MemoryEventLog()),
                    name="rxloop-sequential-thinking",
                    sequential_thinking=tools,
                    limits=ServerLimits(body=MAX_BODY_BYTES),
                    session_timeout=ttl or _DEFAULT_TIMEOUT,
                    max_sessions=1_000,
                    allowed_hosts=[host, *(allow_host or ())],
                )
                return await _serve(server, (host, port) if http else None)
        finally:
            await sessions.aclose()

    run_main(main())


@mcp.command(AGENTS)
def agents(
    references: Annotated[
        list[str],
        typer.Argument(
            metavar="MODULE:AGENT...", help="Agents, dicts of agents, factory functions, or an `mcp_server`."
        ),
    ],
    http: Http = False,
    host: HttpHost = "127.0.0.1",
    port: HttpPort = 8000,
    allow_host: AllowHost = None,
    wait: Annotated[
        float | None,
        typer.Option(
            "--wait", metavar="SECONDS", help="Maximum time before a call returns, even if its run is active."
        ),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Do not cancel runs when the client disconnects.")] = False,
    db: options.Database = None,
    no_log: options.NoLog = False,
) -> None:
    """Serve agents as tools: `rxloop mcp module:agent`.

    Each call is a run of the agent and is stored in the database. If the process dies, the next one resumes its runs.
    """
    try:
        # Fails if the `mcp` extra is not installed.
        from rxloop.server.mcp.adapter import McpServer

        # Redirect output from imported modules, because stdout is used by the protocol.
        with redirect_stdout(sys.stderr):
            values = [(reference, load(reference, "rxloop mcp")) for reference in references]
        if allow_host and any(isinstance(each, McpServer) for _, each in values):
            raise ConfigurationError("--allow-host cannot be used with an mcp_server; pass it allowed_hosts= instead")
    except ConfigurationError as error:
        fail(error)

    async def main() -> int:
        async with _open_log(db, is_stored=not no_log) as log:
            server = _load_server(values, log, wait, "keep" if keep else "cancel", [host, *(allow_host or ())])
            code = await _serve(server, (host, port) if http else None)
            for agent in server.gateway.runtime.agents.values():
                await agent.aclose()
        return code

    run_main(main())


async def _serve(server: McpServer, address: tuple[str, int] | None) -> int:
    """Run the server until the client disconnects, or until a signal if HTTP is used.

    Args:
        server: MCP server.
        address: Host and port. None uses stdin and stdout.

    Returns:
        Exit code.

    Raises:
        ConfigurationError: The port cannot be opened.
    """
    from rxloop.server import Shutdown, serve_stdio

    async with server.gateway.runtime:
        if address is None:
            try:
                await serve_stdio(server.server)
            finally:
                await server.drain()
            return 0
        # Imported lazily because stdio servers do not need uvicorn.
        from rxloop.cli.service import process

        with process.open_listener(*address) as listener:
            url = process.get_url(listener) + server.path
            await process.serve_until_signal(server, listener, Shutdown(server), lambda: notify(url))
        return CANCELLED


def _load_server(
    values: Sequence[tuple[str, Any]],
    log: EventLog,
    wait: float | None,
    on_disconnect: OnDisconnect,
    hosts: Sequence[str],
) -> McpServer:
    """Return an imported server, or create a server for imported agents.

    Raises:
        ConfigurationError: An object is neither an agent nor a server, or an agent name is used multiple times.
    """
    from rxloop.runtime.runtime import Runtime
    from rxloop.server.mcp.adapter import McpServer, mcp_server

    if len(values) == 1 and isinstance(values[0][1], McpServer):
        return values[0][1]
    agents: dict[str, Agent[Any, Any]] = {}
    for reference, each in values:
        with redirect_stdout(sys.stderr):
            value = call_factory(each, reference, "rxloop mcp")
        named_agents = to_agents(value, reference)
        if named_agents is None:
            raise ConfigurationError(
                f"rxloop mcp {reference!r} must be an Agent, a dict of agents, or a function that returns one, "
                f"got {value!r}"
            )
        duplicates = agents.keys() & named_agents.keys()
        if duplicates:
            raise ConfigurationError(f"agent names must be unique, got {min(duplicates)!r} twice; set name=")
        agents |= named_agents
    return mcp_server(Runtime(agents, log=log), wait=wait, on_disconnect=on_disconnect, allowed_hosts=hosts)


@asynccontextmanager
async def _open_log(db: str | None, *, is_stored: bool) -> AsyncGenerator[EventLog]:
    if not is_stored:
        yield MemoryEventLog()
        return
    async with open_database(db, write=True) as log:
        yield log


_MAX_LENGTH = 2_000
"""Maximum number of characters displayed per thought."""
_MAX_QUEUE = 1_000
"""Maximum queue size. Additional thoughts are dropped."""
_GRACE = 1.0
"""Timeout in seconds for flushing the queue on exit."""


def is_thought_log_enabled(environment: Mapping[str, str] = os.environ) -> bool:
    """Return True unless the environment variable `DISABLE_THOUGHT_LOGGING` is "true" (case-insensitive)."""
    return environment.get("DISABLE_THOUGHT_LOGGING", "").lower() != "true"


class ThoughtLog:
    """Logger that prints thoughts as boxes, with colours if supported by stderr.

    A background thread writes the output, so that a blocked stderr does not delay responses.

    Example:
        >>> with ThoughtLog() as log:
        ...     server = mcp_server(runtime, sequential_thinking=ThinkingTools(on_thought=log))
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console if console is not None else Console(stderr=True, emoji=False, highlight=False)
        self._boxes: queue.Queue[ThoughtResult | None] = queue.Queue(_MAX_QUEUE)
        self._thread = threading.Thread(target=self._write_all, name="thought log", daemon=True)

    def __call__(self, result: ThoughtResult) -> None:
        """Add a thought to the output queue."""
        try:
            self._boxes.put_nowait(result)
        except queue.Full:
            return

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self._boxes.put(None, timeout=_GRACE)
        except queue.Full:
            return
        self.join(_GRACE)

    def join(self, timeout: float | None = None) -> None:
        """Wait for the background thread to finish."""
        self._thread.join(timeout)

    def _write_all(self) -> None:
        try:
            while (result := self._boxes.get()) is not None:
                with self._console.capture() as captured:
                    self._console.print(format_box(result))
                self._write(captured.get())
        except (OSError, ValueError):
            # The reader closed the stream.
            return

    def _write(self, text: str) -> None:
        stream = self._console.file
        try:
            descriptor = stream.fileno()
        except (OSError, ValueError):
            stream.write(text)
            return
        # Bypass Python's buffer. A thread blocked while holding the buffer lock would break interpreter shutdown.
        data = text.encode(self._console.encoding, "backslashreplace")
        while data:
            data = data[os.write(descriptor, data) :]


def format_box(result: ThoughtResult) -> Panel:
    """Format a thought using a titled box."""
    thought = to_visible(result.thought.thought)
    if len(thought) > _MAX_LENGTH:
        thought = f"{thought[:_MAX_LENGTH]}… and {len(thought) - _MAX_LENGTH:,} more characters"
    kind, details, colour = _classify(result)
    number = f"{result.thought.thought_number}/{result.thought.total_thoughts}"
    title = Text.assemble((kind, colour), f" {number}{f' ({details})' if details else ''}")
    return Panel(Text(thought), title=title, title_align="left", border_style=colour, box=ROUNDED)


def _classify(result: ThoughtResult) -> tuple[str, str, str]:
    """Return a thought's label, reference and colour."""
    thought, placed = result.thought, result.placed
    if thought.is_revision or thought.revises_thought is not None:
        target = "" if thought.revises_thought is None else f"revising thought {thought.revises_thought}"
        return "🔄 Revision", target, "yellow"
    name = "" if placed.branch is None else f"ID: {to_visible(to_one_line(placed.branch))}"
    if placed.branch is not None or thought.branch_from_thought is not None:
        origin = "" if thought.branch_from_thought is None else f"from thought {thought.branch_from_thought}"
        return "🌿 Branch", ", ".join(filter(None, (origin, name))), "green"
    return "💭 Thought", "", "blue"
