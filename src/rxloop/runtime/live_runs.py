"""Runs executing in this process, and streams following runs across pauses and processes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from functools import partial
from typing import Any, NamedTuple, Protocol

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, Disposable

from rxloop.errors import ConfigurationError
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.log_retry import limit_log_time, read_log
from rxloop.pipeline.records import RunRecord, Until
from rxloop.protocol.events import AnyEvent, Event, StatusUpdateEvent, ends_attempt
from rxloop.protocol.ids import UNKNOWN, read_cursor
from rxloop.recorded.follow import FINAL_STATES, RecordedStream, follow_on
from rxloop.recorded.questions import IDLE_STATES, read_status
from rxloop.run.handle import Run
from rxloop.stream.back_pressure import Gate, WindowedPush
from rxloop.stream.readers import Merger
from rxloop.stream.sources import Push, from_task
from rxloop.stream.stream import ReadOnlyHold, Stream


class RuntimeLoad(NamedTuple):
    """Number of runs of a process.

    Attributes:
        executing: Runs that the process executes. It holds the lease of each of their conversations.
        waiting: Runs that wait in the process for a slot or for an earlier run of their conversation.
        adopted: Orphaned runs that the process has resumed since its start.
    """

    executing: int
    waiting: int
    adopted: int


class LiveRuns:
    """Runs currently executing in this process."""

    def __init__(self) -> None:
        self._runs: dict[str, Run[Any]] = {}
        self._start_callbacks: dict[str, set[Callable[[], None]]] = {}
        self._listeners: set[Callable[[Run[Any]], None]] = set()
        self._observers: set[abc.ObserverBase[AnyEvent]] = set()
        self._is_closed = False
        self.events: Stream[AnyEvent] = Stream(Observable(self._subscribe), ReadOnlyHold())
        """Events from all current and future runs, until `close` is called."""

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run[Any]]:
        return iter(tuple(self._runs.values()))

    def find(self, task_id: str) -> Run[Any] | None:
        """Return the run if it is currently executing here."""
        return self._runs.get(task_id)

    def add(self, run: Run[Any]) -> None:
        """Register an attempt started here."""
        self._runs[run.task_id] = run
        for listener in list(self._listeners):
            listener(run)
        for callback in self._start_callbacks.pop(run.task_id, ()):
            callback()

    def remove(self, task_id: str) -> None:
        """Unregister a run after executing it."""
        self._runs.pop(task_id, None)

    def close(self) -> None:
        """Complete the streams of all subscribers, since no runs will be added."""
        self._is_closed = True
        for observer in list(self._observers):
            observer.on_completed()

    def watch(self, task_id: str, on_start: Callable[[], None]) -> Callable[[], None]:
        """Call a function once the run starts executing here. Returns a function to stop watching."""
        callbacks = self._start_callbacks.setdefault(task_id, set())
        callbacks.add(on_start)

        def stop() -> None:
            callbacks.discard(on_start)
            if not callbacks and self._start_callbacks.get(task_id) is callbacks:
                del self._start_callbacks[task_id]

        return stop

    def _subscribe(
        self, observer: abc.ObserverBase[AnyEvent], scheduler: abc.SchedulerBase | None = None
    ) -> abc.DisposableBase:
        merger = Merger(observer, scheduler)

        def listener(run: Run[Any]) -> None:
            merger.add(run.events)

        def dispose() -> None:
            self._listeners.discard(listener)
            self._observers.discard(observer)

        for run in self:
            listener(run)
        if self._is_closed:
            observer.on_completed()
            return merger.subscriptions
        self._listeners.add(listener)
        self._observers.add(observer)
        return CompositeDisposable(merger.subscriptions, Disposable(dispose))


logger = logging.getLogger("rxloop")


class LiveRunLookup(Protocol):
    """Interface for looking up runs executing in this process."""

    def find(self, task_id: str) -> Run[Any] | None:
        """Return the run if it is currently executing here."""
        ...

    def watch(self, task_id: str, on_start: Callable[[], None]) -> Callable[[], None]:
        """Call a function once the run starts executing here. Returns a function to stop watching."""
        ...


def follow_live(
    log: EventLog, runs: LiveRunLookup, task_id: str, after: str | None, *, strict: bool, until: Until
) -> RecordedStream:
    """Stream a run's events after a cursor, until it has ended or, with `until="attempt"`, waits for an answer.

    While executing here, the run is read directly, including deltas. Otherwise the log is read. Slow readers only delay
    themselves.
    """
    if until not in ("attempt", "end"):
        raise ConfigurationError(f"until must be 'attempt' or 'end', got {until!r}")
    if after is not None and not read_cursor(after, strict=strict).task_id:
        after = UNKNOWN
    hold = ReadOnlyHold()

    async def work(push: Push[AnyEvent]) -> None:
        # The stream lasts as long as the run, so the caller's deadline must not apply.
        with limit_log_time(None):
            progress = _Progress(log, task_id, after, push, hold.gate, ends_at_pause=until == "attempt")
            await _read_events(log, runs, task_id, progress, strict)

    source = from_task(work, name=f"rxloop-follow-{task_id}")
    return RecordedStream(source, run=(log, task_id), until=until, reading=hold)


async def _read_events(log: EventLog, runs: LiveRunLookup, task_id: str, progress: _Progress, strict: bool) -> None:
    """Deliver new events from the run or the log, whichever has them first."""
    current: Run[Any] | None = None
    while not progress.has_ended:
        run = runs.find(task_id)
        # Runs stay registered for a moment after an attempt ends.
        if run is not None and run is not current:
            current = run
            # Start with the run's first event, which may precede this attempt.
            live = run.stream(after=progress.cursor or f"{task_id}/0.0.0")
            try:
                await progress.read(live)
            except Exception as error:
                # A refused attempt doesn't end the run, so continue with the log.
                logger.debug("Cannot read run %s directly: %s", task_id, error)
            continue
        # Read the log until the run starts executing here, which adds deltas.
        log_timeout = asyncio.timeout(None)
        stop = runs.watch(task_id, partial(log_timeout.reschedule, 0))
        try:
            async with log_timeout:
                position = progress.cursor, progress.last
                record = await read_log(log.get_record, task_id)
                if not await _has_all_events(record, *position, is_over=progress.is_over):
                    events = follow_on(log, task_id, *position, strict=strict, deltas=log.takes_deltas, until="end")
                    await progress.read(events)
                return
        except TimeoutError:
            if not log_timeout.expired():
                raise
        finally:
            stop()
            # A reference cycle; see `limit_time`.
            del log_timeout


async def _has_all_events(
    record: RunRecord, after: str | None, last: Event | None, *, is_over: Callable[[RunRecord], Awaitable[bool]]
) -> bool:
    """Return True if the run is over and the reader has received its last event."""
    if after is None or not await is_over(record):
        return False
    if last is not None and last.timestamp != record.updated:
        # After a rollback, another event may have been logged under the same number.
        return False
    cursor = read_cursor(after, strict=False)
    return (cursor.task_id, cursor.attempt, cursor.seq) == (record.task_id, record.attempt, record.seq)


class _Progress:
    """Position of a reader within a run."""

    def __init__(
        self, log: EventLog, task_id: str, after: str | None, push: Push[AnyEvent], gate: Gate, *, ends_at_pause: bool
    ) -> None:
        self.cursor = after
        self.last: Event | None = None
        """Last durable event."""
        self.has_ended = False
        self._log, self._task_id = log, task_id
        self._push = WindowedPush(push, gate)
        self._ends_at_pause = ends_at_pause

    async def is_over(self, record: RunRecord) -> bool:
        """Return True if the reader needs no events after this record."""
        if record.state in FINAL_STATES or not self._ends_at_pause:
            return record.state in FINAL_STATES
        # A waiting run continues if an answer is stored.
        status = await read_status(self._log, record)
        return status.record.seq == record.seq and status.state in IDLE_STATES

    async def read(self, events: Stream[AnyEvent]) -> None:
        """Forward events until either the stream or the run has ended."""
        async with aclosing(aiter(events)) as reader:
            async for event in reader:
                if isinstance(event, StatusUpdateEvent) and ends_attempt(event):
                    record = await read_log(self._log.get_record, self._task_id)
                    if event.state == "working" or event.seq > record.seq:
                        # The attempt has ended without being logged, so continue with the log.
                        continue
                    # Failed or cancelled runs may have been resumed since.
                    self.has_ended = event.seq == record.seq and await self.is_over(record)
                self.cursor = event.cursor
                self.last = event if event.durable else self.last
                await self._push(event)
                if self.has_ended:
                    return
