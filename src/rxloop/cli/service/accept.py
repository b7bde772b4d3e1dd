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
_MIN_DELAY = 0.002
"""Minimum number of seconds between two connections. Otherwise, a client could open a hundred connections while all
runs wait for the event log. Their requests would delay these runs afterwards."""
_MAX_DELAY = 0.005
"""Maximum number of seconds for which other work delays a connection."""
_RETRY_DELAY = 1.0
"""Seconds until accepting is retried after an error, for example if there are no file descriptors."""


async def accept_connections(listener: socket.socket, make_protocol: Callable[[], asyncio.Protocol]) -> None:
    """Accept connections until the task is cancelled.

    The servers of asyncio accept all queued connections in a single iteration of the event loop, so a client that opens
    hundreds of connections blocks all others. This function accepts one connection every 2 ms, or every 5 ms if the
    event loop has other work.

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
    """Wait for `_MIN_DELAY` seconds, then for an iteration without other work, but at most `_MAX_DELAY` in total."""
    end = loop.time() + _MAX_DELAY
    await asyncio.sleep(_MIN_DELAY)
    while (before := loop.time()) < end:
        await asyncio.sleep(0)
        if loop.time() - before <= _IDLE_ITERATION:
            return
