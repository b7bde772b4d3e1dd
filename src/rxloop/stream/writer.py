"""Carries the durable events of a run into its log, in batches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rxloop.errors import EventLogError
from rxloop.events import Event
from rxloop.protocols import AppendsNow, EventLog

FLUSH_EVERY = 0.05


class LogWriter:
    """Buffers events, and appends them on demand or every 50 ms, the first ones at once. The one writer of its run."""

    def __init__(self, log: EventLog, task_id: str, durable_seq: int, failed: Callable[[Exception], None]) -> None:
        """Write behind `durable_seq`; `failed` is called once if the log fails."""
        self.durable_seq = durable_seq
        """The last event that is in the log."""
        self.error: EventLogError | None = None
        self._log = log
        self._keeps_deltas = log.keeps_deltas
        self._append_now = log.append_now if isinstance(log, AppendsNow) else None
        self._task_id = task_id
        self._failed = failed
        self._buffer: list[Event] = []
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def add(self, event: Event) -> None:
        """Take an event; it is in the log within 50 ms, or when `flush` returns; the first ones of a run at once.

        A transient one is left out, unless the log keeps those.
        """
        if not (event.durable or self._keeps_deltas):
            return
        self._buffer.append(event)
        if self._timer is None and not self._writing:
            delay = FLUSH_EVERY if self.durable_seq else 0
            self._timer = asyncio.get_running_loop().call_later(delay, self._start)

    async def flush(self) -> int:
        """Wait until everything that was taken is in the log.

        Returns:
            The last `seq` in the log.

        Raises:
            EventLogError: The log failed, now or before.
        """
        while self.error is None and self.flush_now() is None:
            self._start()
            await self._written()
        if self.error is not None:
            raise EventLogError(str(self.error)) from self.error
        return self.durable_seq

    def flush_now(self) -> int | None:
        """The last `seq` in the log, if all that was taken is there or can be written without waiting."""
        if self._writing or self.error is not None:
            return None
        if self._buffer:
            if self._append_now is None:
                return None
            try:
                if not self._append_now(self._task_id, self._buffer, expected_seq=self.durable_seq):
                    return None
            except Exception as error:
                self._fail(error)
                return None
            self.durable_seq = self._buffer[-1].seq
            self._buffer = []
        return self.durable_seq

    async def close(self) -> None:
        """Stop the timer and wait for the write that is under way."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self._written()

    @property
    def _writing(self) -> bool:
        return self._task is not None and not self._task.done()

    async def _written(self) -> None:
        """Wait for the write that is under way."""
        task = self._task
        if task is None or task.done():
            return
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            # A closing event loop cancels the write as well: it is made again, by whoever waits for it.
            if not task.cancelled():
                raise

    def _start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._writing and self._buffer and self.error is None:
            self._task = asyncio.get_running_loop().create_task(self._write(), name=f"rxloop-log-{self._task_id}")

    async def _write(self) -> None:
        while self._buffer and self.error is None:
            batch, self._buffer = self._buffer, []
            try:
                await self._log.append(self._task_id, batch, expected_seq=self.durable_seq)
                self.durable_seq = batch[-1].seq
            except asyncio.CancelledError:
                self._buffer[:0] = batch
                raise
            except Exception as error:
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        text = f"the event log failed: {error}"
        self.error = error if isinstance(error, EventLogError) else EventLogError(text)
        self._failed(self.error)
