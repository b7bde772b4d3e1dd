"""Event stream of a stored run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Literal, cast

from reactivex import Observable

from rxloop.coordination.order import is_dropped
from rxloop.errors import ConfigurationError, LogRolledBack
from rxloop.operators.views.filters import public
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.log_retry import read_log
from rxloop.pipeline.records import RunRecord, Until
from rxloop.protocol.events import AnyEvent, Event, State, StatusUpdateEvent, ends_attempt
from rxloop.protocol.ids import Cursor, has_unread, make_gap, read_cursor
from rxloop.storage.rules import same, went_back
from rxloop.stream.back_pressure import Gate, Overflow
from rxloop.stream.readers import Frames
from rxloop.stream.sources import Push, from_task
from rxloop.stream.stream import ReadOnlyHold, Stream
from rxloop.support.tasks import close_iterator

OVER: tuple[State, ...] = ("completed", "failed", "canceled")
"""The states in which nobody goes on with a run unless somebody asks for it."""


async def is_over(log: EventLog, record: RunRecord) -> bool:
    """Tell whether nothing more comes of a run unless it is resumed: it ended, or a later run dropped its questions."""
    return record.state in OVER or await is_dropped(log, record)


class RecordedStream(Stream[AnyEvent]):
    """A stream of events out of a log. Each subscriber and each iterator reads the log for itself."""

    def __init__(
        self,
        source: Observable[Event],
        *,
        buffer: int = 1024,
        run: tuple[EventLog, str] | None = None,
        until: Until = "attempt",
        reading: ReadOnlyHold | None = None,
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
        super().__init__(
            cast("Observable[AnyEvent]", source), reading or ReadOnlyHold(), overflow=overflow, buffer=buffer
        )
        self._run = run
        self._goes_on = until == "end"

    def sse(self, heartbeat: float | None = 15) -> AsyncIterator[bytes]:
        """Give the public events as server-sent events, as `Run.sse` does.

        Args:
            heartbeat: Seconds of silence after which a comment line is sent; None sends none.
        """
        return Frames(aiter(self.pipe(public())), heartbeat)

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
        return has_unread(cursor, events[-1]) or not await self._is_over(log, task_id, events[-1])

    async def _is_over(self, log: EventLog, task_id: str, last: Event) -> bool:
        if not (isinstance(last, StatusUpdateEvent) and ends_attempt(last)):
            return False
        return not self._goes_on or last.state in OVER or await is_dropped(log, await read_log(log.get_record, task_id))


def follow(
    log: EventLog,
    task_id: str,
    *,
    after: str | None = None,
    strict: bool = True,
    deltas: bool = False,
    until: Literal["attempt", "end"] = "attempt",
) -> RecordedStream:
    """Follow a run that is being written, maybe in another process: the events that are there, then those that come.

    ::

        log                         abc   d----e--F
        follow(after="run/1.2.0")   --c---d----e--F|

    There is neither a gap nor a duplicate up to the final event of the attempt, or of the run. If the cursor lies in a
    part of an attempt that was lost in a crash, or is not of this run, a `gap` event comes first, and then everything
    that the reader needs: from the place where the lost part began, or from the first event.

    A log may go back in time, when it is restored or fails over to a server that lacks its last moments. A reader that
    has an event which is not there any more, or another one in its place, gets `LogRolledBack`, or a `gap` if it is not
    strict: what it has is void.

    Args:
        log: Where the run is written.
        task_id: The run.
        after: The cursor of the last event that the reader has.
        strict: Refuse what is not a cursor; otherwise it counts as that of an unknown run. And end with `LogRolledBack`
            if the log goes back; otherwise a `gap` says so, and the whole run follows.
        deltas: Give the deltas too, where the log keeps them.
        until: `"end"` goes on over pauses and attempts until the run is completed or failed, or a later run of its
            conversation drops the questions that it waits with.

    Returns:
        A stream. `UnknownRun` ends it if the log holds no such run.

    Raises:
        ConfigurationError: `after` is not a cursor, or `until` is neither of the two.
    """
    return follow_on(log, task_id, after, None, strict=strict, deltas=deltas, until=until)


def follow_on(
    log: EventLog,
    task_id: str,
    after: str | None,
    known: Event | None,
    *,
    strict: bool,
    deltas: bool,
    until: Literal["attempt", "end"],
) -> RecordedStream:
    """Follow a run as `follow` does.

    Args:
        log: As for `follow`.
        task_id: As for `follow`.
        after: As for `follow`.
        known: The last durable event that the reader has, by which is seen that it is not the one in the log.
        strict: As for `follow`.
        deltas: As for `follow`.
        until: As for `follow`.
    """
    cursor = read_cursor(after, strict=strict) if after is not None else None
    if until not in ("attempt", "end"):
        raise ConfigurationError(f"until must be 'attempt' or 'end', not {until!r}")
    # Only what is asked for, so that a log of the user's own need not know these options.
    options: dict[str, Any] = {**({"deltas": True} if deltas else {}), **({"until": until} if until == "end" else {})}

    reading = ReadOnlyHold()

    async def work(push: Push[Event]) -> None:
        await _Follower(log, task_id, cursor, after, known, push, reading.gate).follow(strict, **options)

    source = from_task(work, name="rxloop-follow")
    return RecordedStream(source, run=(log, task_id), until=until, reading=reading)


class _Follower:
    """One reader of a run that is being written."""

    def __init__(
        self,
        log: EventLog,
        task_id: str,
        cursor: Cursor | None,
        after: str | None,
        known: Event | None,
        push: Push[Event],
        gate: Gate,
    ) -> None:
        self._log = log
        self._task_id = task_id
        self._cursor = cursor
        """That of the reader, until an event has come that it does not have."""
        self._after = after
        self._known = known
        self._push = push
        self._gate = gate

    async def follow(self, strict: bool, **options: Any) -> None:
        """Deliver what the reader does not have, until the attempt ends, or as the options for the log say."""
        if "until" in options and await is_dropped(self._log, await read_log(self._log.get_record, self._task_id)):
            # What there is up to its last pause is all that there will be.
            del options["until"]
        while True:
            try:
                last = await self._read(await self._begin() if self._cursor is not None else 0, **options)
                if self._cursor is None or last >= self._cursor.seq:
                    return
                # The attempt is over, and has not come as far as the reader.
                await self._anew("unknown-cursor")
            except LogRolledBack:
                if strict:
                    raise
                await self._anew("log-went-back")

    async def _anew(self, reason: Literal["unknown-cursor", "log-went-back"]) -> None:
        """Take nothing for known any more, and say so."""
        self._cursor = self._known = None
        self._gap((await read_log(self._log.read, self._task_id))[0], reason)

    async def _read(self, begin: int, **options: Any) -> int:
        """Deliver what comes after an event; give the last event that there is."""
        expected = begin + 1
        events = self._log.follow(self._task_id, after_seq=begin, **options)
        try:
            async for event in events:
                if self._gate.closed:
                    await self._gate.wait()
                if not event.durable:
                    if self._cursor is None or (event.seq, event.sub) > self._cursor[2:]:
                        self._deliver(event)
                    continue
                cursor, self._cursor = self._cursor, None
                if cursor is not None and event.attempt <= cursor.attempt and event.seq <= cursor.seq:
                    # Published before it was in the log: the reader has it from the run itself.
                    self._check(event)
                    self._cursor = cursor
                elif cursor is not None and event.attempt > cursor.attempt and cursor[2:] > (event.seq - 1, 0):
                    self._gap(event, "lost-attempt")
                    self._deliver(event)
                else:
                    if event.seq > expected:
                        self._gap(event, "trimmed", event.seq - expected)
                    self._deliver(event)
                expected = event.seq + 1
            return expected - 1
        finally:
            await close_iterator(events)

    def _deliver(self, event: Event) -> None:
        self._after = event.cursor
        self._push(event)

    def _check(self, event: Event) -> None:
        """Check that an event of the log is the one that the reader has, if that is known.

        Raises:
            LogRolledBack: It is another one, and not of a later attempt either.
        """
        known = self._known
        if known is not None and (known.attempt, known.seq) == (event.attempt, event.seq) and not same(known, event):
            raise went_back(self._task_id, event.seq)

    async def _begin(self) -> int:
        """Find the `seq` after which the reader has to go on; send it a gap if its cursor is not of this run."""
        cursor = self._cursor
        assert cursor is not None
        if cursor.task_id == self._task_id and cursor.attempt > 0:
            # Where the cursor is good, the event at it is all that has to be read beside what follows.
            held = await read_log(self._log.read, self._task_id, after_seq=max(cursor.seq - 1, 0))
            if cursor.seq and held:
                self._check(held[0])
            if not cursor.seq or (held and (held[0].seq > cursor.seq or held[0].attempt == cursor.attempt)):
                return cursor.seq
        whole = await read_log(self._log.read, self._task_id)
        if cursor.task_id == self._task_id and cursor.attempt > 0:
            later = next((event for event in whole if event.attempt > cursor.attempt), None)
            if later is not None and later.seq <= cursor.seq:
                return later.seq - 1
            if cursor.seq > whole[-1].seq and not ends_attempt(whole[-1]):
                # The run is ahead of its log; the next event in it shows whether the reader has it.
                return whole[-1].seq
        await self._anew("unknown-cursor")
        return 0

    def _gap(
        self,
        event: Event,
        reason: Literal["unknown-cursor", "lost-attempt", "trimmed", "log-went-back"],
        count: int | None = None,
    ) -> None:
        self._push(make_gap(event, reason, self._after, count=count, timestamp=event.timestamp))
