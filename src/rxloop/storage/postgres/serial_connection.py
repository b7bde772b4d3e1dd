"""Connection that runs one statement at a time and reconnects."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from math import inf
from typing import Any, TypeVar

from rxloop.errors import EventLogError
from rxloop.storage.postgres import psycopg
from rxloop.storage.postgres.address import Connection, is_temporary, is_unanswered, lacks_resources, to_error

log = logging.getLogger("rxloop")

T = TypeVar("T")

Work = Callable[[Connection], Awaitable[T]]

_RETRY_PAUSES = (0.05, 1.0)
"""Initial and maximum pause between retries in seconds. The pause doubles after each attempt."""


class SerialConnection:
    """Serial connection that connects on demand, and reconnects after a failure. It belongs to one event loop.

    Cancelling a caller does not interrupt its statement, because an interrupted statement would break the connection.
    Temporary failures are retried, so statements must be idempotent.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Connection]],
        database_name: str,
        *,
        timeout: float,
        plan_lifetime: float = inf,
        on_broken: Callable[[], None] | None = None,
        on_reconnect: Callable[[], None] | None = None,
    ) -> None:
        """Create a serial connection without connecting.

        Args:
            connect: Function that opens and configures a connection.
            database_name: Database name for error messages.
            timeout: Statement timeout in seconds.
            plan_lifetime: Maximum age of cached plans in seconds.
            on_broken: Called when an idle connection breaks or receives data.
            on_reconnect: Called after a broken connection was replaced.
        """
        self._connect = connect
        self._database_name = database_name
        self._timeout = timeout
        self._plan_lifetime, self._planned_at = plan_lifetime, -inf
        self._on_broken, self._on_reconnect = on_broken, on_reconnect
        self._was_connected = False
        """True if there was a connection that this object did not close itself."""
        self._connection: Connection | None = None
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._last_failure: tuple[float, psycopg.Error] | None = None
        """Time and error of the last attempt, if it failed temporarily."""
        self._unanswered_since: float | None = None
        """Start time of the first unanswered request."""

    @property
    def is_busy(self) -> bool:
        """True while work is in progress."""
        return self._lock.locked()

    @property
    def silence(self) -> float:
        """Time in seconds without any response, including connection errors."""
        return 0.0 if self._unanswered_since is None else asyncio.get_running_loop().time() - self._unanswered_since

    async def do(self, work: Work[T], *, retry_seconds: float, time_limit: float | None = None) -> T:
        """Execute `work` with the connection.

        Args:
            work: Idempotent function, which is retried after temporary failures.
            retry_seconds: Maximum time for retries in seconds.
            time_limit: Statement timeout in seconds, overriding the default.

        Raises:
            LogUnreachable: If retries failed until the timeout.
            EventLogError: If a permanent error occurred.
        """
        return await complete(self._run_with_retries(work, retry_seconds, time_limit or self._timeout), self._tasks)

    async def _run_with_retries(self, work: Work[T], retry_seconds: float, time_limit: float) -> T:
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        deadline = started_at + retry_seconds
        pause, max_pause = _RETRY_PAUSES
        async with self._lock:
            if self._last_failure is not None and self._last_failure[0] >= started_at and loop.time() > deadline:
                # Earlier callers have already retried for this long.
                raise to_error(self._last_failure[1], self._database_name)
            while True:
                self._unanswered_since = self._unanswered_since or loop.time()
                was_open = self._connection is not None and not self._connection.closed
                try:
                    result = await self._run_once(work, time_limit)
                except psycopg.Error as error:
                    self._unanswered_since = self._unanswered_since if is_unanswered(error) else None
                    self._last_failure = (loop.time(), error) if is_temporary(error) else None
                    # The connection may be dead although the server is available, so retry once.
                    retry = loop.time() + pause <= deadline or (was_open and is_unanswered(error))
                    if self._last_failure is None or not retry:
                        raise to_error(error, self._database_name) from error
                    if lacks_resources(error) and pause == _RETRY_PAUSES[0]:
                        # The caller may have a shorter timeout and would not see the reason.
                        log.warning("%s; trying again", to_error(error, self._database_name))
                except BaseException:
                    self._unanswered_since = None
                    raise
                else:
                    self._last_failure = self._unanswered_since = None
                    return result
                await asyncio.sleep(pause)
                pause = min(2 * pause, max_pause)

    async def _run_once(self, work: Work[T], time_limit: float) -> T:
        self._watch(False)
        if self._connection is None or self._connection.closed:
            self._connection = None
            try:
                async with asyncio.timeout(self._timeout):
                    self._connection = await self._connect()
            except TimeoutError as error:
                message = f"no connection within {self._timeout:g} s"
                raise psycopg.errors.ConnectionTimeout(message) from error
            if self._was_connected and self._on_reconnect is not None:
                self._on_reconnect()
            self._was_connected = True
        connection = self._connection
        timed_out = asyncio.Event()
        timer = asyncio.get_running_loop().call_later(time_limit, lambda: (timed_out.set(), disconnect(connection)))
        try:
            if (now := asyncio.get_running_loop().time()) > self._planned_at + self._plan_lifetime:
                await connection.execute(b"DISCARD PLANS")
                self._planned_at = now
            return await work(connection)
        except BaseException as error:
            if timed_out.is_set() and isinstance(error, psycopg.OperationalError):
                raise psycopg.errors.ConnectionTimeout(f"no response within {time_limit:g} s") from error
            # The state of an interrupted connection is undefined.
            if not isinstance(error, psycopg.Error | EventLogError):
                await connection.close()
            raise
        finally:
            timer.cancel()
            self._watch(True)

    def _watch(self, enabled: bool) -> None:
        """Watch an idle connection. Data on it means that the server has closed the session."""
        connection = self._connection
        if self._on_broken is None or connection is None or connection.closed:
            return
        loop = asyncio.get_running_loop()
        if enabled:
            loop.add_reader(connection.fileno(), self._on_readable)
        else:
            loop.remove_reader(connection.fileno())

    def _on_readable(self) -> None:
        self._watch(False)
        if self._on_broken is not None:
            self._on_broken()

    def disconnect(self) -> None:
        """Disconnect immediately. Running work is retried with a new connection."""
        if self._connection is not None and not self._connection.closed:
            disconnect(self._connection)

    async def aclose(self) -> None:
        """Finish running work and close the connection."""
        if self._tasks:
            await asyncio.wait(self._tasks)
        async with self._lock:
            self._watch(False)
            if self._connection is not None:
                await self._connection.close()
                self._connection = None
            self._was_connected = False

    def drop(self, *, forked: bool = False) -> None:
        """Release the connection of a stopped event loop.

        Args:
            forked: True in a child process, which must not send anything to the server.
        """
        release(self._connection, forked=forked)
        self._connection = None


class ConnectionPool:
    """Pool of serial connections, so that slow statements do not block others."""

    def __init__(self, connections: list[SerialConnection]) -> None:
        self.connections = connections

    async def do(self, work: Work[T], *, retry_seconds: float) -> T:
        """Execute `work` on an idle connection, or else on the least recently used one."""
        connection = next((each for each in self.connections if not each.is_busy), self.connections[0])
        # Rotate the list, so that another connection is first next time.
        self.connections.remove(connection)
        self.connections.append(connection)
        return await connection.do(work, retry_seconds=retry_seconds)


async def complete(work: Coroutine[Any, Any, T], tasks: set[asyncio.Task[Any]]) -> T:
    """Complete a coroutine even if the caller is cancelled.

    Args:
        work: Coroutine to run.
        tasks: Set of running tasks, which contains the new task until it ends.
    """
    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(_retrieve_exception)
        raise


def _retrieve_exception(task: asyncio.Task[Any]) -> None:
    """Retrieve the exception, because no caller is waiting for the task."""
    if not task.cancelled():
        task.exception()


def disconnect(connection: Connection) -> None:
    """Shut down the socket, so that pending statements fail immediately."""
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as connection_socket:
        connection_socket.shutdown(socket.SHUT_RDWR)


def release(connection: Connection | None, *, forked: bool) -> None:
    """Release a connection without using its event loop, which has stopped.

    Args:
        connection: Connection, or None.
        forked: True if the parent process still uses the connection. Nothing is sent to the server then.
    """
    if connection is None or connection.closed:
        return
    if forked:
        with suppress(OSError, psycopg.Error):
            null_device = os.open(os.devnull, os.O_RDWR)
            os.dup2(null_device, connection.fileno())
            os.close(null_device)
    connection.pgconn.finish()
