"""Acceptor for connections, which gives priority to existing connections."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

log = logging.getLogger("rxloop")

BACKLOG = 2048
"""Size of the queue of connections in the kernel."""
_IDLE_ITERATION = 0.0002
"""Maximum duration in seconds of an event loop iteration without other work."""
_MAX_DELAY = 0.005
"""Maximum number of seconds for which other work delays a connection."""
_RETRY_DELAY = 1.0
"""Seconds until accepting is retried after an error, for example if there are no file descriptors."""


async def accept_connections(listener: socket.socket, make_protocol: Callable[[], asyncio.Protocol]) -> None:
    """Accept connections until the task is cancelled.

    The servers of asyncio accept all queued connections in a single iteration of the event loop, so a client that opens
    hundreds of connections blocks all others. This function accepts one connection at a time, as soon as the event loop
    has no other work, or after 5 ms.

    Args:
        listener: Non-blocking listening socket.
        make_protocol: Creates the protocol of a connection.
    """
    loop = asyncio.get_running_loop()
    while True:
        try:
            connection, _ = await loop.sock_accept(listener)
        except ConnectionError:
            # The client has closed the connection.
            await asyncio.sleep(0)
            continue
        except OSError as error:
            log.error("Cannot accept connections, retrying in %g s: %s", _RETRY_DELAY, error.strerror)
            await asyncio.sleep(_RETRY_DELAY)
            continue
        try:
            await loop.connect_accepted_socket(make_protocol, connection)
        except Exception:
            log.exception("Connection could not be opened")
            connection.close()
        await _yield_to_others(loop)


async def _yield_to_others(loop: asyncio.AbstractEventLoop) -> None:
    """Wait for an event loop iteration without other work, for at most `_MAX_DELAY` seconds."""
    started = before = loop.time()
    while True:
        await asyncio.sleep(0)
        now = loop.time()
        if now - before <= _IDLE_ITERATION or now - started >= _MAX_DELAY:
            return
        before = now
