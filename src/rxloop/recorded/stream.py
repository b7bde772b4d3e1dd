"""The stream of the events that a log holds of a run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import cast

from reactivex import Observable, abc

from rxloop.errors import RxloopError
from rxloop.operators.views.after import is_behind, read_cursor
from rxloop.operators.views.public import public
from rxloop.pipeline.logs import EventLog
from rxloop.protocol.events import AnyEvent, Event, ends_attempt
from rxloop.state.conversation import read_log
from rxloop.stream.scheduler import RunScheduler
from rxloop.stream.scope import Gate
from rxloop.stream.sse import frames
from rxloop.stream.stream import Stream


class _Reading:
    """The share in a run that is read from its log: there is nothing to start, to hold or to hold back."""

    def __init__(self) -> None:
        self.gate = Gate()

    def scheduler(self) -> abc.SchedulerBase:
        try:
            return RunScheduler(asyncio.get_running_loop())
        except RuntimeError:
            raise RxloopError(
                "reading a log needs a running event loop of asyncio (trio is not supported): do it inside async code"
            ) from None

    def keep(self) -> Callable[[], None]:
        return lambda: None


class RecordedStream(Stream[AnyEvent]):
    """A stream of events out of a log. Each subscriber and each iterator reads the log for itself."""

    def __init__(
        self, source: Observable[Event], *, buffer: int = 1024, run: tuple[EventLog, str] | None = None
    ) -> None:
        """Make a stream of what comes from a log.

        Args:
            source: The events.
            buffer: That of a reader, as for `Run.stream`.
            run: Where they come from: the log and the id of the run.
        """
        super().__init__(cast("Observable[AnyEvent]", source), _Reading(), buffer=buffer)
        self._run = run

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
        return not ends_attempt(events[-1]) or is_behind(cursor, events[-1])
