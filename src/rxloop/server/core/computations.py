"""Work on the events of long runs, outside of the event loop and with bounded memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import TypeVar
from weakref import WeakValueDictionary

import anyio

from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.log_retry import read_log
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.events import Event
from rxloop.recorded.follow import read_chunks
from rxloop.server.core.errors import Refused
from rxloop.server.core.request_slots import check_connected
from rxloop.support.garbage import free_in_parts, ignore_large_data
from rxloop.support.threads import Threads, run_in_thread

T = TypeVar("T")

MAX_BYTES = 64 << 20
"""Maximum size in bytes of the events that a request holds in memory. The events of a memory log do not count."""


class Computations:
    """Queue of computations of a process.

    Each principal has one computation at a time. Among those that hold whole runs in memory, a process has one at a
    time. One thread executes the folds and another one the functions of whole runs, so that a fold waits neither for
    long functions nor for many principals.
    """

    def __init__(self) -> None:
        self._principals: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._whole_runs = asyncio.Lock()
        self._fold_thread = Threads(max_running=1)
        self._whole_run_thread = Threads(max_running=1)

    async def fold(
        self,
        principal_id: str,
        log: EventLog,
        record: RunRecord,
        add: Callable[[Sequence[Event]], None],
        finish: Callable[[], T],
    ) -> T:
        """Call `add` with the events of a run in small parts, then return the result of `finish`.

        Raises:
            Refused: If the client of the current request has disconnected.
        """
        async with self._lock(principal_id):
            with ignore_large_data():
                async with aclosing(read_chunks(log, record.task_id, last_seq=record.seq)) as chunks:
                    async for chunk in chunks:
                        await check_connected()
                        await run_in_thread(partial(add, chunk), threads=self._fold_thread)
                return await run_in_thread(finish, threads=self._fold_thread)

    @staticmethod
    async def fold_events(log: EventLog, task_id: str, add: Callable[[Event], object]) -> None:
        """Call a function with each stored event of a run. The event loop runs other tasks in between.

        Args:
            log: Event log.
            task_id: Task id.
            add: Adds an event to the fold.
        """
        record = await read_log(log.get_record, task_id)
        with ignore_large_data():
            async with aclosing(read_chunks(log, task_id, last_seq=record.seq)) as chunks:
                async for chunk in chunks:
                    for event in chunk:
                        add(event)
                    await asyncio.sleep(0)

    @asynccontextmanager
    async def hold_runs(self, principal_id: str) -> AsyncGenerator[WholeRuns]:
        """Wait until the principal may read whole runs into memory.

        Raises:
            Refused: If the client of the current request has disconnected.
        """
        async with self._lock(principal_id):
            async with self._whole_runs:
                await check_connected()
                runs = WholeRuns(self._whole_run_thread)
                with ignore_large_data():
                    try:
                        yield runs
                    finally:
                        with anyio.CancelScope(shield=True):
                            await run_in_thread(runs.clear, threads=self._whole_run_thread)

    def _lock(self, principal_id: str) -> asyncio.Lock:
        return self._principals.setdefault(principal_id, asyncio.Lock())


class WholeRuns:
    """Runs that a request holds in memory."""

    def __init__(self, thread: Threads) -> None:
        self._thread, self._size = thread, 0
        self._runs: list[list[Event]] = []

    async def read(
        self, log: EventLog, record: RunRecord, *, select: Callable[[Event], Event | None] | None = None
    ) -> list[Event]:
        """Read the events of a run. The list is empty after the block of `hold_runs`.

        Args:
            log: Event log.
            record: Record of the run. Later events are not read.
            select: Returns the event to keep, or None.

        Raises:
            Refused: If the events of all runs that were read are too large, or the client has disconnected.
        """
        events: list[Event] = []
        self._runs.append(events)

        def add(chunk: Sequence[Event]) -> None:
            self._size += sum(each.decoded_size for each in chunk)
            events.extend(chunk if select is None else filter(None, map(select, chunk)))

        async with aclosing(read_chunks(log, record.task_id, last_seq=record.seq)) as chunks:
            async for chunk in chunks:
                await self.compute(partial(add, chunk))
                if self._size > MAX_BYTES:
                    size = f"its events have more than {MAX_BYTES >> 20} MiB"
                    raise Refused(422, "too_large", f"the run is too large for this request: {size}")
        return events

    def clear(self) -> None:
        """Free the events in small parts."""
        for events in self._runs:
            free_in_parts(events)

    async def compute(self, function: Callable[[], T]) -> T:
        """Run a function outside of the event loop.

        Raises:
            Refused: If the client of the current request has disconnected.
        """
        await check_connected()
        return await run_in_thread(function, threads=self._thread)
