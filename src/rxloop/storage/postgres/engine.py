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

from rxloop.errors import ConflictError, EventLogError, Fenced
from rxloop.storage.postgres.address import Address, Connection
from rxloop.storage.postgres.leases import Leases
from rxloop.storage.postgres.listener import Listener
from rxloop.storage.postgres.rows import Batch, Outcome, write
from rxloop.storage.postgres.schema import check, migrate
from rxloop.storage.postgres.serial_connection import ConnectionPool, SerialConnection, T, Work
from rxloop.storage.rules import count_repeats, make_conflict_error
from rxloop.support.misuse import check_argument, is_number

_MAX_BATCHES, _MAX_EVENTS, _MAX_BYTES = 250, 5_000, 8_000_000
"""Soft limits per statement, as numbers of batches, events and bytes. A single batch may exceed them."""


class Writer:
    """Writer that groups waiting batches into statements."""

    def __init__(self, address: Address, connection: SerialConnection, holder_id: str, retry_seconds: float) -> None:
        """Create a writer.

        Args:
            address: Database address.
            connection: Serial connection for writing.
            holder_id: Holder ID of this log object.
            retry_seconds: Maximum time for retries in seconds.
        """
        self._address, self._connection = address, connection
        self._holder_id, self._retry_seconds = holder_id, retry_seconds
        self._pending: deque[tuple[Batch, asyncio.Future[None]]] = deque()
        self._task: asyncio.Task[None] | None = None

    async def append(self, batch: Batch) -> None:
        """Append a batch.

        Raises:
            ConflictError: If the last stored `seq` is different.
            Fenced: If another holder has the lease.
            EventLogError: If the database write fails.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        pending = (batch, future)
        self._pending.append(pending)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._write_all(), name="rxloop-log-writer")
        try:
            await future
        except asyncio.CancelledError:
            # A running statement is completed regardless of cancellation, but a waiting batch can be removed.
            if pending in self._pending:
                self._pending.remove(pending)
            raise

    async def aclose(self) -> None:
        """Write all waiting batches."""
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    async def _write_all(self) -> None:
        while self._pending:
            group = self._select_group()
            try:
                await self._write(group)
            except BaseException as error:
                for _, future in group:
                    if future.done():
                        continue
                    if isinstance(error, Exception):
                        future.set_exception(error)
                    else:
                        future.cancel()
                if not isinstance(error, Exception):
                    raise

    def _select_group(self) -> list[tuple[Batch, asyncio.Future[None]]]:
        """Select the batches for one statement, with at most one batch per run."""
        group: list[tuple[Batch, asyncio.Future[None]]] = []
        later: list[tuple[Batch, asyncio.Future[None]]] = []
        runs = set[str]()
        events = size = 0
        while self._pending and len(group) < _MAX_BATCHES and events < _MAX_EVENTS and size < _MAX_BYTES:
            pending = self._pending.popleft()
            batch = pending[0]
            if batch.task_id in runs:
                later.append(pending)
                continue
            runs.add(batch.task_id)
            group.append(pending)
            events += len(batch.rows)
            size += batch.size
        self._pending.extendleft(reversed(later))
        return group

    async def _write(self, group: list[tuple[Batch, asyncio.Future[None]]]) -> None:
        async def work(connection: Connection) -> list[Outcome]:
            # Skip cancelled batches, because their callers may have reported that nothing was stored.
            group[:] = [pending for pending in group if not pending[1].cancelled()]
            batches = [batch for batch, _ in group]
            return await write(connection, self._address, self._holder_id, batches) if batches else []

        try:
            outcomes = await self._connection.do(work, retry_seconds=self._retry_seconds)
        except EventLogError as error:
            if error.retryable or len(group) == 1:
                raise
            # One batch is invalid. Write each batch separately, so that the others succeed.
            for pending in group:
                try:
                    await self._write([pending])
                except EventLogError as batch_error:
                    _fail(pending[1], batch_error)
            return
        for (batch, future), outcome in zip(group, outcomes, strict=True):
            if outcome.number is not None:
                if not future.done():
                    future.set_result(None)
            else:
                await self._handle_rejection(batch, future, outcome)

    async def _handle_rejection(self, batch: Batch, future: asyncio.Future[None], outcome: Outcome) -> None:
        """Handle a rejected batch, which may already be stored completely or in part."""
        if outcome.fenced:
            _fail(
                future,
                Fenced(
                    f"run {batch.task_id}: another process holds the lease of conversation "
                    f"{batch.events[0].context_id}. Nothing was written."
                ),
            )
            return
        if outcome.last_seq is None and batch.expected_seq == 0:
            # Another writer created the run concurrently. The next statement will see it.
            self._pending.appendleft((batch, future))
            return
        last_seq = outcome.last_seq or 0
        try:
            missing = await self._find_missing(batch, last_seq) if outcome.writer == batch.writer else None
        except EventLogError as error:
            _fail(future, error)
            return
        if missing is None:
            _fail(future, make_conflict_error(batch.task_id, batch.expected_seq, last_seq))
        elif missing:
            rest = Batch(batch.task_id, missing, last_seq, batch.writer, has_lease=batch.has_lease, live=batch.live)
            self._pending.appendleft((rest, future))
        elif not future.done():
            future.set_result(None)

    async def _find_missing(self, batch: Batch, last_seq: int) -> tuple[Any, ...] | None:
        """Return the events that are not stored yet, or None if stored events differ from the batch."""
        new = count_repeats(batch.events, last_seq)
        if new is None:
            return None
        expected = [event.to_json() for event in batch.events[:new] if event.durable]

        async def work(connection: Connection) -> list[bytes]:
            query = (
                "SELECT json FROM $s.events JOIN $s.runs ON run = number"
                " WHERE task_id = %s AND events.seq > %s AND events.seq <= %s AND sub = 0 ORDER BY events.seq"
            )
            values = (batch.task_id, batch.expected_seq, last_seq)
            cursor = await connection.execute(self._address.sql(query), values, binary=True)
            return [json for (json,) in await cursor.fetchall()]

        stored = await self._connection.do(work, retry_seconds=self._retry_seconds)
        return batch.events[new:] if stored == expected else None


def _fail(future: asyncio.Future[None], error: EventLogError | ConflictError) -> None:
    if not future.done():
        future.set_exception(error)


_WRITE_TIMEOUT, _READ_TIMEOUT = 10.0, 60.0
"""Statement timeouts in seconds."""

_PLAN_LIFETIME = 1.0
"""Maximum age of cached write plans in seconds. Planning takes longer than appending a few events."""


class Engine:
    """Connections of a log in one event loop, opened on demand. The maximum is six."""

    def __init__(self, address: Address, *, lease: float, retry_seconds: float, readers: int = 2) -> None:
        """Create an engine without connecting.

        Args:
            address: Database address.
            lease: Lease duration in seconds.
            retry_seconds: Maximum time for retries in seconds.
            readers: Number of connections for reading.
        """
        name = str(address)
        self.address, self.retry_seconds = address, retry_seconds
        self._checked = self._closed = False
        self._checking = asyncio.Lock()
        self._background_tasks: set[asyncio.Task[None]] = set()
        self._reconnected_at = -inf
        connect_writer = partial(self._connect, keeps_plans=True)
        self.write = SerialConnection(
            connect_writer, name, timeout=_WRITE_TIMEOUT, plan_lifetime=_PLAN_LIFETIME, on_reconnect=self._on_reconnect
        )
        make = partial(SerialConnection, self._connect, name, timeout=_READ_TIMEOUT, on_reconnect=self._on_reconnect)
        self.read = ConnectionPool([make() for _ in range(readers)])
        self._tail_connection = SerialConnection(self._connect, name, timeout=_WRITE_TIMEOUT)
        self.listener = Listener(address, self._tail_connection)
        self.leases = Leases(address, lease, retry_seconds, self.check, self._on_reconnect)
        self.writer = Writer(address, self.write, self.leases.holder_id, retry_seconds)

    def _on_reconnect(self) -> None:
        self._reconnected_at = asyncio.get_running_loop().time()

    def has_reconnected(self, seconds: float) -> bool:
        """Return True if a broken connection was replaced recently, possibly after a failover."""
        return asyncio.get_running_loop().time() < self._reconnected_at + seconds

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

    async def _connect(self, *, keeps_plans: bool = False) -> Connection:
        await self.check()
        connection = await self.address.connect()
        try:
            await self.address.configure(connection, keeps_plans=keeps_plans)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def run_read(self, work: Work[T]) -> T:
        """Execute a read."""
        if self._closed:
            raise EventLogError(f"The event log {self.address} was closed during a read.")
        return await self.read.do(work, retry_seconds=self.retry_seconds)

    async def run_write(self, work: Work[T]) -> T:
        """Execute an idempotent write."""
        return await self.write.do(work, retry_seconds=self.retry_seconds)

    async def run_unchecked(self, work: Work[T]) -> T:
        """Execute `work` without checking the schema."""
        connection = SerialConnection(lambda: self.address.connect(session=True), str(self.address), timeout=inf)
        try:
            return await connection.do(work, retry_seconds=self.retry_seconds)
        finally:
            await connection.aclose()

    def run_in_background(self, work: Work[None], failed: Callable[[Exception], None]) -> None:
        """Execute a background write. Errors are passed to `failed`."""

        async def run() -> None:
            try:
                await self.run_write(work)
            except Exception as error:
                failed(error)

        task = asyncio.get_running_loop().create_task(run())
        self._background_tasks.add(task)
        task.add_done_callback(self._background_tasks.discard)

    async def aclose(self) -> None:
        """Write waiting batches, release leases and close connections."""
        self._closed = True
        await self.writer.aclose()
        if self._background_tasks:
            await asyncio.wait(self._background_tasks)
        await self.leases.aclose()
        await self.listener.aclose()
        for connection in self._list_connections():
            await connection.aclose()

    def _list_connections(self) -> list[SerialConnection]:
        return [self.write, self._tail_connection, *self.read.connections, self.leases.connection]

    def drop(self, *, forked: bool = False) -> None:
        """Release all connections in a stopped event loop or a child process."""
        for connection in (*self._list_connections(), self.listener):
            connection.drop(forked=forked)


class Engines:
    """Engines of a log or store by event loop."""

    def __init__(self, address: Address, *, retry_seconds: float, lease: float = 10) -> None:
        """Create the collection without engines.

        Args:
            address: Database address.
            retry_seconds: Maximum time for retries in seconds.
            lease: Lease duration in seconds.

        Raises:
            ConfigurationError: If `retry_seconds` or `lease` is invalid.
        """
        self._engines: dict[asyncio.AbstractEventLoop, Engine] = {}
        check_argument("lease", lease, is_number(lease) and 0 < lease < inf, "a positive number of seconds")
        is_valid = is_number(retry_seconds) and 0 <= retry_seconds < inf
        check_argument("timeout", retry_seconds, is_valid, "a number of seconds")
        self.address = address
        self._retry_seconds, self._lease = float(retry_seconds), float(lease)
        _ENGINES.add(self)

    def get(self) -> Engine:
        """Return the engine of the current event loop, creating it if necessary."""
        loop = asyncio.get_running_loop()
        engine = self._engines.get(loop)
        if engine is None:
            self._drop(lambda loop: loop.is_closed())
            engine = self._engines[loop] = Engine(self.address, lease=self._lease, retry_seconds=self._retry_seconds)
        return engine

    async def aclose(self) -> None:
        """Close the engine of the current event loop. This method is idempotent."""
        engine = self._engines.pop(asyncio.get_running_loop(), None)
        if engine is not None:
            await engine.aclose()

    def _drop(self, should_drop: Callable[[asyncio.AbstractEventLoop], bool], *, forked: bool = False) -> None:
        # Other threads may have running event loops.
        for loop in [loop for loop in list(self._engines) if should_drop(loop)]:
            self._engines.pop(loop).drop(forked=forked)

    def __del__(self) -> None:
        self._drop(lambda loop: loop.is_closed())

    def drop_after_fork(self) -> None:
        """Release all connections in a child process, because they belong to the parent."""
        self._drop(lambda loop: True, forked=True)


_ENGINES: weakref.WeakSet[Engines] = weakref.WeakSet()


def _after_fork() -> None:
    for each in list(_ENGINES):
        each.drop_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
