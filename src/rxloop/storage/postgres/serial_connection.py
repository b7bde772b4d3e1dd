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

import psycopg

from rxloop.errors import EventLogError
from rxloop.storage.postgres.address import Connection, failure, lacks, passes, silent

log = logging.getLogger("rxloop")

T = TypeVar("T")

Work = Callable[[Connection], Awaitable[T]]

_PAUSES = (0.05, 1.0)
"""Initial and maximum pause between retries in seconds. The pause doubles after each attempt."""


class Lane:
    """Serial connection that connects on demand, and reconnects after a failure. It belongs to one event loop.

    Cancelling a caller does not interrupt its statement, because an interrupted statement would break the connection.
    Temporary failures are retried, so statements must be idempotent.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Connection]],
        place: str,
        *,
        answers_in: float,
        plans_for: float = inf,
        broke: Callable[[], None] | None = None,
        anew: Callable[[], None] | None = None,
    ) -> None:
        """Create a serial connection without connecting.

        Args:
            connect: Function that opens and configures a connection.
            place: Database name for error messages.
            answers_in: Statement timeout in seconds.
            plans_for: Maximum age of cached plans in seconds.
            broke: Called when an idle connection breaks or receives data.
            anew: Called after a broken connection was replaced.
        """
        self._connect = connect
        self._place = place
        self._answers_in = answers_in
        self._plans_for, self._planned = plans_for, -inf
        self._broke, self._anew = broke, anew
        self._had = False
        """True if there was a connection that this object did not close itself."""
        self._connection: Connection | None = None
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failed: tuple[float, psycopg.Error] | None = None
        """Time and error of the last attempt, if it failed temporarily."""
        self._asked: float | None = None
        """Start time of the first unanswered request."""

    @property
    def busy(self) -> bool:
        """True while work is in progress."""
        return self._lock.locked()

    @property
    def silent(self) -> float:
        """Time in seconds without any response, including connection errors."""
        return 0.0 if self._asked is None else asyncio.get_running_loop().time() - self._asked

    async def do(self, work: Work[T], *, patience: float, answers_in: float | None = None) -> T:
        """Execute `work` with the connection.

        Args:
            work: Idempotent function, which is retried after temporary failures.
            patience: Maximum time for retries in seconds.
            answers_in: Statement timeout in seconds, overriding the default.

        Raises:
            LogUnreachable: If retries failed until the timeout.
            EventLogError: If a permanent error occurred.
        """
        return await to_its_end(self._patiently(work, patience, answers_in or self._answers_in), self._tasks)

    async def _patiently(self, work: Work[T], patience: float, answers_in: float) -> T:
        loop = asyncio.get_running_loop()
        began = loop.time()
        deadline = began + patience
        pause, longest = _PAUSES
        async with self._lock:
            if self._failed is not None and self._failed[0] >= began and loop.time() > deadline:
                # Earlier callers have already retried for this long.
                raise failure(self._failed[1], self._place)
            while True:
                self._asked = self._asked or loop.time()
                known = self._connection is not None and not self._connection.closed
                try:
                    result = await self._once(work, answers_in)
                except psycopg.Error as error:
                    self._asked = self._asked if silent(error) else None
                    self._failed = (loop.time(), error) if passes(error) else None
                    # The connection may be dead although the server is available, so retry once.
                    again = loop.time() + pause <= deadline or (known and silent(error))
                    if self._failed is None or not again:
                        raise failure(error, self._place) from error
                    if lacks(error) and pause == _PAUSES[0]:
                        # The caller may have a shorter timeout and would not see the reason.
                        log.warning("%s; trying again", failure(error, self._place))
                except BaseException:
                    self._asked = None
                    raise
                else:
                    self._failed = self._asked = None
                    return result
                await asyncio.sleep(pause)
                pause = min(2 * pause, longest)

    async def _once(self, work: Work[T], answers_in: float) -> T:
        self._watch(False)
        if self._connection is None or self._connection.closed:
            self._connection = None
            try:
                async with asyncio.timeout(self._answers_in):
                    self._connection = await self._connect()
            except TimeoutError as error:
                said = f"no connection came about in {self._answers_in:g} s"
                raise psycopg.errors.ConnectionTimeout(said) from error
            if self._had and self._anew is not None:
                self._anew()
            self._had = True
        connection = self._connection
        late = asyncio.Event()
        timer = asyncio.get_running_loop().call_later(answers_in, lambda: (late.set(), cut(connection)))
        try:
            if (now := asyncio.get_running_loop().time()) > self._planned + self._plans_for:
                await connection.execute(b"DISCARD PLANS")
                self._planned = now
            return await work(connection)
        except BaseException as error:
            if late.is_set() and isinstance(error, psycopg.OperationalError):
                raise psycopg.errors.ConnectionTimeout(f"no answer came in {answers_in:g} s") from error
            # The state of an interrupted connection is undefined.
            if not isinstance(error, psycopg.Error | EventLogError):
                await connection.close()
            raise
        finally:
            timer.cancel()
            self._watch(True)

    def _watch(self, watch: bool) -> None:
        """Watch an idle connection. Data on it means that the server has closed the session."""
        connection = self._connection
        if self._broke is None or connection is None or connection.closed:
            return
        loop = asyncio.get_running_loop()
        if watch:
            loop.add_reader(connection.fileno(), self._hear)
        else:
            loop.remove_reader(connection.fileno())

    def _hear(self) -> None:
        self._watch(False)
        if self._broke is not None:
            self._broke()

    def cut(self) -> None:
        """Disconnect immediately. Running work is retried with a new connection."""
        if self._connection is not None and not self._connection.closed:
            cut(self._connection)

    async def aclose(self) -> None:
        """Finish running work and close the connection."""
        if self._tasks:
            await asyncio.wait(self._tasks)
        async with self._lock:
            self._watch(False)
            if self._connection is not None:
                await self._connection.close()
                self._connection = None
            self._had = False

    def drop(self, *, forked: bool = False) -> None:
        """Release the connection of a stopped event loop.

        Args:
            forked: True in a child process, which must not send anything to the server.
        """
        release(self._connection, forked=forked)
        self._connection = None


class Lanes:
    """Pool of serial connections, so that slow statements do not block others."""

    def __init__(self, lanes: list[Lane]) -> None:
        self.lanes = lanes

    async def do(self, work: Work[T], *, patience: float) -> T:
        """Execute `work` on an idle connection, or else on the least recently used one."""
        lane = next((lane for lane in self.lanes if not lane.busy), self.lanes[0])
        # Rotate the list, so that another connection is first next time.
        self.lanes.remove(lane)
        self.lanes.append(lane)
        return await lane.do(work, patience=patience)


async def to_its_end(work: Coroutine[Any, Any, T], tasks: set[asyncio.Task[Any]]) -> T:
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
        task.add_done_callback(_look_at)
        raise


def _look_at(task: asyncio.Task[Any]) -> None:
    """Retrieve the exception, because no caller is waiting for the task."""
    if not task.cancelled():
        task.exception()


def cut(connection: Connection) -> None:
    """Shut down the socket, so that pending statements fail immediately."""
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)


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
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.dup2(nowhere, connection.fileno())
            os.close(nowhere)
    connection.pgconn.finish()
