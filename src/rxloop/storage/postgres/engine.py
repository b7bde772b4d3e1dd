"""Connections of one event loop, and group commit."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any

from rxloop.errors import ConfigurationError, ConflictError, EventLogError, Fenced
from rxloop.storage.postgres.address import Address, Connection
from rxloop.storage.postgres.leases import Turns
from rxloop.storage.postgres.listener import Hearing
from rxloop.storage.postgres.rows import Batch, Outcome, write
from rxloop.storage.postgres.schema import check, migrate
from rxloop.storage.postgres.serial_connection import Lane, Lanes, T, Work
from rxloop.storage.rules import conflict, repeated

_BATCHES, _EVENTS, _BYTES = 250, 5_000, 8_000_000
"""How much is written by one statement, at most; one batch may be larger."""


class Writer:
    """Appends batches, those of all runs that wait in one statement."""

    def __init__(self, address: Address, lane: Lane, me: str, patience: float) -> None:
        """Make a writer.

        Args:
            address: The database.
            lane: Its connection.
            me: Who holds the turns of this log object.
            patience: Seconds for which a server is asked again that does not answer.
        """
        self._address, self._lane, self._me, self._patience = address, lane, me, patience
        self._waiting: deque[tuple[Batch, asyncio.Future[None]]] = deque()
        self._task: asyncio.Task[None] | None = None

    async def append(self, batch: Batch) -> None:
        """Append a batch.

        Raises:
            ConflictError: The log holds another last `seq`.
            Fenced: The turn belongs to somebody else.
            EventLogError: The server does not take it.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = (batch, done)
        self._waiting.append(waiting)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._write_all(), name="rxloop-log-writer")
        try:
            await done
        except asyncio.CancelledError:
            # What is on its way is written, whoever waits for it; what is not need not be.
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            raise

    async def aclose(self) -> None:
        """Write what waits."""
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    async def _write_all(self) -> None:
        while self._waiting:
            group = self._next()
            try:
                await self._write(group)
            except BaseException as error:
                for _, done in group:
                    if done.done():
                        continue
                    if isinstance(error, Exception):
                        done.set_exception(error)
                    else:
                        done.cancel()
                if not isinstance(error, Exception):
                    raise

    def _next(self) -> list[tuple[Batch, asyncio.Future[None]]]:
        """Take what one statement writes: of each run one batch, the first."""
        group: list[tuple[Batch, asyncio.Future[None]]] = []
        later: list[tuple[Batch, asyncio.Future[None]]] = []
        runs = set[str]()
        events = size = 0
        while self._waiting and len(group) < _BATCHES and events < _EVENTS and size < _BYTES:
            waiting = self._waiting.popleft()
            batch = waiting[0]
            if batch.task_id in runs:
                later.append(waiting)
                continue
            runs.add(batch.task_id)
            group.append(waiting)
            events += len(batch.kept)
            size += batch.size
        self._waiting.extendleft(reversed(later))
        return group

    async def _write(self, group: list[tuple[Batch, asyncio.Future[None]]]) -> None:
        async def work(connection: Connection) -> list[Outcome]:
            # Who has given up meanwhile may have told somebody that nothing has begun.
            group[:] = [waiting for waiting in group if not waiting[1].cancelled()]
            batches = [batch for batch, _ in group]
            return await write(connection, self._address, self._me, batches) if batches else []

        try:
            outcomes = await self._lane.do(work, patience=self._patience)
        except EventLogError as error:
            if error.retryable or len(group) == 1:
                raise
            # Something is wrong with one of them: the others are not to fail by it.
            for one in group:
                try:
                    await self._write([one])
                except EventLogError as own:
                    _fail(one[1], own)
            return
        for (batch, done), outcome in zip(group, outcomes, strict=True):
            if outcome.number is not None:
                if not done.done():
                    done.set_result(None)
            else:
                await self._refused(batch, done, outcome)

    async def _refused(self, batch: Batch, done: asyncio.Future[None], outcome: Outcome) -> None:
        """Find out why a batch was not written: it may be there already, or in part."""
        if outcome.fenced:
            _fail(
                done,
                Fenced(
                    f"run {batch.task_id}: somebody else has the turn of the conversation {batch.events[0].context_id} "
                    "now and goes on there; nothing was written"
                ),
            )
            return
        if outcome.held is None and batch.expected_seq == 0:
            # Somebody began the run at the same moment: the next statement sees it.
            self._waiting.appendleft((batch, done))
            return
        held = outcome.held or 0
        try:
            rest = await self._rest(batch, held) if outcome.writer == batch.writer else None
        except EventLogError as error:
            _fail(done, error)
            return
        if rest is None:
            _fail(done, conflict(batch.task_id, batch.expected_seq, held))
        elif rest:
            again = Batch(batch.task_id, rest, held, batch.writer, mine=batch.mine, live=batch.live)
            self._waiting.appendleft((again, done))
        elif not done.done():
            done.set_result(None)

    async def _rest(self, batch: Batch, held: int) -> tuple[Any, ...] | None:
        """What of a batch is not in the log yet, if the rest of it is there byte for byte; None if it is not."""
        new = repeated(batch.events, held)
        if new is None:
            return None
        expected = [event.to_json() for event in batch.events[:new] if event.durable]

        async def work(connection: Connection) -> list[bytes]:
            query = (
                "SELECT json FROM $s.events JOIN $s.runs ON run = number"
                " WHERE task_id = %s AND events.seq > %s AND events.seq <= %s AND sub = 0 ORDER BY events.seq"
            )
            values = (batch.task_id, batch.expected_seq, held)
            cursor = await connection.execute(self._address.sql(query), values, binary=True)
            return [json for (json,) in await cursor.fetchall()]

        found = await self._lane.do(work, patience=self._patience)
        return batch.events[new:] if found == expected else None


def _fail(done: asyncio.Future[None], error: EventLogError | ConflictError) -> None:
    if not done.done():
        done.set_exception(error)


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
