"""Postgres connections of an event loop, with group commit."""

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
"""Soft limits per statement, as numbers of batches, events and bytes. A single batch may exceed them."""


class Writer:
    """Writer that groups waiting batches into statements."""

    def __init__(self, address: Address, lane: Lane, me: str, patience: float) -> None:
        """Create a writer.

        Args:
            address: Database address.
            lane: Serial connection for writing.
            me: Holder ID of this log object.
            patience: Maximum time for retries in seconds.
        """
        self._address, self._lane, self._me, self._patience = address, lane, me, patience
        self._waiting: deque[tuple[Batch, asyncio.Future[None]]] = deque()
        self._task: asyncio.Task[None] | None = None

    async def append(self, batch: Batch) -> None:
        """Append a batch.

        Raises:
            ConflictError: If the last stored `seq` is different.
            Fenced: If another holder has the lease.
            EventLogError: If the database write fails.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = (batch, done)
        self._waiting.append(waiting)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._write_all(), name="rxloop-log-writer")
        try:
            await done
        except asyncio.CancelledError:
            # A running statement is completed regardless of cancellation, but a waiting batch can be removed.
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            raise

    async def aclose(self) -> None:
        """Write all waiting batches."""
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
        """Select the batches for one statement, with at most one batch per run."""
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
            # Skip cancelled batches, because their callers may have reported that nothing was stored.
            group[:] = [waiting for waiting in group if not waiting[1].cancelled()]
            batches = [batch for batch, _ in group]
            return await write(connection, self._address, self._me, batches) if batches else []

        try:
            outcomes = await self._lane.do(work, patience=self._patience)
        except EventLogError as error:
            if error.retryable or len(group) == 1:
                raise
            # One batch is invalid. Write each batch separately, so that the others succeed.
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
        """Handle a rejected batch, which may already be stored completely or in part."""
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
            # Another writer created the run concurrently. The next statement will see it.
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
        """Return the events that are not stored yet, or None if stored events differ from the batch."""
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
"""Statement timeouts in seconds."""

_PLANS_FOR = 1.0
"""Maximum age of cached write plans in seconds. Planning takes longer than appending a few events."""


class Engine:
    """Connections of a log in one event loop, opened on demand. The maximum is six."""

    def __init__(self, address: Address, *, lease: float, patience: float, readers: int = 2) -> None:
        """Create an engine without connecting.

        Args:
            address: Database address.
            lease: Lease duration in seconds.
            patience: Maximum time for retries in seconds.
            readers: Number of connections for reading.
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
        """Return True if a broken connection was replaced recently, possibly after a failover."""
        return asyncio.get_running_loop().time() < self._broke_at + seconds

    async def check(self) -> None:
        """Check the schema once, and create or migrate it if necessary."""
        async with self._checking:
            if self._checked:
                return
            # The session URL usually belongs to a role that can create tables.
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
        """Execute a read."""
        if self._closed:
            raise EventLogError(f"the event log {self.address} was closed while it was read")
        return await self.read.do(work, patience=self.patience)

    async def writing(self, work: Work[T]) -> T:
        """Execute an idempotent write."""
        return await self.write.do(work, patience=self.patience)

    async def as_owner(self, work: Work[T]) -> T:
        """Execute `work` without checking the schema."""
        lane = Lane(lambda: self.address.connect(session=True), str(self.address), answers_in=inf)
        try:
            return await lane.do(work, patience=self.patience)
        finally:
            await lane.aclose()

    def when_there_is_time(self, work: Work[None], failed: Callable[[Exception], None]) -> None:
        """Execute a background write. Errors are passed to `failed`."""

        async def later() -> None:
            try:
                await self.writing(work)
            except Exception as error:
                failed(error)

        task = asyncio.get_running_loop().create_task(later())
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    async def aclose(self) -> None:
        """Write waiting batches, release leases and close connections."""
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
        """Release all connections in a stopped event loop or a child process."""
        for lane in (*self._lanes(), self.hearing):
            lane.drop(forked=forked)


class Engines:
    """Engines of a log or store by event loop."""

    def __init__(self, address: Address, *, patience: float, lease: float = 10) -> None:
        """Create an empty collection.

        Args:
            address: Database address.
            patience: Maximum time for retries in seconds.
            lease: Lease duration in seconds.

        Raises:
            ConfigurationError: If `patience` or `lease` is invalid.
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
        """Return the engine of the current event loop, creating it if necessary."""
        loop = asyncio.get_running_loop()
        engine = self._engines.get(loop)
        if engine is None:
            self._drop(lambda loop: loop.is_closed())
            engine = self._engines[loop] = Engine(self.address, lease=self._lease, patience=self._patience)
        return engine

    async def aclose(self) -> None:
        """Close the engine of the current event loop. This method is idempotent."""
        engine = self._engines.pop(asyncio.get_running_loop(), None)
        if engine is not None:
            await engine.aclose()

    def _drop(self, wanted: Callable[[asyncio.AbstractEventLoop], bool], *, forked: bool = False) -> None:
        # Other threads may have running event loops.
        for loop in [loop for loop in list(self._engines) if wanted(loop)]:
            self._engines.pop(loop).drop(forked=forked)

    def __del__(self) -> None:
        self._drop(lambda loop: loop.is_closed())

    def forked(self) -> None:
        """Release all connections in a child process, because they belong to the parent."""
        self._drop(lambda loop: True, forked=True)


_ALL: weakref.WeakSet[Engines] = weakref.WeakSet()


def _after_fork() -> None:
    for each in list(_ALL):
        each.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
