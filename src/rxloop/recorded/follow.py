"""Runs that are being written, maybe by another process."""

from __future__ import annotations

from typing import Any, Literal

from rxloop.errors import ConfigurationError
from rxloop.operators.views.after import Cursor, gap_before, read_cursor
from rxloop.pipeline.logs import EventLog
from rxloop.protocol.events import Event, ends_attempt
from rxloop.recorded.stream import RecordedStream
from rxloop.state.conversation import read_log
from rxloop.stream.bridges import Push, from_task
from rxloop.stream.reading import Reading
from rxloop.stream.scope import Gate


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

    Args:
        log: Where the run is written.
        task_id: The run.
        after: The cursor of the last event that the reader has.
        strict: Refuse what is not a cursor; otherwise it counts as that of an unknown run.
        deltas: Give the deltas too, where the log keeps them.
        until: `"end"` goes on over pauses and attempts until the run is completed or failed.

    Returns:
        A stream. `UnknownRun` ends it if the log holds no such run.

    Raises:
        ConfigurationError: `after` is not a cursor, or `until` is neither of the two.
    """
    cursor = read_cursor(after, strict=strict) if after is not None else None
    if until not in ("attempt", "end"):
        raise ConfigurationError(f"until must be 'attempt' or 'end', not {until!r}")
    # Only what is asked for, so that a log of the user's own need not know these options.
    options: dict[str, Any] = {**({"deltas": True} if deltas else {}), **({"until": until} if until == "end" else {})}

    reading = Reading()

    async def work(push: Push[Event]) -> None:
        await _Follower(log, task_id, cursor, after, push, reading.gate).follow(**options)

    source = from_task(work, name="rxloop-follow")
    return RecordedStream(source, run=(log, task_id), until=until, reading=reading)


class _Follower:
    """One reader of a run that is being written."""

    def __init__(
        self, log: EventLog, task_id: str, cursor: Cursor | None, after: str | None, push: Push[Event], gate: Gate
    ) -> None:
        self._log = log
        self._task_id = task_id
        self._cursor = cursor
        self._after = after
        self._push = push
        self._gate = gate

    async def follow(self, **options: Any) -> None:
        """Deliver what the reader does not have, until the attempt ends, or as the options for the log say."""
        begin = await self._begin() if self._cursor is not None else 0
        expected = begin + 1
        events = self._log.follow(self._task_id, after_seq=begin, **options)
        try:
            async for event in events:
                if self._gate.closed:
                    await self._gate.wait()
                if not event.durable:
                    if self._cursor is None or (event.seq, event.sub) > self._cursor[2:]:
                        self._push(event)
                    continue
                cursor, self._cursor = self._cursor, None
                if cursor is not None and event.attempt <= cursor.attempt and event.seq <= cursor.seq:
                    # Published before it was in the log: the reader has it from the run itself.
                    self._cursor = cursor
                elif cursor is not None and event.attempt > cursor.attempt and cursor[2:] > (event.seq - 1, 0):
                    self._gap(event, "lost-attempt")
                    self._push(event)
                else:
                    if event.seq > expected:
                        self._gap(event, "trimmed", event.seq - expected)
                    self._push(event)
                expected = event.seq + 1
        finally:
            # At once: an iteration that was cancelled would otherwise wait for the collector.
            close = getattr(events, "aclose", None)
            if close is not None:
                await close()

    async def _begin(self) -> int:
        """Find the `seq` after which the reader has to go on; send it a gap if its cursor is not of this run."""
        cursor = self._cursor
        assert cursor is not None
        if cursor.task_id == self._task_id and cursor.attempt > 0:
            # Where the cursor is good, the event at it is all that has to be read beside what follows.
            held = await read_log(self._log.read, self._task_id, after_seq=max(cursor.seq - 1, 0))
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
        self._cursor = None
        self._gap(whole[0], "unknown-cursor")
        return 0

    def _gap(
        self, event: Event, reason: Literal["unknown-cursor", "lost-attempt", "trimmed"], count: int | None = None
    ) -> None:
        self._push(gap_before(event, reason, self._after, count=count, timestamp=event.timestamp))
