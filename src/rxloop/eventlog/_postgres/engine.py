"""The connections of a Postgres log in one event loop."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable
from functools import partial
from math import inf

from rxloop.errors import ConfigurationError, EventLogError
from rxloop.eventlog._postgres.address import Address, Connection
from rxloop.eventlog._postgres.hearing import Hearing
from rxloop.eventlog._postgres.lane import Lane, Lanes, T, Work
from rxloop.eventlog._postgres.schema import check, migrate
from rxloop.eventlog._postgres.turns import Turns
from rxloop.eventlog._postgres.writer import Writer

_WRITES_IN, _READS_IN = 10.0, 60.0
"""Seconds in which a statement has to come to its end."""
_PLANS_FOR = 1.0
"""Seconds for which the plans of what writes are kept: to plan it takes longer than to append a few events."""


class Engine:
    """All that a log has open in one event loop: at most six connections, made when they are first needed."""

    def __init__(self, address: Address, *, lease: float, patience: float, readers: int = 2) -> None:
        """Connect to nothing yet.

        Args:
            address: The database.
            lease: As for `Turns`.
            patience: Seconds for which a server is asked again that does not answer.
            readers: How many connections read what takes long.
        """
        place = str(address)
        self.address, self.patience = address, patience
        self._checked = self._closed = False
        self._checking = asyncio.Lock()
        self._later: set[asyncio.Task[None]] = set()
        self._broke_at = -inf
        writing = partial(self._ready, keeps_plans=True)
        self.write = Lane(writing, place, answers_in=_WRITES_IN, plans_for=_PLANS_FOR, anew=self._came_back)
        self.read = Lanes(
            [Lane(self._ready, place, answers_in=_READS_IN, anew=self._came_back) for _ in range(readers)]
        )
        self._tails = Lane(self._ready, place, answers_in=_WRITES_IN)
        self.hearing = Hearing(address, self._tails)
        self.turns = Turns(address, lease, patience, self.check, self._came_back)
        self.writer = Writer(address, self.write, self.turns.me, patience)

    def _came_back(self) -> None:
        self._broke_at = asyncio.get_running_loop().time()

    def came_back_within(self, seconds: float) -> bool:
        """Whether a connection that had broken was made anew so short a time ago; maybe to another server."""
        return asyncio.get_running_loop().time() < self._broke_at + seconds

    async def check(self) -> None:
        """See that the tables are those that this program knows; they are made where they are not there."""
        async with self._checking:
            if self._checked:
                return
            # Where somebody may make tables, as a rule.
            connection = await self.address.connect(session=True)
            async with connection:
                if not await check(connection, self.address):
                    await migrate(connection, self.address)
            self._checked = True

    async def _ready(self, *, keeps_plans: bool = False) -> Connection:
        await self.check()
        connection = await self.address.connect()
        try:
            await self.address.tuned(connection, keeps_plans=keeps_plans)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def reading(self, work: Work[T]) -> T:
        """Do something that reads."""
        if self._closed:
            raise EventLogError(f"the event log {self.address} was closed while it was read")
        return await self.read.do(work, patience=self.patience)

    async def writing(self, work: Work[T]) -> T:
        """Do something that writes; it may be done twice."""
        return await self.write.do(work, patience=self.patience)

    async def as_owner(self, work: Work[T]) -> T:
        """Do something before the tables are there."""
        lane = Lane(lambda: self.address.connect(session=True), str(self.address), answers_in=inf)
        try:
            return await lane.do(work, patience=self.patience)
        finally:
            await lane.aclose()

    def when_there_is_time(self, work: Work[None], failed: Callable[[Exception], None]) -> None:
        """Do something that writes and for which nobody waits; `failed` gets its error."""

        async def later() -> None:
            try:
                await self.writing(work)
            except Exception as error:
                failed(error)

        task = asyncio.get_running_loop().create_task(later())
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    async def aclose(self) -> None:
        """Write what waits, give all turns back, and close the connections."""
        self._closed = True
        await self.writer.aclose()
        if self._later:
            await asyncio.wait(self._later)
        await self.turns.aclose()
        await self.hearing.aclose()
        for lane in self._lanes():
            await lane.aclose()

    def _lanes(self) -> list[Lane]:
        return [self.write, self._tails, *self.read.lanes, self.turns.lane]

    def drop(self, *, forked: bool = False) -> None:
        """Let go of everything, in an event loop that does not run any more, or in a child process."""
        for lane in (*self._lanes(), self.hearing):
            lane.drop(forked=forked)


class Engines:
    """The engine of each event loop that uses a log, or a store."""

    def __init__(self, address: Address, *, patience: float, lease: float = 10) -> None:
        """Make none yet.

        Args:
            address: The database.
            patience: As for `Engine`.
            lease: As for `Engine`.

        Raises:
            ConfigurationError: The patience or the lease is no time.
        """
        self._engines: dict[asyncio.AbstractEventLoop, Engine] = {}
        if not 0 < lease < inf:
            raise ConfigurationError(f"lease is a number of seconds, more than 0, not {lease!r}")
        if not 0 <= patience < inf:
            raise ConfigurationError(f"patience is a number of seconds, not {patience!r}")
        self.address = address
        self._patience, self._lease = float(patience), float(lease)
        _ALL.add(self)

    def here(self) -> Engine:
        """What is open in the event loop that runs."""
        loop = asyncio.get_running_loop()
        engine = self._engines.get(loop)
        if engine is None:
            self._drop(lambda loop: loop.is_closed())
            engine = self._engines[loop] = Engine(self.address, lease=self._lease, patience=self._patience)
        return engine

    async def aclose(self) -> None:
        """Close what is open in the event loop that runs; may be called more than once."""
        engine = self._engines.pop(asyncio.get_running_loop(), None)
        if engine is not None:
            await engine.aclose()

    def _drop(self, wanted: Callable[[asyncio.AbstractEventLoop], bool], *, forked: bool = False) -> None:
        # Other threads have loops of their own.
        for loop in [loop for loop in list(self._engines) if wanted(loop)]:
            self._engines.pop(loop).drop(forked=forked)

    def __del__(self) -> None:
        self._drop(lambda loop: loop.is_closed())

    def forked(self) -> None:
        """Let go of everything in a child process: what is open belongs to the parent."""
        self._drop(lambda loop: True, forked=True)


_ALL: weakref.WeakSet[Engines] = weakref.WeakSet()


def _after_fork() -> None:
    for each in list(_ALL):
        each.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
