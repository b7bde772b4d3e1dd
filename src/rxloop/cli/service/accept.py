"""Accepting connections without delaying the requests of other connections."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable

log = logging.getLogger("rxloop")

BACKLOG = 2048
"""Number of connections that wait in the kernel until they are accepted."""
_IDLE_TURN = 0.0002
"""A turn of the event loop that takes at most this many seconds had nothing else to do."""
_MAX_DELAY = 0.005
"""Maximum number of seconds for which other work delays a connection."""
_RETRY_DELAY = 1.0
"""Seconds until accepting is retried if there are no file descriptors or buffers."""
_NO_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


async def accept_connections(listener: socket.socket, make_protocol: Callable[[], asyncio.Protocol]) -> None:
    """Accept connections until the task is cancelled.

    The servers of asyncio accept all waiting connections in one turn of the event loop. A client that opens hundreds of
    connections would block the requests of others for as long. This function accepts a connection after the event loop
    has finished its other work, at the latest after 5 ms.

    Args:
        listener: Non-blocking listening socket.
        make_protocol: Creates the protocol of a connection.
    """
    loop = asyncio.get_running_loop()
    while True:
        try:
            connection, _ = await loop.sock_accept(listener)
        except OSError as error:
            if error.errno in _NO_RESOURCES:
                log.error("Cannot accept connections, retrying in %g s: %s", _RETRY_DELAY, error.strerror)
                await asyncio.sleep(_RETRY_DELAY)
            # Otherwise, the client has closed the connection.
            continue
        try:
            await loop.connect_accepted_socket(make_protocol, connection)
        except OSError:
            connection.close()
        await _yield_to_others(loop)


async def _yield_to_others(loop: asyncio.AbstractEventLoop) -> None:
    """Wait until the event loop has nothing else to do, or `_MAX_DELAY`."""
    started = before = loop.time()
    while True:
        await asyncio.sleep(0)
        now = loop.time()
        if now - before <= _IDLE_TURN or now - started >= _MAX_DELAY:
            return
        before = now
