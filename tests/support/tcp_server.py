"""TCP servers that leave no connection open."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def stop_accepting(*servers: asyncio.Server) -> None:
    """Stop accepting connections, and wait until each accepted connection has a transport.

    If a server is closed between these steps, asyncio abandons the connection without closing its socket. The warning
    would fail a later test.
    """
    for server in servers:
        for each in server.sockets:
            asyncio.get_running_loop().remove_reader(each)
    for _ in range(3):
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def serve_connections(handle: Handler, host: str = "127.0.0.1", **options: Any) -> AsyncGenerator[int]:
    """Serve TCP connections for the duration of the block, and yield the port.

    At the end, all connections are aborted. Otherwise, an unfinished one would stay open after the event loop has been
    closed, and its warning would fail a later test.

    Args:
        handle: Called with each connection.
        host: Address to listen on.
        options: Options of `asyncio.start_server`.
    """
    connections: dict[asyncio.Task[Any], asyncio.StreamWriter] = {}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections[task] = writer
        await handle(reader, writer)

    server = await asyncio.start_server(serve, host, 0, **options)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        await stop_accepting(server)
        server.close()
        for task, writer in connections.items():
            task.cancel()
            writer.transport.abort()
        await asyncio.gather(*connections, return_exceptions=True)
        # The event loop closes aborted connections in its next turn.
        await asyncio.sleep(0)
