"""Process lifecycle of the uvicorn server."""

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
"""Timeout in seconds for requests without streams, after all streams have ended."""
_KEPT_ALIVE = 75
"""Keep-alive timeout in seconds. It must exceed the timeout of proxies, which can reuse a connection at any time."""
_CONNECTIONS = 35
"""Shutdown order for connections, after streams and before the log."""


def listening(host: str, port: int) -> socket.socket:
    """Create a listening socket.

    Raises:
        ConfigurationError: The port cannot be opened.
    """
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ConfigurationError(f"cannot listen on {host}, port {port}: {error.strerror or error}") from error


def address(listener: socket.socket) -> str:
    """Return the server URL."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


async def until_signalled(app: Any, listener: socket.socket, ending: Shutdown, ready: Callable[[], None]) -> None:
    """Run the server until a signal, then shut down gracefully. Exits the process if the shutdown times out.

    Args:
        app: ASGI application.
        listener: Listening socket.
        ending: Shutdown sequence, which is extended by the connections.
        ready: Called when the server accepts requests and signals.
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
        # Exit directly because the event loop would wait for blocked tasks.
        logging.shutdown()
        sys.stderr.flush()
        os._exit(1)


class _Server(uvicorn.Server):
    """Uvicorn server without signal handlers.

    Signals are handled by `Shutdown`, because uvicorn would wait for endless streams.
    """

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
