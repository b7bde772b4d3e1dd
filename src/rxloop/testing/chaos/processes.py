"""Worker processes and agent loading."""

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
    """Import an object using a `module:object` path.

    Raises:
        ConfigurationError: The object cannot be imported.
    """
    module, colon, name = reference.partition(":")
    if not (module and colon and name):
        raise ConfigurationError(f"the import path must have the form module:object, got {reference!r}")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"cannot load {reference!r}: {error}") from error


def load_agents(reference: str) -> dict[str, Agent[Any, Any]]:
    """Import agents using a `module:object` path.

    The object can be an agent, a dict of agents by name, or a function that returns either.

    Raises:
        ConfigurationError: The object has the wrong type or cannot be imported.
    """
    loaded: Any = load(reference)
    if callable(loaded) and not isinstance(loaded, Agent):
        loaded = loaded()
    if isinstance(loaded, Agent):
        agent = cast("Agent[Any, Any]", loaded)
        return {agent.name: agent}
    if isinstance(loaded, Mapping):
        return dict(cast("Mapping[str, Agent[Any, Any]]", loaded))
    raise ConfigurationError(
        f"{reference!r} must be an agent, a dict of agents, or a function that returns one, got {loaded!r}"
    )


_START_TIMEOUT = 60.0


class Worker:
    """Worker process that can be restarted."""

    def __init__(self, settings: dict[str, Any], command_prefix: Sequence[str] = ()) -> None:
        """Configure a worker without starting it.

        Args:
            settings: Worker settings, passed through stdin to hide the database URL from other users.
            command_prefix: Command prefix.
        """
        self._command_prefix = tuple(command_prefix)
        self._settings = json.dumps(settings).encode() + b"\n"
        self._process: asyncio.subprocess.Process | None = None
        self.busy = False
        """True while a fault is being applied."""

    @property
    def pid(self) -> int:
        """Process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        """True if the process is running or frozen."""
        return self._process is not None and self._process.returncode is None

    @property
    def exit_code(self) -> int | None:
        """Exit code, the negative signal number, or None if the process is running."""
        return None if self._process is None else self._process.returncode

    async def start(self) -> None:
        """Start the process and wait until it is ready.

        Raises:
            RxloopError: The worker failed to start.
        """
        self._process = process = await asyncio.create_subprocess_exec(
            *self._command_prefix,
            *(sys.executable, "-m", "rxloop.testing.chaos.worker"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=self._make_environment(),
        )
        assert process.stdin is not None
        assert process.stdout is not None
        ready = b""
        try:
            async with asyncio.timeout(_START_TIMEOUT):
                # Keep stdin open, because workers exit when it is closed.
                process.stdin.write(self._settings)
                await process.stdin.drain()
                ready = await process.stdout.readline()
        except (TimeoutError, ConnectionError):
            pass
        finally:
            if not ready:
                self.send(signal.SIGKILL)
        if not ready:
            code = await process.wait()
            raise RxloopError(f"a worker did not start (exit code {code}); see its stderr")

    def send(self, number: signal.Signals) -> None:
        """Send a signal. Does nothing if the process has ended."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    async def wait(self) -> None:
        """Wait for the process to exit."""
        assert self._process is not None
        await self._process.wait()

    async def kill(self) -> None:
        """Kill the process and wait for it to exit."""
        if self._process is not None:
            self.send(signal.SIGKILL)
            await self._process.wait()

    def _make_environment(self) -> dict[str, str]:
        # Include the import path of the tests.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        if sys.dont_write_bytecode and sys.pycache_prefix is None:
            # Without a bytecode cache, each start would spend most of its time compiling rxloop.
            environment |= {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": _create_bytecode_folder()}
        return environment


@cache
def _create_bytecode_folder() -> str:
    """Create a temporary bytecode folder, which is removed on exit."""
    folder = tempfile.mkdtemp(prefix="rxloop-bytecode-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
