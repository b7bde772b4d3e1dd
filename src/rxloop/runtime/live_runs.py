"""Runs executed in this process, as streams over pauses and processes."""

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


class Driven:
    """The runs that this process drives at the moment."""

    def __init__(self) -> None:
        self._runs: dict[str, Run[Any]] = {}
        self._watching: dict[str, set[Callable[[], None]]] = {}
        self._everybody: set[Callable[[Run[Any]], None]] = set()
        self.events: Stream[AnyEvent] = Stream(Observable(self._subscribe), ReadOnlyHold())
        """The events of all of them: of those that go on, and of those that come."""

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run[Any]]:
        return iter(tuple(self._runs.values()))

    def run(self, task_id: str) -> Run[Any] | None:
        """The run, if it is driven here at the moment."""
        return self._runs.get(task_id)

    def begun(self, run: Run[Any]) -> None:
        """Take note that an attempt of a run begins here."""
        self._runs[run.task_id] = run
        for tell in list(self._everybody):
            tell(run)
        for tell in self._watching.pop(run.task_id, ()):
            tell()

    def ended(self, task_id: str) -> None:
        """Take note that nothing of the run goes on here."""
        self._runs.pop(task_id, None)

    def watch(self, task_id: str, begun: Callable[[], None]) -> Callable[[], None]:
        """Be told when the run begins to be driven here, until the function that is returned is called."""
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

        def tell(run: Run[Any]) -> None:
            merging.add(run.events)

        for run in self:
            tell(run)
        self._everybody.add(tell)
        return CompositeDisposable(merging.subscriptions, Disposable(lambda: self._everybody.discard(tell)))


logger = logging.getLogger("rxloop")


class Here(Protocol):
    """The runs that this process drives."""

    def run(self, task_id: str) -> Run[Any] | None:
        """The run, if it is driven here at the moment."""
        ...

    def watch(self, task_id: str, begun: Callable[[], None]) -> Callable[[], None]:
        """Be told when the run begins to be driven here, until the function that is returned is called."""
        ...


def followed(log: EventLog, here: Here, task_id: str, after: str | None, *, strict: bool) -> RecordedStream:
    """The events of a run after a cursor, until it is over.

    From the run itself while it is driven here, deltas included, and out of the log otherwise. A reader that is slow
    holds back its own reading, and nobody else's.
    """
    if after is not None and not read_cursor(after, strict=strict).task_id:
        after = UNKNOWN
    hold = ReadOnlyHold()

    async def work(push: Push[AnyEvent]) -> None:
        # It goes on for as long as the run does, though a client waits for its beginning.
        with within(None):
            await _read(log, here, task_id, _Progress(log, task_id, after, push, hold.gate), strict)

    source = from_task(work, name=f"rxloop-follow-{task_id}")
    return RecordedStream(source, run=(log, task_id), until="end", reading=hold)


async def _read(log: EventLog, here: Here, task_id: str, reading: _Progress, strict: bool) -> None:
    """Deliver the events that a reader does not have, from wherever they come first."""
    read: Run[Any] | None = None
    while not reading.over:
        run = here.run(task_id)
        # An attempt that is over is still driven for a moment.
        if run is not None and run is not read:
            read = run
            # From the first event of the run, and not of the attempt.
            live = run.stream(after=reading.cursor or f"{task_id}/0.0.0")
            try:
                await reading.read(live)
            except Exception as error:
                # An attempt that was refused is not the end of the run: the log tells how it goes on.
                logger.debug("the run %s cannot be read live: %s", task_id, error)
            continue
        # From the log until the run is driven here: that has the deltas.
        with_log = asyncio.timeout(None)
        stop = here.watch(task_id, partial(with_log.reschedule, 0))
        try:
            async with with_log:
                place = reading.cursor, reading.last
                if not await _has_all(log, task_id, *place):
                    deltas = log.takes_deltas
                    await reading.read(follow_on(log, task_id, *place, strict=strict, deltas=deltas, until="end"))
                return
        except TimeoutError:
            if not with_log.expired():
                raise
        finally:
            stop()


async def _has_all(log: EventLog, task_id: str, after: str | None, last: Event | None) -> bool:
    """Whether a run is over, and its reader has its last event."""
    record = await read_log(log.get_record, task_id)
    if after is None or record.state not in OVER:
        return False
    if last is not None and last.timestamp != record.updated:
        # The log may have gone back: then it has another one under that number.
        return False
    cursor = read_cursor(after, strict=False)
    return (cursor.task_id, cursor.attempt, cursor.seq) == (task_id, record.attempt, record.seq)


class _Progress:
    """How far a reader of a run is."""

    def __init__(self, log: EventLog, task_id: str, after: str | None, push: Push[AnyEvent], gate: Gate) -> None:
        self.cursor = after
        self.last: Event | None = None
        """The last durable event."""
        self.over = False
        self._log, self._task_id = log, task_id
        self._push = push
        self._gate = gate

    async def read(self, events: Stream[AnyEvent]) -> None:
        """Pass events on, until there are no more, or the run is over."""
        async with aclosing(aiter(events)) as reader:
            async for event in reader:
                if isinstance(event, StatusUpdateEvent) and ends_attempt(event):
                    last = (await read_log(self._log.get_record, self._task_id)).seq
                    if event.state == "working" or event.seq > last:
                        # That attempt is over here, and the log has nothing of its end: it tells how the run goes on.
                        continue
                    # A run that has failed, or was cancelled, may have gone on since.
                    self.over = event.state in OVER and event.seq == last
                self._push(event)
                self.cursor = event.cursor
                self.last = event if event.durable else self.last
                if self.over:
                    return
                if self._gate.closed:
                    await self._gate.wait()
