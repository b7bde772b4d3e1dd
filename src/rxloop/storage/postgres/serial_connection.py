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
"""The seconds between two tries: of the first pause, doubled each time, and at most."""


class Lane:
    """A connection, made when it is first needed and after it broke. It belongs to one event loop.

    What is begun is done to its end, though whoever waits for it is cancelled: a statement that is cut off costs its
    connection. What fails by something that passes is done again, so work has to bear being done twice.
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
        """Make a lane; nothing is connected yet.

        Args:
            connect: Makes the connection, ready for use.
            place: How the database is called in errors.
            answers_in: Seconds after which work that has not come to its end counts as failed.
            plans_for: Seconds after which the server is to forget the plans that it keeps for this connection.
            broke: Called when the connection breaks, or says something, while nothing is done on it.
            anew: Called when there is a connection in the place of one that broke.
        """
        self._connect = connect
        self._place = place
        self._answers_in = answers_in
        self._plans_for, self._planned = plans_for, -inf
        self._broke, self._anew = broke, anew
        self._had = False
        """Whether there was a connection that was not closed from here."""
        self._connection: Connection | None = None
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failed: tuple[float, psycopg.Error] | None = None
        """When and why the last try failed, if by something that passes."""
        self._asked: float | None = None
        """When something was asked first of all to which nothing has come back."""

    @property
    def busy(self) -> bool:
        """Whether something is done on it."""
        return self._lock.locked()

    @property
    def silent(self) -> float:
        """The seconds for which nothing has come back, not even that there is no server."""
        return 0.0 if self._asked is None else asyncio.get_running_loop().time() - self._asked

    async def do(self, work: Work[T], *, patience: float, answers_in: float | None = None) -> T:
        """Do something with the connection.

        Args:
            work: What is done; again, should it fail by what passes.
            patience: The seconds for which it is done again.
            answers_in: Seconds after which it counts as failed, if not those of the lane.

        Raises:
            LogUnreachable: It has failed for so long.
            EventLogError: It failed by what another try would not change.
        """
        return await to_its_end(self._patiently(work, patience, answers_in or self._answers_in), self._tasks)

    async def _patiently(self, work: Work[T], patience: float, answers_in: float) -> T:
        loop = asyncio.get_running_loop()
        began = loop.time()
        deadline = began + patience
        pause, longest = _PAUSES
        async with self._lock:
            if self._failed is not None and self._failed[0] >= began and loop.time() > deadline:
                # Those who were before it have tried for as long.
                raise failure(self._failed[1], self._place)
            while True:
                self._asked = self._asked or loop.time()
                known = self._connection is not None and not self._connection.closed
                try:
                    result = await self._once(work, answers_in)
                except psycopg.Error as error:
                    self._asked = self._asked if silent(error) else None
                    self._failed = (loop.time(), error) if passes(error) else None
                    # It may be the connection that is dead, and not the server.
                    again = loop.time() + pause <= deadline or (known and silent(error))
                    if self._failed is None or not again:
                        raise failure(error, self._place) from error
                    if lacks(error) and pause == _PAUSES[0]:
                        # Whoever waits may have less patience, and would be told of nothing but that.
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
            # Of a connection that was cut off in the middle, nobody knows what comes next.
            if not isinstance(error, psycopg.Error | EventLogError):
                await connection.close()
            raise
        finally:
            timer.cancel()
            self._watch(True)

    def _watch(self, watch: bool) -> None:
        """Watch the connection while nothing is done on it: it has nothing to say then but that it is over."""
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
        """End the connection, whatever is done on it; that is done again on another one."""
        if self._connection is not None and not self._connection.closed:
            cut(self._connection)

    async def aclose(self) -> None:
        """Finish what is being done, and close the connection."""
        if self._tasks:
            await asyncio.wait(self._tasks)
        async with self._lock:
            self._watch(False)
            if self._connection is not None:
                await self._connection.close()
                self._connection = None
            self._had = False

    def drop(self, *, forked: bool = False) -> None:
        """Let go of the connection of an event loop that does not run any more.

        Args:
            forked: This is a child process, and the server must not hear of it.
        """
        release(self._connection, forked=forked)
        self._connection = None


class Lanes:
    """A few lanes to the same place, for whoever comes: what takes long on one does not hold up the others."""

    def __init__(self, lanes: list[Lane]) -> None:
        self.lanes = lanes

    async def do(self, work: Work[T], *, patience: float) -> T:
        """Do something on a lane that is free, or else on the one that was least used."""
        lane = next((lane for lane in self.lanes if not lane.busy), self.lanes[0])
        # Next time another one is the first.
        self.lanes.remove(lane)
        self.lanes.append(lane)
        return await lane.do(work, patience=patience)


async def to_its_end(work: Coroutine[Any, Any, T], tasks: set[asyncio.Task[Any]]) -> T:
    """Do something to its end, though whoever waits for it is cancelled.

    Args:
        work: What is done.
        tasks: Those that are under way, to which it belongs meanwhile.
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
    """Take note of an error for which nobody waits any more."""
    if not task.cancelled():
        task.exception()


def cut(connection: Connection) -> None:
    """Cut a connection off, so that what waits for its answer fails at once: the server may never give one."""
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)


def release(connection: Connection | None, *, forked: bool) -> None:
    """Let go of a connection without its event loop, which does not run any more.

    Args:
        connection: The connection, if there is one.
        forked: It is that of the parent process, which goes on with it: the server must not hear of this.
    """
    if connection is None or connection.closed:
        return
    if forked:
        with suppress(OSError, psycopg.Error):
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.dup2(nowhere, connection.fileno())
            os.close(nowhere)
    connection.pgconn.finish()
