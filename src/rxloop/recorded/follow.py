"""Event stream of a stored run."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
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
from rxloop.storage.log_urls import check_log
from rxloop.storage.rules import is_same, make_rollback_error
from rxloop.stream.back_pressure import Gate, Overflow, WindowedPush
from rxloop.stream.readers import Frames
from rxloop.stream.sources import Push, from_task
from rxloop.stream.stream import ReadOnlyHold, Stream
from rxloop.support.tasks import close_iterator

FINAL_STATES: tuple[State, ...] = ("completed", "failed", "canceled")
"""Final run states. A run in one of these can still be resumed explicitly."""


async def is_over(log: EventLog, record: RunRecord) -> bool:
    """Return True if a run has ended, or a later run has dropped its questions."""
    return record.state in FINAL_STATES or await is_dropped(log, record)


async def read_pages(
    log: EventLog, task_id: str, *, last_seq: int, after_seq: int = 0, deltas: bool = False
) -> AsyncGenerator[Event]:
    """Yield stored events without reading the whole run at once, if the log has pages.

    Args:
        log: Event log.
        task_id: Task id.
        last_seq: `seq` of the last event, which must be stored.
        after_seq: Skip events up to this `seq`.
        deltas: Whether to include deltas between these events.
    """
    if after_seq >= last_seq:
        return
    # Omit defaults, so that custom logs need not support this option.
    options: dict[str, Any] = {"deltas": True} if deltas else {}
    events = log.follow(task_id, after_seq=after_seq, **options)
    try:
        async for event in events:
            if event.seq > last_seq:
                return
            yield event
            if event.durable and event.seq == last_seq:
                return
    finally:
        await close_iterator(events)


_CHUNK_EVENTS, _CHUNK_BYTES = 200, 1 << 18
"""Maximum number of events in a chunk, and size in bytes after which a chunk ends."""


async def read_chunks(log: EventLog, task_id: str, *, last_seq: int, after_seq: int = 0) -> AsyncGenerator[list[Event]]:
    """Yield stored events in small lists, each of which can be processed without blocking the event loop for long.

    Args:
        log: As in `read_pages`.
        task_id: As in `read_pages`.
        last_seq: As in `read_pages`.
        after_seq: As in `read_pages`.
    """
    chunk, size = list[Event](), 0
    async with aclosing(read_pages(log, task_id, after_seq=after_seq, last_seq=last_seq)) as events:
        async for event in events:
            chunk.append(event)
            size += event.decoded_size
            if len(chunk) >= _CHUNK_EVENTS or size >= _CHUNK_BYTES:
                yield chunk
                chunk, size = [], 0
    if chunk:
        yield chunk


async def read_first(log: EventLog, task_id: str, *, after_seq: int = 0) -> Event | None:
    """Return the first event after `after_seq`, or None if there is none."""
    last_seq = (await read_log(log.get_record, task_id)).seq
    async with aclosing(read_pages(log, task_id, after_seq=after_seq, last_seq=last_seq)) as events:
        return await anext(events, None)


class RecordedStream(Stream[AnyEvent]):
    """Stream of events from a log. Each subscriber and iterator reads the log separately."""

    def __init__(
        self,
        source: Observable[Event],
        *,
        buffer: int = 1024,
        run: tuple[EventLog, str] | None = None,
        until: Until = "attempt",
        reading: ReadOnlyHold | None = None,
    ) -> None:
        """Create a stream.

        Args:
            source: Events.
            buffer: Buffer size for a reader, as in `Run.stream`.
            run: The log and the task id.
            until: End of the stream, `"attempt"` or `"end"`.
            reading: Provides the gate that pauses the source for slow readers. The default never pauses it.
        """
        overflow: Overflow = "coalesce" if reading is None else "block"
        super().__init__(
            cast("Observable[AnyEvent]", source), reading or ReadOnlyHold(), overflow=overflow, buffer=buffer
        )
        self._run = run
        self._all_attempts = until == "end"

    def sse(self, heartbeat: float | None = 15) -> AsyncIterator[bytes]:
        """Return the public events as server-sent events, like `Run.sse`.

        Args:
            heartbeat: Seconds without events after which a comment is sent. None disables comments.
        """
        return Frames(aiter(self.pipe(public())), heartbeat)

    async def has_more(self, after: str | None) -> bool:
        """Return True if there are events for a client that reconnects, like `Run.has_more`, based on the current log.

        Args:
            after: The client's `Last-Event-ID`.

        Raises:
            UnknownRun: The log does not contain the run.
        """
        if self._run is None:
            return True
        log, task_id = self._run
        cursor = read_cursor(after or "", strict=False)
        last_seq = (await read_log(log.get_record, task_id)).seq
        last = (await read_log(log.read, task_id, after_seq=last_seq - 1))[-1]
        return has_unread(cursor, last) or not await self._is_over(log, task_id, last)

    async def _is_over(self, log: EventLog, task_id: str, last: Event) -> bool:
        if not (isinstance(last, StatusUpdateEvent) and ends_attempt(last)):
            return False
        return (
            not self._all_attempts
            or last.state in FINAL_STATES
            or await is_dropped(log, await read_log(log.get_record, task_id))
        )


def follow(
    log: EventLog,
    task_id: str,
    *,
    after: str | None = None,
    strict: bool = True,
    deltas: bool = False,
    until: Literal["attempt", "end"] = "attempt",
) -> RecordedStream:
    """Follow a run that is being written, perhaps in another process.

    ::

        log                         abc   d----e--F
        follow(after="run/1.2.0")   --c---d----e--F|

    There are no gaps or duplicates before the final event. If the cursor belongs to another run, or to events that were
    lost in a crash, the stream starts with a `gap` event, followed by all events since the first one that was lost.

    After a restore or failover, a log may lack events that a reader already has, or have others instead. The stream
    then fails with `LogRolledBack`, or emits a `gap` if `strict` is False. The reader must discard its events.

    Args:
        log: Event log.
        task_id: Task id.
        after: Cursor of the last event that the reader has.
        strict: Whether to reject an invalid cursor, and to fail if the log was rolled back. If False, the stream starts
            with a `gap` event in both cases.
        deltas: Whether to include deltas, if the log keeps them.
        until: `"attempt"` ends with the current attempt. `"end"` continues until the run has ended, or a later run in
            the conversation drops its questions.

    Returns:
        Stream of events. It fails with `UnknownRun` if the log does not contain the run.

    Raises:
        ConfigurationError: `after` or `until` is invalid.
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
    """Follow a run like `follow`, and check the reader's last event.

    Args:
        log: As in `follow`.
        task_id: As in `follow`.
        after: As in `follow`.
        known: The reader's last durable event, used to detect that the log was rolled back.
        strict: As in `follow`.
        deltas: As in `follow`.
        until: As in `follow`.
    """
    check_log(log)
    cursor = read_cursor(after, strict=strict) if after is not None else None
    if until not in ("attempt", "end"):
        raise ConfigurationError(f"until must be 'attempt' or 'end', got {until!r}")
    # Omit defaults, so that custom logs need not support these options.
    options: dict[str, Any] = {**({"deltas": True} if deltas else {}), **({"until": until} if until == "end" else {})}

    reading = ReadOnlyHold()

    async def work(push: Push[Event]) -> None:
        await _Follower(log, task_id, cursor, after, known, push, reading.gate).follow(strict, **options)

    source = from_task(work, name="rxloop-follow")
    return RecordedStream(source, run=(log, task_id), until=until, reading=reading)


class _Follower:
    """Reader for an active run."""

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
        """Cursor of the reader. None after the first new event."""
        self._after = after
        self._known = known
        self._push = push
        self._windowed_push = WindowedPush(push, gate)

    async def follow(self, strict: bool, **options: Any) -> None:
        """Push new events. `until` determines the end, as in `follow`."""
        if "until" in options and await is_dropped(self._log, await read_log(self._log.get_record, self._task_id)):
            # The run cannot continue after its last pause.
            del options["until"]
        while True:
            try:
                last = await self._read(await self._begin() if self._cursor is not None else 0, **options)
                if self._cursor is None or last >= self._cursor.seq:
                    return
                # The attempt ended before reaching the reader's cursor.
                await self._restart("unknown-cursor")
            except LogRolledBack:
                if strict:
                    raise
                await self._restart("log-went-back")

    async def _restart(self, reason: Literal["unknown-cursor", "log-went-back"]) -> None:
        """Emit a gap and restart at the first event."""
        self._cursor = self._known = None
        first = await read_first(self._log, self._task_id)
        if first is not None:
            self._push_gap(first, reason)

    async def _read(self, begin: int, **options: Any) -> int:
        """Push all events after `begin` and return the last seq."""
        expected = begin + 1
        events = self._log.follow(self._task_id, after_seq=begin, **options)
        try:
            async for event in events:
                if not event.durable:
                    if self._cursor is None or (event.seq, event.sub) > self._cursor[2:]:
                        await self._deliver(event)
                    continue
                cursor, self._cursor = self._cursor, None
                if cursor is not None and event.attempt <= cursor.attempt and event.seq <= cursor.seq:
                    # The reader received this event before the log did.
                    self._check(event)
                    self._cursor = cursor
                elif cursor is not None and event.attempt > cursor.attempt and cursor[2:] > (event.seq - 1, 0):
                    self._push_gap(event, "lost-attempt")
                    await self._deliver(event)
                else:
                    if event.seq > expected:
                        self._push_gap(event, "trimmed", event.seq - expected)
                    await self._deliver(event)
                expected = event.seq + 1
            return expected - 1
        finally:
            await close_iterator(events)

    async def _deliver(self, event: Event) -> None:
        self._after = event.cursor
        await self._windowed_push(event)

    def _check(self, event: Event) -> None:
        """Compare an event with the reader's version.

        Raises:
            LogRolledBack: The log contains a different event from the same attempt.
        """
        known = self._known
        if known is not None and (known.attempt, known.seq) == (event.attempt, event.seq) and not is_same(known, event):
            raise make_rollback_error(self._task_id, event.seq)

    async def _begin(self) -> int:
        """Return the seq after which to continue, with a gap if the cursor belongs to another run."""
        cursor = self._cursor
        assert cursor is not None
        if cursor.task_id == self._task_id and cursor.attempt > 0:
            stored = await read_first(self._log, self._task_id, after_seq=max(cursor.seq - 1, 0))
            if cursor.seq and stored is not None:
                self._check(stored)
            if not cursor.seq or (stored is not None and (stored.seq > cursor.seq or stored.attempt == cursor.attempt)):
                return cursor.seq
            later, last = await self._find_later(cursor)
            if later is not None and later.seq <= cursor.seq:
                return later.seq - 1
            if last is not None and cursor.seq > last.seq and not ends_attempt(last):
                # The log may not be up to date yet. Use its next event to check the cursor.
                return last.seq
        await self._restart("unknown-cursor")
        return 0

    async def _find_later(self, cursor: Cursor) -> tuple[Event | None, Event | None]:
        """Return the first event of a later attempt than the cursor's, and the last event."""
        later: Event | None = None
        last: Event | None = None
        last_seq = (await read_log(self._log.get_record, self._task_id)).seq
        async with aclosing(read_pages(self._log, self._task_id, last_seq=last_seq)) as events:
            async for event in events:
                later, last = later or (event if event.attempt > cursor.attempt else None), event
        return later, last

    def _push_gap(
        self,
        event: Event,
        reason: Literal["unknown-cursor", "lost-attempt", "trimmed", "log-went-back"],
        count: int | None = None,
    ) -> None:
        self._push(make_gap(event, reason, self._after, count=count, timestamp=event.timestamp))
