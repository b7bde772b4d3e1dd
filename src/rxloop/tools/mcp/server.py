"""Toolset for MCP servers."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakKeyDictionary

from typing_extensions import Unpack

from rxloop.errors import ConfigurationError
from rxloop.pipeline.interfaces import Tool
from rxloop.pipeline.run_context import RunContext
from rxloop.support.redaction import check_url
from rxloop.tools.mcp.options import Credential, Http, MakeCredential, Options, Stdio, clean_name, parse_options

if TYPE_CHECKING:
    from rxloop.tools.mcp.connection import Connection
    from rxloop.tools.mcp.options import RunCredential
    from rxloop.tools.task_resources import TaskResources


def check_extra() -> None:
    """Check that the MCP SDK is installed.

    Raises:
        ConfigurationError: If the SDK is not installed.
    """
    if find_spec("mcp") is None or find_spec("mcp_types") is None:
        raise ConfigurationError("MCP tools require mcp, which is not installed; pip install 'rxloop[mcp]'")


_MAX_CONNECTIONS = 64
"""Maximum number of connections per event loop, each with a separate credential."""


def mcp(
    command_or_url: str,
    *args: str,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    headers: Mapping[str, str] | None = None,
    auth: Credential | MakeCredential = None,
    **options: Unpack[Options],
) -> MCPServer:
    """Create a toolset for an MCP server: `Agent(tools=[mcp("npx", "-y", "some-server")])`.

    The server is started or connected when its tools are first needed, and closed with the agent. If the connection
    breaks, the current call fails and the next call connects again. A call is only repeated if the server declares the
    tool as read-only or idempotent.

    Args:
        command_or_url: A program, or the URL of a server with streamable HTTP.
        *args: Arguments of the program.
        env: Environment variables of the program, in addition to the few that are always passed (PATH, HOME ...).
        cwd: Working directory of the program.
        headers: Headers of each request to the URL.
        auth: Credential for the URL: a token, headers, an `httpx2.Auth`, or a sync or async function that returns one
            of these for the context of a run. Each credential has its own connections.
        **options: `name` is the name of the server. `prefix` precedes the names of its tools and is `name__` by
          default.
            `only` and `hide` are names of tools to use or to skip. `approve` requires approval of each call, or only of
            calls that may be destructive ("destructive"). `timeout` limits one call and `ttl` is the lifetime of the
            list of tools, both in seconds and 300 by default. `sampling` lets the server use the agent's model: True,
            or the maximum number of tokens of an answer. `roots` are folders that the server may list.

    Raises:
        ConfigurationError: If the extra is not installed, or an argument is invalid.
    """
    if command_or_url.startswith(("http://", "https://")):
        if args or env is not None or cwd is not None:
            raise ConfigurationError("mcp(): arguments, env= and cwd= are only valid for a program, not for a URL")
        return MCPServer(Http(check_url(command_or_url), dict(headers or {}), auth), **options)
    if headers is not None or auth is not None:
        raise ConfigurationError("mcp(): headers= and auth= are only valid for a URL; use env= for a program")
    words = command_or_url.split()
    if (
        len(words) > 1
        and not args
        and not Path(cwd or "", command_or_url).exists()
        and not shutil.which(command_or_url)
    ):
        raise ConfigurationError(f"mcp(): split {command_or_url!r} into arguments: mcp({str(words)[1:-1]})")
    return MCPServer(Stdio(command_or_url, args, dict(env or {}), cwd), **options)


class MCPServer:
    """Toolset of an MCP server. Agents can share it. They also share its connections in an event loop."""

    def __init__(self, address: Stdio | Http, **options: Unpack[Options]) -> None:
        """Create a toolset. Prefer `mcp`.

        Args:
            address: Program or URL of the server.
            **options: Options of `mcp`.

        Raises:
            ConfigurationError: If the extra is not installed, or an option is invalid.
        """
        check_extra()
        self.name = clean_name(options.get("name") or address.name)
        self.address = address
        self.options = parse_options(self.name, options)
        self._connections: TaskResources[Connection] | None = None
        self._fixed: RunCredential | None = None
        """Shared credential, or None if credentials depend on the run."""
        self._users: WeakKeyDictionary[asyncio.AbstractEventLoop, Counter[str]] = WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"<MCPServer {self.name} ({'stdio' if isinstance(self.address, Stdio) else 'http'})>"

    async def __aenter__(self) -> Self:
        """Register an agent without opening a connection."""
        from rxloop.support.threads import run_in_thread
        from rxloop.tools.task_resources import TaskResources

        if self._connections is None:
            # In a thread, because importing the SDK is slow. Only imported if a server is used.
            await run_in_thread(lambda: import_module("rxloop.tools.mcp.connection"))
        from rxloop.tools.mcp.options import fixed_credential

        self._fixed = fixed_credential(self.address)
        if self._connections is None:
            self._connections = TaskResources()
        self._users.setdefault(asyncio.get_running_loop(), Counter())["agents"] += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the connections when the last agent of this event loop leaves."""
        users = self._users[asyncio.get_running_loop()]
        users["agents"] -= 1
        if not users["agents"] and self._connections is not None:
            await self._connections.aclose(other_loops=False)

    async def tools(self, ctx: RunContext[Any]) -> Sequence[Tool]:
        """Return the tools of the server for the credential of this run.

        Raises:
            RxloopError: If the server cannot be reached or does not respond.
        """
        connection = await self.connection(ctx)
        try:
            return await connection.listing.tools()
        except ConnectionError:
            # A broken connection may only be noticed by the next request.
            return await (await self.connection(ctx)).listing.tools()

    def tools_now(self, ctx: RunContext[Any]) -> Sequence[Tool] | None:
        """Return the cached tools, or None if listing them or obtaining the credential requires waiting."""
        if self._connections is None or self._fixed is None:
            return None
        connection = self._connections.get_now(self._fixed.key)
        return None if connection is None or connection.closed else connection.listing.now()

    async def connection(self, ctx: RunContext[Any]) -> Connection:
        """Return the connection for the credential of this run.

        Raises:
            RxloopError: If the server cannot be reached.
        """
        from rxloop.tools.mcp.connection import connect
        from rxloop.tools.mcp.options import get_credential

        if self._connections is None:
            raise ConfigurationError(f"{self!r} is not entered; pass it to an agent or use `async with`")
        resources = self._connections
        credential = self._fixed or await get_credential(self.address, ctx)
        connection = resources.get_now(credential.key)
        if connection is not None and connection.closed:
            resources.drop(credential.key, connection)
            connection = None
        if connection is None:
            limits = None if ctx.run is None else ctx.info.limits
            seconds = 60.0 if limits is None else limits.preparation
            make = partial(connect, self.name, self.address, self.options, credential, self.connection)
            connection = await resources.get(credential.key, make, name=f"mcp {self.name}", seconds=seconds)
            self._close_idle(resources, connection)
        connection.used = asyncio.get_running_loop().time()
        return connection

    def _close_idle(self, resources: TaskResources[Connection], new: Connection) -> None:
        """Close the least recently used connection if there are too many."""
        connections = resources.get_all_now()
        idle = [(each.used, key) for key, each in connections.items() if each is not new and not each.calls]
        if len(connections) > _MAX_CONNECTIONS and idle:
            _, key = min(idle, key=lambda pair: pair[0])
            resources.drop(key, connections[key])
