"""Process lifecycle of the uvicorn server."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import uvicorn
from typing_extensions import override

from rxloop.cli.service.accept import BACKLOG, accept_connections
from rxloop.cli.service.connections import Connection, Connections, count_descriptors, default_max_connections
from rxloop.errors import ConfigurationError
from rxloop.server import Shutdown

_REQUEST_TIMEOUT = 3
"""Timeout in seconds for requests without streams, after all streams have ended."""
_KEEP_ALIVE = 75
"""Keep-alive timeout in seconds. It must exceed the timeout of proxies, which can reuse a connection at any time."""
_CONNECTIONS = 35
"""Shutdown order for connections, after streams and before the log."""


def open_listener(host: str, port: int) -> socket.socket:
    """Create a listening socket.

    Raises:
        ConfigurationError: Opening the port failed.
    """
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        remedy = "; select another port, or 0 for a free one" if error.errno == errno.EADDRINUSE else ""
        raise ConfigurationError(f"cannot listen on {host}, port {port}: {reason}{remedy}") from error
    # asyncio only sets TCP_NODELAY for sockets with an explicit protocol. Otherwise, small responses and events are
    # delayed by up to 40 ms, until the client acknowledges the previous packet.
    return socket.socket(listener.family, listener.type, socket.IPPROTO_TCP, listener.detach())


def get_url(listener: socket.socket) -> str:
    """Return the server URL."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


async def serve_until_signal(
    app: Any,
    listener: socket.socket,
    shutdown: Shutdown,
    ready: Callable[[], None],
    *,
    max_connections: int | None = None,
) -> None:
    """Run the server until a signal, then shut down gracefully. Exits the process if the shutdown times out.

    Args:
        app: ASGI application.
        listener: Listening socket.
        shutdown: Shutdown sequence, which is extended by the connections.
        ready: Called when the server accepts requests and signals.
        max_connections: Maximum number of connections. By default, it depends on the limit for file descriptors.
    """
    server = _make_server(app, listener, ready, max_connections)
    signal_task = asyncio.create_task(shutdown.run_on_signal(), name="rxloop-signals")
    server_task = asyncio.create_task(server.serve(sockets=[]), name="rxloop-uvicorn")

    async def close_connections() -> None:
        server.should_exit = True
        await server_task

    shutdown.add_step(_CONNECTIONS, "connections", close_connections, seconds=_REQUEST_TIMEOUT + 2)
    await asyncio.wait([server_task, signal_task], return_when=asyncio.FIRST_COMPLETED)
    signal_task.cancel()
    if not await shutdown.run():
        # Exit directly because the event loop would wait for blocked tasks.
        logging.shutdown()
        sys.stderr.flush()
        os._exit(1)


@asynccontextmanager
async def serve_in_background(app: Any, listener: socket.socket) -> AsyncGenerator[None]:
    """Run the server while the block is executed."""
    ready = asyncio.Event()
    server = _make_server(app, listener, ready.set, None)
    task = asyncio.create_task(server.serve(sockets=[]), name="rxloop-uvicorn")
    try:
        await ready.wait()
        yield
    finally:
        server.should_exit = True
        await task


def _make_server(app: Any, listener: socket.socket, ready: Callable[[], None], max_connections: int | None) -> _Server:
    limit = max_connections or default_max_connections(count_descriptors())
    http: Any = partial(Connection, Connections(limit, keep_alive=_KEEP_ALIVE))
    config = uvicorn.Config(
        app,
        http=http,
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=_REQUEST_TIMEOUT,
    )
    return _Server(config, listener, ready)


class _Server(uvicorn.Server):
    """Uvicorn server that accepts connections with `accept_connections` and has no signal handlers.

    Signals are handled by `Shutdown`, because uvicorn would wait for endless streams.
    """

    def __init__(self, config: uvicorn.Config, listener: socket.socket, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._listener = listener
        self._ready = ready
        self._accepting: asyncio.Task[None] | None = None

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._listener.setblocking(False)
        self._listener.listen(BACKLOG)
        self._accepting = asyncio.create_task(
            accept_connections(self._listener, self._make_connection), name="rxloop-accept"
        )
        self._ready()

    @override
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.wait([self._accepting])
        self._listener.close()
        await super().shutdown(sockets)

    def _make_connection(self) -> asyncio.Protocol:
        options = {"config": self.config, "server_state": self.server_state, "app_state": self.lifespan.state}
        # `serve_until_signal` configures this class.
        make: Any = self.config.http_protocol_class
        return make(**options)

    @contextmanager
    @override
    def capture_signals(self) -> Generator[None]:
        yield
