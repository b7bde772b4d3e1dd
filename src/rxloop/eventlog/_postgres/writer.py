"""What writes to a Postgres log: one connection, and one statement for all batches that wait."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from rxloop.errors import ConflictError, EventLogError, Fenced
from rxloop.eventlog._postgres.address import Address, Connection
from rxloop.eventlog._postgres.lane import Lane
from rxloop.eventlog._postgres.rows import Batch, Outcome, write
from rxloop.eventlog.rules import conflict, repeated

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
