"""An MCP server as a toolset."""

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
from rxloop.tools.mcp.options import Credential, Http, MakeCredential, Options, Stdio, clean, taken

if TYPE_CHECKING:
    from rxloop.tools.mcp.connection import Connection
    from rxloop.tools.mcp.options import CredentialOfRun
    from rxloop.tools.task_resources import Owned


def check_extra() -> None:
    """Say what is missing before anything is begun.

    Raises:
        ConfigurationError: The SDK is not installed.
    """
    if find_spec("mcp") is None or find_spec("mcp_types") is None:
        raise ConfigurationError("tools of MCP servers need mcp, which is not installed: pip install 'rxloop[mcp]'")


_MOST = 64
"""Connections of one server in an event loop, each with a credential of its own."""


def mcp(
    command_or_url: str,
    *args: str,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    headers: Mapping[str, str] | None = None,
    auth: Credential | MakeCredential = None,
    **options: Unpack[Options],
) -> MCPServer:
    """Make the tools of an MCP server tools of an agent: `Agent(tools=[mcp("npx", "-y", "some-server")])`.

    The server is started, or connected, when its tools are wanted first, and left with the agent. A server that is gone
    costs the call that was under way, and the next one starts it again; a call is repeated only if the server says that
    it reads only, or may be repeated.

    Args:
        command_or_url: A program, or the URL of a server that speaks streamable HTTP.
        *args: The arguments of the program.
        env: Variables for the program, beside the few that it gets anyway (PATH, HOME ...).
        cwd: The folder that the program is started in.
        headers: Headers for each request to the URL.
        auth: The credential for the URL: a token, headers, an `httpx2.Auth`, or a function of the run's context that
            gives one of these, sync or async. Each credential has connections of its own.
        **options: `name` is what the server is called; `prefix` stands before the names of its tools, `name__` by
            default; `only` and `hide` are names of tools to take or leave. `approve` asks a person before each call, or
            before those that are not known to be harmless ("destructive"). `timeout` is for one call and `ttl` for the
            list of tools, both 300 seconds by default. `sampling` lets the server ask the agent's model: True, or the
            most tokens of an answer. `roots` are folders that the server may know of.

    Raises:
        ConfigurationError: The extra is not installed, or an argument is of a wrong kind.
    """
    if command_or_url.startswith(("http://", "https://")):
        if args or env is not None or cwd is not None:
            raise ConfigurationError("mcp(): arguments, env= and cwd= are for a program, not for a URL")
        return MCPServer(Http(check_url(command_or_url), dict(headers or {}), auth), **options)
    if headers is not None or auth is not None:
        raise ConfigurationError("mcp(): headers= and auth= are for a URL; a program gets its credentials by env=")
    words = command_or_url.split()
    if (
        len(words) > 1
        and not args
        and not Path(cwd or "", command_or_url).exists()
        and not shutil.which(command_or_url)
    ):
        raise ConfigurationError(f"mcp(): the words of {command_or_url!r} are to be arguments: mcp({str(words)[1:-1]})")
    return MCPServer(Stdio(command_or_url, args, dict(env or {}), cwd), **options)


class MCPServer:
    """The tools of one MCP server; any number of agents may have it, and share its connections in an event loop."""

    def __init__(self, place: Stdio | Http, **options: Unpack[Options]) -> None:
        """Describe a server; `mcp` is the easier way.

        Args:
            place: Where it is found.
            **options: As for `mcp`.

        Raises:
            ConfigurationError: The extra is not installed, or an option is of a wrong kind.
        """
        check_extra()
        self.name = clean(options.get("name") or place.name)
        self.place = place
        self.taken = taken(self.name, options)
        self._connections: Owned[Connection] | None = None
        self._fixed: CredentialOfRun | None = None
        """The credential of all runs, if it does not depend on them."""
        self._users: WeakKeyDictionary[asyncio.AbstractEventLoop, Counter[str]] = WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"<MCPServer {self.name} ({'stdio' if isinstance(self.place, Stdio) else 'http'})>"

    async def __aenter__(self) -> Self:
        """Count one more agent that has it; nothing is opened yet."""
        from rxloop.support.threads import run_in_thread
        from rxloop.tools.task_resources import Owned

        if self._connections is None:
            # In a thread, since importing the SDK takes its time, and only once somebody wants it.
            await run_in_thread(lambda: import_module("rxloop.tools.mcp.connection"))
        from rxloop.tools.mcp.options import fixed_credential

        self._fixed = fixed_credential(self.place)
        if self._connections is None:
            self._connections = Owned()
        self._users.setdefault(asyncio.get_running_loop(), Counter())["agents"] += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        """Leave the connections, if no other agent in this event loop has them."""
        users = self._users[asyncio.get_running_loop()]
        users["agents"] -= 1
        if not users["agents"] and self._connections is not None:
            await self._connections.aclose(elsewhere=False)

    async def tools(self, ctx: RunContext[Any]) -> Sequence[Tool]:
        """List the tools of the server for the credential of this run.

        Raises:
            RxloopError: The server cannot be reached, or does not answer.
        """
        connection = await self.connection(ctx)
        try:
            return await connection.listing.tools()
        except ConnectionError:
            # It may have ended long ago: nobody notices before it is asked.
            return await (await self.connection(ctx)).listing.tools()

    def tools_now(self, ctx: RunContext[Any]) -> Sequence[Tool] | None:
        """The tools, if they are known, and no function has to be asked for the credential of the run."""
        if self._connections is None or self._fixed is None:
            return None
        connection = self._connections.now(self._fixed.key)
        return None if connection is None or connection.closed else connection.listing.now()

    async def connection(self, ctx: RunContext[Any]) -> Connection:
        """The connection for the credential of this run.

        Raises:
            RxloopError: The server cannot be reached.
        """
        from rxloop.tools.mcp.connection import connect
        from rxloop.tools.mcp.options import credential_of

        if self._connections is None:
            raise ConfigurationError(f"{self!r} is entered by its agent: give it to one, or use `async with`")
        owned = self._connections
        credential = self._fixed or await credential_of(self.place, ctx)
        found = owned.now(credential.key)
        if found is not None and found.closed:
            owned.drop(credential.key, found)
            found = None
        if found is None:
            limits = None if ctx.run is None else ctx.info.limits
            seconds = 60.0 if limits is None else limits.preparation
            make = partial(connect, self.name, self.place, self.taken, credential, self.connection)
            found = await owned.get(credential.key, make, name=f"mcp {self.name}", seconds=seconds)
            self._leave_the_idle(owned, found)
        found.used = asyncio.get_running_loop().time()
        return found

    def _leave_the_idle(self, owned: Owned[Connection], new: Connection) -> None:
        """Leave the connection that was used longest ago, if there are too many."""
        there = owned.all_now()
        idle = [(each.used, key) for key, each in there.items() if each is not new and not each.calls]
        if len(there) > _MOST and idle:
            _, key = min(idle, key=lambda pair: pair[0])
            owned.drop(key, there[key])
