"""Event log writer that batches events."""

from __future__ import annotations

import asyncio
import secrets
from bisect import bisect_right
from collections.abc import Callable, Sequence
from operator import attrgetter

from rxloop.errors import ConflictError, EventLogError, Fenced, LogUnreachable
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.log_retry import APPEND_TIMEOUT, is_temporary, retry_log_call
from rxloop.protocol.events import Event
from rxloop.stream.back_pressure import Gate
from rxloop.support.foreign_errors import leave_to_loop, to_error
from rxloop.support.tasks import is_cancelled

LOG_TASK = "rxloop-log-"
"""Name prefix of writer tasks."""

FLUSH_EVERY = 0.05

MAX_PENDING = 1_000
"""Maximum number of pending events before pausing the model's sockets."""


def _get_append_now(log: EventLog) -> Callable[..., bool] | None:
    """Return the log's `append_now`, or None if not implemented, or if only `append` was replaced on the instance."""
    instance_attributes = vars(log)
    if "append_now" in instance_attributes:
        return log.append_now
    return None if "append" in instance_attributes or type(log).append_now is EventLog.append_now else log.append_now


class LogWriter:
    """Buffered writer for an attempt's events, flushing on demand or every 50 ms. The first ones are flushed at once.

    If the log fails, the same batch is retried for up to `RETRY_SECONDS`. Conflicts aren't retried, because another
    process is writing the run.
    """

    def __init__(
        self,
        log: EventLog,
        task_id: str,
        durable_seq: int,
        on_failure: Callable[[Exception], None],
        gate: Gate | None = None,
    ) -> None:
        """Create a writer.

        Args:
            log: Event log.
            task_id: Id of the run.
            durable_seq: Last event already in the log.
            on_failure: Called once if writing fails.
            gate: Gate to close while too many events are pending.
        """
        self.durable_seq = durable_seq
        """Last event in the log."""
        self.error: EventLogError | None = None
        self.token = secrets.token_hex(8)
        """Token identifying this writer to the log. Unique among all attempts and processes."""
        self._log = log
        self._takes_deltas = log.takes_deltas
        self._append_now = _get_append_now(log)
        self._task_id = task_id
        self._on_failure = on_failure
        self._gate = gate
        self._gate_closed = False
        self._buffer: list[Event] = []
        self._has_stored = False
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def add(self, event: Event) -> None:
        """Add an event to the buffer.

        Transient events are skipped, unless the log stores or forwards them.
        """
        if self.error is not None or not (event.durable or self._takes_deltas):
            return
        self._buffer.append(event)
        if self._timer is None and not self._is_writing:
            delay = FLUSH_EVERY if self._has_stored else 0
            self._timer = asyncio.get_running_loop().call_later(delay, self._on_timer)
        elif len(self._buffer) > MAX_PENDING:
            self._set_gate(True)

    def add_copied(self, events: Sequence[Event]) -> None:
        """Append copied events to the buffer as a single batch, skipping events in the log."""
        new = events[bisect_right(events, self.durable_seq, key=attrgetter("seq")) :]
        if new and self.error is None:
            self._buffer += new[:-1]
            self.add(new[-1])

    async def flush(self) -> int:
        """Wait until all added events have been logged.

        Returns:
            Last `seq` in the log.

        Raises:
            EventLogError: Writing has failed for longer than `RETRY_SECONDS`, now or earlier.
            ConflictError: Another process is writing the run.
        """
        while self.error is None and self.flush_now() is None:
            self._start()
            await self._wait_written()
        if self.error is not None:
            kinds = (Fenced, ConflictError, LogUnreachable)
            kind = next((kind for kind in kinds if isinstance(self.error, kind)), EventLogError)
            raise kind(str(self.error), retryable=self.error.retryable) from self.error
        return self.durable_seq

    def flush_now(self) -> int | None:
        """Write all added events if possible without waiting. Return the last `seq` in the log, or None."""
        if self._is_writing or self.error is not None:
            return None
        if self._buffer:
            if self._append_now is None:
                return None
            batch = self._buffer
            try:
                if not self._append_now(self._task_id, batch, expected_seq=self.durable_seq, writer=self.token):
                    return None
            except BaseException as error:
                # Temporary errors are retried in a task, where we can wait.
                if not is_temporary(error):
                    self._fail(error)
                return None
            self._buffer = []
            self._mark_stored(batch)
        return self.durable_seq

    def _on_timer(self) -> None:
        self._timer = None
        if self.flush_now() is None:
            self._start()

    def fail(self, error: EventLogError) -> None:
        """Stop writing, because another process owns the run."""
        if self.error is None:
            self._fail(error)

    async def close(self) -> None:
        """Stop the timer, and wait for any running write."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self._wait_written()

    @property
    def _is_writing(self) -> bool:
        return self._task is not None and not self._task.done()

    async def _wait_written(self) -> None:
        """Wait for any running write."""
        task = self._task
        if task is None or task.done():
            return
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            # A closing event loop cancels the write too. The caller will retry it.
            if not task.cancelled() or is_cancelled(error):
                raise

    def _start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._is_writing and self._buffer and self.error is None:
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
                self._mark_stored(batch)

    async def _append(self, batch: list[Event]) -> None:
        """Append a batch, retrying for up to `RETRY_SECONDS`."""
        await retry_log_call(
            lambda: self._log.append(self._task_id, batch, expected_seq=self.durable_seq, writer=self.token),
            f"the log is not accepting events of run {self._task_id}",
            call_timeout=APPEND_TIMEOUT,
        )

    def _mark_stored(self, batch: list[Event]) -> None:
        self._has_stored = True
        self.durable_seq = batch[-1].seq
        self._set_gate(False)

    def _fail(self, raised: BaseException) -> None:
        error = raised if isinstance(raised, Exception) else to_error(raised)
        if isinstance(error, EventLogError) and not is_temporary(error):
            self.error = error
        else:
            # Either retrying timed out, or the log is broken.
            kind = LogUnreachable if is_temporary(error) else EventLogError
            self.error = kind(f"the event log failed: {error}")
        self._buffer.clear()
        self._set_gate(False)
        self._on_failure(self.error)
        leave_to_loop(raised)

    def _set_gate(self, closed: bool) -> None:
        """Close or open the gate, to bound the number of pending events."""
        if self._gate is None or closed == self._gate_closed:
            return
        self._gate_closed = closed
        if closed:
            self._gate.close()
        else:
            self._gate.open()
