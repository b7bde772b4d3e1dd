"""The stream of the events that a log holds of a run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import cast

from reactivex import Observable

from rxloop.operators.views.after import is_behind, read_cursor
from rxloop.operators.views.public import public
from rxloop.pipeline.logs import EventLog
from rxloop.pipeline.values import Until
from rxloop.protocol.events import AnyEvent, Event, State, StatusUpdateEvent, ends_attempt
from rxloop.state.conversation import read_log
from rxloop.stream.buffer import Overflow
from rxloop.stream.reading import Reading
from rxloop.stream.sse import frames
from rxloop.stream.stream import Stream

OVER: tuple[State, ...] = ("completed", "failed", "canceled")
"""The states in which nobody goes on with a run unless somebody asks for it."""


class RecordedStream(Stream[AnyEvent]):
    """A stream of events out of a log. Each subscriber and each iterator reads the log for itself."""

    def __init__(
        self,
        source: Observable[Event],
        *,
        buffer: int = 1024,
        run: tuple[EventLog, str] | None = None,
        until: Until = "attempt",
        reading: Reading | None = None,
    ) -> None:
        """Make a stream of what comes from a log.

        Args:
            source: The events.
            buffer: That of a reader, as for `Run.stream`.
            run: Where they come from: the log and the id of the run.
            until: Where they end.
            reading: Has the gate at which the source waits for a reader that is slow; without one it never waits.
        """
        overflow: Overflow = "coalesce" if reading is None else "block"
        super().__init__(cast("Observable[AnyEvent]", source), reading or Reading(), overflow=overflow, buffer=buffer)
        self._run = run
        self._goes_on = until == "end"

    def sse(self, heartbeat: float | None = 15) -> AsyncIterator[bytes]:
        """Give the public events as server-sent events, as `Run.sse` does.

        Args:
            heartbeat: Seconds of silence after which a comment line is sent; None sends none.
        """
        return frames(aiter(self.pipe(public())), heartbeat)

    async def has_more(self, after: str | None) -> bool:
        """Tell whether a client that comes back gets anything, like `Run.has_more`; by what the log has now.

        Args:
            after: Its `Last-Event-ID`.

        Raises:
            UnknownRun: The log holds no such run.
        """
        if self._run is None:
            return True
        log, task_id = self._run
        cursor = read_cursor(after or "", strict=False)
        # Of a good cursor at the end, one event is all that has to be read.
        from_there = cursor.seq - 1 if cursor.task_id == task_id and cursor.seq > 1 else 0
        events = await read_log(log.read, task_id, after_seq=from_there) or await read_log(log.read, task_id)
        return not self._is_over(events[-1]) or is_behind(cursor, events[-1])

    def _is_over(self, last: Event) -> bool:
        if not (isinstance(last, StatusUpdateEvent) and ends_attempt(last)):
            return False
        return not self._goes_on or last.state in OVER
