"""The uvicorn process of `rxloop serve`, from its first request to its last."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import uvicorn
from typing_extensions import override

from rxloop.errors import ConfigurationError
from rxloop.server import Shutdown

_LAST_REQUESTS = 3
"""Seconds that the requests which are no streams have, once the streams have ended."""
_KEPT_ALIVE = 75
"""Seconds that an idle connection is kept: longer than a proxy keeps it, which may send a request at any moment."""
_CONNECTIONS = 35
"""The place of the connections in the order of the end: behind the streams, and before the log."""


def listening(host: str, port: int) -> socket.socket:
    """Open the port.

    Raises:
        ConfigurationError: It cannot be opened.
    """
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ConfigurationError(f"cannot listen on {host}, port {port}: {error.strerror or error}") from error


def address(listener: socket.socket) -> str:
    """The URL of a server."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


async def until_signalled(app: Any, listener: socket.socket, ending: Shutdown, ready: Callable[[], None]) -> None:
    """Serve until a signal comes, and then until all is at its end; where something does not end, the process does.

    Args:
        app: What is served.
        listener: The port.
        ending: What is done at the end; the connections take their place in it.
        ready: Called when requests, and signals, are taken.
    """
    server = _Server(
        uvicorn.Config(
            app,
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=_KEPT_ALIVE,
            timeout_graceful_shutdown=_LAST_REQUESTS,
        ),
        ready,
    )
    signalled = asyncio.create_task(ending.signalled(), name="rxloop-signals")
    serving = asyncio.create_task(server.serve(sockets=[listener]), name="rxloop-uvicorn")

    async def close_connections() -> None:
        server.should_exit = True
        await serving

    ending.watch(_CONNECTIONS, "connections", close_connections, seconds=_LAST_REQUESTS + 2)
    await asyncio.wait([serving, signalled], return_when=asyncio.FIRST_COMPLETED)
    signalled.cancel()
    if not await ending.run():
        # The event loop would wait for what does not listen.
        logging.shutdown()
        sys.stderr.flush()
        os._exit(1)


class _Server(uvicorn.Server):
    """Leaves the signals to `Shutdown`: it would wait for streams, which never end by themselves."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    @contextmanager
    @override
    def capture_signals(self) -> Generator[None]:
        yield
