"""Processes of workers, and the agents that they load by name."""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from rxloop.agents.agent import Agent
from rxloop.errors import ConfigurationError, RxloopError


def load(reference: str) -> Any:
    """Load what `module:object` names.

    Raises:
        ConfigurationError: There is no such thing.
    """
    place, colon, name = reference.partition(":")
    if not (place and colon and name):
        raise ConfigurationError(f"{reference!r} names nothing: write module:object, such as shop:agent")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return getattr(import_module(place), name)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"{reference!r} cannot be loaded: {error}") from error


def load_agents(reference: str) -> dict[str, Agent[Any, Any]]:
    """Load an agent, agents by their names, or a function that makes either.

    Raises:
        ConfigurationError: It is none of that.
    """
    found: Any = load(reference)
    if callable(found) and not isinstance(found, Agent):
        found = found()
    if isinstance(found, Agent):
        agent = cast("Agent[Any, Any]", found)
        return {agent.name: agent}
    if isinstance(found, Mapping):
        return dict(cast("Mapping[str, Agent[Any, Any]]", found))
    raise ConfigurationError(f"{reference!r} is {found!r}: it must be an Agent, a dict of agents, or make one")


_STARTS_IN = 60.0


class Worker:
    """A process, and the next one in its place."""

    def __init__(self, orders: dict[str, Any], within: Sequence[str] = ()) -> None:
        """Describe it; it is started by `start`.

        Args:
            orders: What it is told, on its standard input: others can read neither that nor the address in it.
            within: What is put before its command.
        """
        self._within = tuple(within)
        self._orders = json.dumps(orders).encode() + b"\n"
        self._process: asyncio.subprocess.Process | None = None
        self.busy = False
        """Whether something is done to it at the moment."""

    @property
    def pid(self) -> int:
        """The id of the process."""
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process is there, frozen or not."""
        return self._process is not None and self._process.returncode is None

    @property
    def ended_with(self) -> int | None:
        """The exit code of the process, or the signal that ended it, less than zero; None if it is there."""
        return None if self._process is None else self._process.returncode

    async def start(self) -> None:
        """Start a process, and wait until it works.

        Raises:
            RxloopError: It does not.
        """
        self._process = process = await asyncio.create_subprocess_exec(
            *self._within,
            *(sys.executable, "-m", "rxloop.testing.chaos.worker"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=self._environment(),
        )
        assert process.stdin is not None
        assert process.stdout is not None
        said = b""
        try:
            async with asyncio.timeout(_STARTS_IN):
                # It stays open: a worker whose standard input ends has lost its play, and ends, too.
                process.stdin.write(self._orders)
                await process.stdin.drain()
                said = await process.stdout.readline()
        except (TimeoutError, ConnectionError):
            pass
        finally:
            if not said:
                self.send(signal.SIGKILL)
        if not said:
            code = await process.wait()
            raise RxloopError(f"a worker does not start (it ended with {code}); what it says is on stderr")

    def send(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens if the process is gone."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    async def wait(self) -> None:
        """Wait for its end."""
        assert self._process is not None
        await self._process.wait()

    async def kill(self) -> None:
        """Kill it, without a word."""
        if self._process is not None:
            self.send(signal.SIGKILL)
            await self._process.wait()

    def _environment(self) -> dict[str, str]:
        # The modules of the tests are found there, too.
        found = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        if sys.dont_write_bytecode and sys.pycache_prefix is None:
            # Each start would compile rxloop once more, which takes longer than all the rest of it.
            found |= {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": _bytecode()}
        return found


@cache
def _bytecode() -> str:
    """A folder for compiled modules, until this process ends."""
    folder = tempfile.mkdtemp(prefix="rxloop-bytecode-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
