"""Runs executing in this process, and streams following runs across pauses and processes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import aclosing
from functools import partial
from typing import Any, Protocol

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, Disposable

from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.log_retry import read_log, within
from rxloop.protocol.events import AnyEvent, Event, StatusUpdateEvent, ends_attempt
from rxloop.protocol.ids import UNKNOWN, read_cursor
from rxloop.recorded.follow import OVER, RecordedStream, follow_on
from rxloop.run.handle import Run
from rxloop.stream.back_pressure import Gate
from rxloop.stream.readers import Merger
from rxloop.stream.sources import Push, from_task
from rxloop.stream.stream import ReadOnlyHold, Stream


class LiveRuns:
    """Runs currently executing in this process."""

    def __init__(self) -> None:
        self._runs: dict[str, Run[Any]] = {}
        self._watching: dict[str, set[Callable[[], None]]] = {}
        self._listeners: set[Callable[[Run[Any]], None]] = set()
        self.events: Stream[AnyEvent] = Stream(Observable(self._subscribe), ReadOnlyHold())
        """Events from all current and future runs."""

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run[Any]]:
        return iter(tuple(self._runs.values()))

    def run(self, task_id: str) -> Run[Any] | None:
        """Return the run if it is currently executing here."""
        return self._runs.get(task_id)

    def begun(self, run: Run[Any]) -> None:
        """Register an attempt started here."""
        self._runs[run.task_id] = run
        for listener in list(self._listeners):
            listener(run)
        for callback in self._watching.pop(run.task_id, ()):
            callback()

    def ended(self, task_id: str) -> None:
        """Unregister a run after executing it."""
        self._runs.pop(task_id, None)

    def watch(self, task_id: str, begun: Callable[[], None]) -> Callable[[], None]:
        """Call a function once the run starts executing here. Returns a function to stop watching."""
        watching = self._watching.setdefault(task_id, set())
        watching.add(begun)

        def stop() -> None:
            watching.discard(begun)
            if not watching and self._watching.get(task_id) is watching:
                del self._watching[task_id]

        return stop

    def _subscribe(
        self, observer: abc.ObserverBase[AnyEvent], scheduler: abc.SchedulerBase | None = None
    ) -> abc.DisposableBase:
        merging = Merger(observer, scheduler)

        def listener(run: Run[Any]) -> None:
            merging.add(run.events)

        for run in self:
            listener(run)
        self._listeners.add(listener)
        return CompositeDisposable(merging.subscriptions, Disposable(lambda: self._listeners.discard(listener)))


logger = logging.getLogger("rxloop")


class LiveRunLookup(Protocol):
    """Interface for looking up runs executing in this process."""

    def run(self, task_id: str) -> Run[Any] | None:
        """Return the run if it is currently executing here."""
        ...

    def watch(self, task_id: str, begun: Callable[[], None]) -> Callable[[], None]:
        """Call a function once the run starts executing here. Returns a function to stop watching."""
        ...


def follow_live(log: EventLog, here: LiveRunLookup, task_id: str, after: str | None, *, strict: bool) -> RecordedStream:
    """Stream a run's events after a cursor, until it has ended.

    While executing here, the run is read directly, including deltas. Otherwise the log is read. Slow readers only delay
    themselves.
    """
    if after is not None and not read_cursor(after, strict=strict).task_id:
        after = UNKNOWN
    hold = ReadOnlyHold()

    async def work(push: Push[AnyEvent]) -> None:
        # The stream lasts as long as the run, so the caller's deadline must not apply.
        with within(None):
            await _read(log, here, task_id, _Progress(log, task_id, after, push, hold.gate), strict)

    source = from_task(work, name=f"rxloop-follow-{task_id}")
    return RecordedStream(source, run=(log, task_id), until="end", reading=hold)


async def _read(log: EventLog, here: LiveRunLookup, task_id: str, reading: _Progress, strict: bool) -> None:
    """Deliver new events from the run or the log, whichever has them first."""
    read: Run[Any] | None = None
    while not reading.over:
        run = here.run(task_id)
        # Runs stay registered for a moment after an attempt ends.
        if run is not None and run is not read:
            read = run
            # Start with the run's first event, which may precede this attempt.
            live = run.stream(after=reading.cursor or f"{task_id}/0.0.0")
            try:
                await reading.read(live)
            except Exception as error:
                # A refused attempt doesn't end the run, so continue with the log.
                logger.debug("Cannot read run %s directly: %s", task_id, error)
            continue
        # Read the log until the run starts executing here, which adds deltas.
        log_timeout = asyncio.timeout(None)
        stop = here.watch(task_id, partial(log_timeout.reschedule, 0))
        try:
            async with log_timeout:
                position = reading.cursor, reading.last
                if not await _has_all(log, task_id, *position):
                    deltas = log.takes_deltas
                    await reading.read(follow_on(log, task_id, *position, strict=strict, deltas=deltas, until="end"))
                return
        except TimeoutError:
            if not log_timeout.expired():
                raise
        finally:
            stop()


async def _has_all(log: EventLog, task_id: str, after: str | None, last: Event | None) -> bool:
    """Return True if the run has ended and the reader has received its last event."""
    record = await read_log(log.get_record, task_id)
    if after is None or record.state not in OVER:
        return False
    if last is not None and last.timestamp != record.updated:
        # After a rollback, another event may have been logged under the same number.
        return False
    cursor = read_cursor(after, strict=False)
    return (cursor.task_id, cursor.attempt, cursor.seq) == (task_id, record.attempt, record.seq)


class _Progress:
    """Position of a reader within a run."""

    def __init__(self, log: EventLog, task_id: str, after: str | None, push: Push[AnyEvent], gate: Gate) -> None:
        self.cursor = after
        self.last: Event | None = None
        """Last durable event."""
        self.over = False
        self._log, self._task_id = log, task_id
        self._push = push
        self._gate = gate

    async def read(self, events: Stream[AnyEvent]) -> None:
        """Forward events until either the stream or the run has ended."""
        async with aclosing(aiter(events)) as reader:
            async for event in reader:
                if isinstance(event, StatusUpdateEvent) and ends_attempt(event):
                    last = (await read_log(self._log.get_record, self._task_id)).seq
                    if event.state == "working" or event.seq > last:
                        # The attempt has ended without being logged, so continue with the log.
                        continue
                    # Failed or cancelled runs may have been resumed since.
                    self.over = event.state in OVER and event.seq == last
                self._push(event)
                self.cursor = event.cursor
                self.last = event if event.durable else self.last
                if self.over:
                    return
                if self._gate.closed:
                    await self._gate.wait()
