"""Batches of events on their way into the log."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

from rxloop.errors import ConflictError, EventLogError, Fenced, LogUnreachable
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.log_retry import ANSWERS_IN, is_cancelled, may_pass, patiently
from rxloop.protocol.events import Event
from rxloop.stream.back_pressure import Gate
from rxloop.support.foreign_errors import leave_to_loop, to_error

LOG_TASK = "rxloop-log-"
"""How the names of the tasks begin that write."""

FLUSH_EVERY = 0.05

MOST = 1_000
"""How many events wait for the log before the model's sockets are held back."""


def _append_now_of(log: EventLog) -> Callable[..., bool] | None:
    """Return `append_now` of a log; None if the log does not implement it, or the object has only its own `append`."""
    own = vars(log)
    if "append_now" in own:
        return log.append_now
    return None if "append" in own or type(log).append_now is EventLog.append_now else log.append_now


class LogWriter:
    """Buffers events, and appends them on demand or every 50 ms, the first ones at once. The one writer of its attempt.

    A log that fails may be back in a moment: the batch is appended again, under the same name, until it succeeds or
    `PATIENCE` is over. A conflict is final at once, since somebody else writes the run.
    """

    def __init__(
        self,
        log: EventLog,
        task_id: str,
        durable_seq: int,
        failed: Callable[[Exception], None],
        gate: Gate | None = None,
    ) -> None:
        """Write what comes after `durable_seq`; call `failed` once if the log fails; close `gate` while many wait."""
        self.durable_seq = durable_seq
        """The last event that is in the log."""
        self.error: EventLogError | None = None
        self.token = secrets.token_hex(8)
        """Proves to the log who appends: no other attempt, in whatever process, has the same."""
        self._log = log
        self._takes_deltas = log.takes_deltas
        self._append_now = _append_now_of(log)
        self._task_id = task_id
        self._failed = failed
        self._gate = gate
        self._gate_closed = False
        self._buffer: list[Event] = []
        self._begun = False
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def add(self, event: Event) -> None:
        """Take an event; it is in the log within 50 ms, or when `flush` returns; the first ones of an attempt at once.

        A transient one is left out, unless the log keeps those, or passes them on.
        """
        if self.error is not None or not (event.durable or self._takes_deltas):
            return
        self._buffer.append(event)
        if self._timer is None and not self._writing:
            delay = FLUSH_EVERY if self._begun else 0
            self._timer = asyncio.get_running_loop().call_later(delay, self._on_time)
        elif len(self._buffer) > MOST:
            self._hold_back(True)

    async def flush(self) -> int:
        """Wait until everything that was taken is in the log.

        Returns:
            The last `seq` in the log.

        Raises:
            EventLogError: The log failed, now or before, and for longer than `PATIENCE`.
            ConflictError: Somebody else writes the run.
        """
        while self.error is None and self.flush_now() is None:
            self._start()
            await self._written()
        if self.error is not None:
            kinds = (Fenced, ConflictError, LogUnreachable)
            kind = next((kind for kind in kinds if isinstance(self.error, kind)), EventLogError)
            raise kind(str(self.error), retryable=self.error.retryable) from self.error
        return self.durable_seq

    def flush_now(self) -> int | None:
        """Write what was taken if that takes no waiting: gives the last `seq` in the log, or None."""
        if self._writing or self.error is not None:
            return None
        if self._buffer:
            if self._append_now is None:
                return None
            batch = self._buffer
            try:
                if not self._append_now(self._task_id, batch, expected_seq=self.durable_seq, writer=self.token):
                    return None
            except BaseException as error:
                # What may pass is tried again where it can be waited for.
                if not may_pass(error):
                    self._fail(error)
                return None
            self._buffer = []
            self._wrote(batch)
        return self.durable_seq

    def _on_time(self) -> None:
        self._timer = None
        if self.flush_now() is None:
            self._start()

    def fail(self, error: EventLogError) -> None:
        """Write nothing more: the run is somebody else's by now."""
        if self.error is None:
            self._fail(error)

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
        except asyncio.CancelledError as error:
            # A closing event loop cancels the write as well: it is made again, by whoever waits and goes on.
            if not task.cancelled() or is_cancelled(error):
                raise

    def _start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._writing and self._buffer and self.error is None:
            self._task = asyncio.get_running_loop().create_task(self._write(), name=f"{LOG_TASK}{self._task_id}")

    async def _write(self) -> None:
        while self._buffer and self.error is None:
            batch, self._buffer = self._buffer, []
            try:
                await self._append(batch)
            except BaseException as error:
                if is_cancelled(error):
                    self._buffer[:0] = batch
                    raise
                self._fail(error)
            else:
                self._wrote(batch)

    async def _append(self, batch: list[Event]) -> None:
        """Append a batch, however often that takes within `PATIENCE`."""
        await patiently(
            lambda: self._log.append(self._task_id, batch, expected_seq=self.durable_seq, writer=self.token),
            f"the log does not take the events of the run {self._task_id}",
            answers_in=ANSWERS_IN,
        )

    def _wrote(self, batch: list[Event]) -> None:
        self._begun = True
        self.durable_seq = batch[-1].seq
        self._hold_back(False)

    def _fail(self, raised: BaseException) -> None:
        error = raised if isinstance(raised, Exception) else to_error(raised)
        if isinstance(error, EventLogError) and not may_pass(error):
            self.error = error
        else:
            # It was asked again for as long as that makes sense, or is broken.
            kind = LogUnreachable if may_pass(error) else EventLogError
            self.error = kind(f"the event log failed: {error}")
        self._buffer.clear()
        self._hold_back(False)
        self._failed(self.error)
        leave_to_loop(raised)

    def _hold_back(self, closed: bool) -> None:
        """Close the gate of the run, or open it, so that what waits for the log has a bound."""
        if self._gate is None or closed == self._gate_closed:
            return
        self._gate_closed = closed
        if closed:
            self._gate.close()
        else:
            self._gate.open()
