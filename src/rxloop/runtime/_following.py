"""One run as a stream, wherever it is driven, over its pauses and attempts."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from typing import Any, Protocol, cast

from reactivex import Subject

from rxloop.operators.views.after import after as after_cursor
from rxloop.pipeline.logs import EventLog
from rxloop.protocol.events import AnyEvent, Event, StatusUpdateEvent, ends_attempt
from rxloop.run.handle import Run
from rxloop.runtime._hold import OwnLoop
from rxloop.state.conversation import read_log
from rxloop.stream.bridges import Push, from_task
from rxloop.stream.stream import Reader, Stream

logger = logging.getLogger("rxloop")

OVER = ("completed", "failed", "canceled")
"""The states in which nobody goes on with a run unless somebody asks for it."""


class Here(Protocol):
    """The runs that this process drives."""

    def run(self, task_id: str) -> Run[Any] | None:
        """The run, if it is driven here at the moment."""
        ...

    def watch(self, task_id: str, begun: Callable[[], None]) -> Callable[[], None]:
        """Be told when the run begins to be driven here, until the function that is returned is called."""
        ...


def followed(log: EventLog, here: Here, task_id: str, after: str | None) -> Stream[AnyEvent]:
    """The events of a run after a cursor, until it is over.

    From the run itself while it is driven here, deltas included, and out of the log otherwise. A reader that is slow
    holds back its own reading, and nobody else's.
    """
    hold = OwnLoop()

    async def work(push: Push[AnyEvent]) -> None:
        reading = _Reading(log, task_id, after, push, hold)
        read: Run[Any] | None = None
        while not reading.over:
            run = here.run(task_id)
            # An attempt that is over is still driven for a moment.
            if run is not None and run is not read:
                read = run
                try:
                    await reading.read(aiter(run.stream(after=reading.cursor)))
                except Exception as error:
                    # An attempt that was refused is not the end of the run: the log tells how it goes on.
                    logger.debug("the run %s cannot be read live: %s", task_id, error)
                continue
            # From the log until the run is driven here: that has the deltas.
            with_log = asyncio.timeout(None)
            stop = here.watch(task_id, partial(with_log.reschedule, 0))
            try:
                async with with_log:
                    await reading.read(_logged(log, task_id, reading.cursor))
                    return
            except TimeoutError:
                if not with_log.expired():
                    raise
            finally:
                stop()

    return Stream(from_task(work, name=f"rxloop-follow-{task_id}"), hold, overflow="block")


class _Reading:
    """How far a reader of a run is."""

    def __init__(self, log: EventLog, task_id: str, after: str | None, push: Push[AnyEvent], hold: OwnLoop) -> None:
        # The cursor of a reader that has nothing lies before the first event.
        self.cursor = after or f"{task_id}/0.0.0"
        self.over = False
        self._log, self._task_id = log, task_id
        self._push = push
        self._gate = hold.gate

    async def read(self, events: AsyncGenerator[Event] | Reader[AnyEvent]) -> None:
        """Pass events on, until there are no more, or the run is over."""
        async with aclosing(events):
            async for event in events:
                if isinstance(event, StatusUpdateEvent) and ends_attempt(event):
                    last = (await read_log(self._log.record, self._task_id)).seq
                    if event.state == "working" or event.seq > last:
                        # That attempt is over here, and the log has nothing of its end: it tells how the run goes on.
                        continue
                    # A run that has failed, or was cancelled, may have gone on since.
                    self.over = event.state in OVER and event.seq == last
                self._push(cast("AnyEvent", event))
                self.cursor = event.cursor
                if self.over:
                    return
                if self._gate.closed:
                    await self._gate.wait()


async def _logged(log: EventLog, task_id: str, cursor: str) -> AsyncGenerator[Event]:
    """What the log has after a cursor, and what comes, until the run is over."""
    source: Subject[Event] = Subject()
    wanted: deque[Event] = deque()
    after_cursor(cursor)(source).subscribe(wanted.append)
    async for event in log.follow(task_id, deltas=log.keeps_deltas, until="end"):
        source.on_next(event)
        while wanted:
            yield wanted.popleft()
        # A run that was cancelled can be resumed, and then this event is not its last.
        canceled = isinstance(event, StatusUpdateEvent) and ends_attempt(event) and event.state == "canceled"
        if canceled and (await read_log(log.record, task_id)).seq == event.seq:
            return
