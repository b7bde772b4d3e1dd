"""Limits for the connections of uvicorn, which has none for clients that do not send a request.

Each connection is waiting for the head of a request, busy with a request, or idle after a response. uvicorn's
`limit_concurrency` counts connections, but refuses requests instead of closing unused connections, and its
`timeout_keep_alive` only starts after a response.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from time import monotonic
from typing import Any

from typing_extensions import override
from uvicorn.protocols.http.h11_impl import H11Protocol

log = logging.getLogger("rxloop")

HEAD_TIMEOUT = 10.0
"""Seconds for a new connection, or from the first byte of a request, until its head is complete."""
STALL_TIMEOUT = 30.0
"""Seconds until a client that does not read its response is disconnected."""
_MIN_PROGRESS = 16 * 1024
"""Bytes that a client must read within `STALL_TIMEOUT` if a response is pending."""
_SWEEP_INTERVAL = 1.0
_SWEEP_PAUSE = 0.01
"""Seconds until the rest of the expired connections is closed."""
_MAX_CLOSED = 50
"""Number of connections that are closed at once. Closing a thousand would block the event loop for 100 ms."""
_MAX_CONNECTIONS = 10_000
"""Default maximum number of connections, if there are enough file descriptors."""
_MAX_UNUSED = 1_000
"""Maximum number of connections without a request. A garbage collection with 10,000 blocks all clients for 300 ms."""
_LOG_INTERVAL = 10.0
"""Minimum number of seconds between warnings about the limit."""
_UNAVAILABLE = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 2\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


def count_descriptors() -> int:
    """Return the number of file descriptors that this process may open."""
    if sys.platform == "win32":
        # Sockets are not limited on Windows.
        return 1 << 16
    # The module does not exist on Windows.
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 16 if soft == resource.RLIM_INFINITY else soft


def default_max_connections(descriptors: int) -> int:
    """Return the default connection limit. A quarter of the descriptors is left to models, the log and accept."""
    return max(min(descriptors * 3 // 4, _MAX_CONNECTIONS), 1)


class Connections:
    """Open connections of a server.

    If there are too many, or too many without a request, the oldest of those waiting for a request head is closed, or
    the oldest idle one if more are idle. If all are busy, the new connection is refused with status 503.
    """

    def __init__(self, max_connections: int, *, keep_alive: float) -> None:
        """Create the collection without connections.

        Args:
            max_connections: Maximum number of connections.
            keep_alive: Seconds after which uvicorn closes idle connections.
        """
        self.max_connections = max_connections
        self._keep_alive = keep_alive
        # Insertion order is the order of age, so that the oldest connection is found without a search.
        self._waiting: dict[Connection, float] = {}
        self._idle: dict[Connection, float] = {}
        self._busy: set[Connection] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._last_warning = -_LOG_INTERVAL

    def __len__(self) -> int:
        return len(self._waiting) + len(self._idle) + len(self._busy)

    def add(self, connection: Connection) -> None:
        """Add a new connection, closing another one or refusing it if there are too many."""
        if len(self) >= self.max_connections and not self._count_unused():
            connection.transport.write(_UNAVAILABLE)
            connection.transport.close()
        elif len(self) >= self.max_connections or self._count_unused() >= _MAX_UNUSED:
            self._close_oldest()
        self._waiting[connection] = monotonic()
        if self._timer is None:
            self._schedule()

    def update(self, connection: Connection) -> None:
        """Update the state of a connection after it has received data or completed a response."""
        if connection.has_request:
            self._waiting.pop(connection, None)
            self._idle.pop(connection, None)
            self._busy.add(connection)
        elif connection in self._busy:
            self._busy.discard(connection)
            self._idle[connection] = monotonic()
            if self._count_unused() > _MAX_UNUSED:
                self._close_oldest()
        elif connection in self._idle:
            # The client has started another request.
            del self._idle[connection]
            self._waiting[connection] = monotonic()

    def remove(self, connection: Connection) -> None:
        """Remove a lost connection."""
        self._waiting.pop(connection, None)
        self._idle.pop(connection, None)
        self._busy.discard(connection)

    def _count_unused(self) -> int:
        return len(self._waiting) + len(self._idle)

    def _close_oldest(self) -> None:
        now = monotonic()
        if now - self._last_warning >= _LOG_INTERVAL:
            self._last_warning = now
            log.warning("Closing unused connections, because %d connections are open", len(self))
        self._abort(next(iter(max(self._waiting, self._idle, key=len))))

    def _abort(self, connection: Connection) -> None:
        # Closing would wait until the client has read everything.
        connection.transport.abort()
        self.remove(connection)

    def _schedule(self, seconds: float = _SWEEP_INTERVAL) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._sweep)

    def _sweep(self) -> None:
        """Close connections that have exceeded a timeout."""
        now, self._timer = monotonic(), None
        # uvicorn closes idle connections itself, unless the client does not read.
        timeouts = ((self._waiting, HEAD_TIMEOUT), (self._idle, self._keep_alive + STALL_TIMEOUT))
        expired = [each for group, seconds in timeouts for each, since in group.items() if since + seconds <= now]
        expired += [each for each in self._busy if each.is_stalled(now)]
        expired += [each for each in (*self._waiting, *self._idle) if each.is_stalled(now)]
        expired = [*dict.fromkeys(expired)]
        for connection in expired[:_MAX_CLOSED]:
            self._abort(connection)
        if len(self):
            self._schedule(_SWEEP_INTERVAL if len(expired) <= _MAX_CLOSED else _SWEEP_PAUSE)


# httptools would be faster, but it does not limit the size of a head.
class Connection(H11Protocol):
    """HTTP connection that reports its state to `connections`."""

    def __init__(self, connections: Connections, **options: Any) -> None:
        super().__init__(**options)
        self._connections = connections
        self._stalled_since: tuple[float, int] | None = None
        """Time and unsent bytes when the client last made progress, while a response is pending."""

    @property
    def has_request(self) -> bool:
        """True if a request has a complete head and an incomplete response."""
        # Annotated without None, although uvicorn only sets it with the first request.
        cycle: Any = self.cycle
        return cycle is not None and not cycle.response_complete

    def is_stalled(self, now: float) -> bool:
        """Return True if the client has not read a pending response for too long."""
        if not (self.flow.write_paused or self.transport.is_closing()):
            self._stalled_since = None
            return False
        unsent = self.transport.get_write_buffer_size()
        since, earlier = self._stalled_since = self._stalled_since or (now, unsent)
        if since + STALL_TIMEOUT > now:
            return False
        self._stalled_since = now, unsent
        return unsent > earlier - _MIN_PROGRESS

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._connections.add(self)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.remove(self)
        super().connection_lost(exc)

    @override
    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._connections.update(self)

    @override
    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._connections.update(self)

    @override
    def resume_writing(self) -> None:
        self._stalled_since = None
        super().resume_writing()
