"""Runs as their logs have them: recorded ones once more, and running ones from another process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Literal

from reactivex import Observable, abc

from rxloop.errors import ConfigurationError, RxloopError
from rxloop.operators.views.after import Cursor, is_behind, read_cursor
from rxloop.operators.views.public import public
from rxloop.pipeline.seams import EventLog
from rxloop.protocol.events import Event, GapEvent, ends_attempt
from rxloop.run.result import Result
from rxloop.state.conversation import conversation, reading
from rxloop.state.run_state import RunState, fold_all
from rxloop.stream.bridges import Push, from_task
from rxloop.stream.scheduler import RunScheduler
from rxloop.stream.scope import Gate
from rxloop.stream.sse import frames
from rxloop.stream.stream import Stream
from rxloop.thoughts.graph import ThoughtGraph

_TURN = 256
"""Events that are delivered before the rest of the event loop has a turn."""
_ALL = 1 << 62


class _Reading:
    """The share in a run that only its log is asked for: there is nothing to start, to hold or to hold back."""

    def __init__(self) -> None:
        self.gate = Gate()

    def scheduler(self) -> abc.SchedulerBase:
        try:
            return RunScheduler(asyncio.get_running_loop())
        except RuntimeError:
            raise RxloopError(
                "reading a log needs a running event loop of asyncio (trio is not supported): do it inside async code"
            ) from None

    def hold(self) -> Callable[[], None]:
        return lambda: None


class RecordedStream(Stream[Event]):
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
        super().__init__(source, _Reading(), buffer=buffer)
        self._run = run

    def sse(self, heartbeat: float | None = 15) -> AsyncIterator[bytes]:
        """The public events as server-sent events, as `Run.sse` gives them.

        Args:
            heartbeat: Seconds of silence after which a comment line is sent; None sends none.
        """
        return frames(aiter(self.pipe(public())), heartbeat)

    async def has_more(self, after: str | None) -> bool:
        """Whether a client that comes back gets anything, as `Run.has_more` says it; by what the log has now.

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
        events = await reading(log.read, task_id, after_seq=from_there) or await reading(log.read, task_id)
        return not ends_attempt(events[-1]) or is_behind(cursor, events[-1])


class Replay(RecordedStream):
    """The events of a recorded run; `replay` makes one."""

    def __init__(
        self, log: EventLog, task_id: str, *, speed: float | None, deltas: bool, until: int | None = None
    ) -> None:
        """Replay a run up to the event `until`; the other arguments are those of `replay`."""
        # Everything is in memory when it is delivered: nothing is gained by merging deltas.
        super().__init__(from_task(self._play, name="rxloop-replay"), buffer=_ALL, run=(log, task_id))
        self._log = log
        self._task_id = task_id
        self._speed = speed
        self._deltas = deltas
        self._until = until

    def until(self, seq: int) -> Replay:
        """The replay up to the event with that `seq`, which is its last one.

        Raises:
            ConfigurationError: No event has such a number.
        """
        if seq < 1:
            raise ConfigurationError(f"until({seq}): the first event of a run has the seq 1")
        until = seq if self._until is None else min(seq, self._until)
        return Replay(self._log, self._task_id, speed=self._speed, deltas=self._deltas, until=until)

    async def state_at(self, seq: int) -> RunState:
        """The state of the run when the event with that `seq` was published, its conversation included.

        Raises:
            ConfigurationError: The run has no such event.
            UnknownRun: The log holds no such run.
        """
        events = await self._events(deltas=False)
        if not 1 <= seq <= len(events):
            raise ConfigurationError(f"the run {self._task_id} has the events 1 to {len(events)}, and none {seq}")
        return await self._fold(events[:seq])

    async def result(self) -> Result[str]:
        """What the run came to, or had come to at the end of this replay. Nothing is raised for a run that failed.

        Raises:
            UnknownRun: The log holds no such run.
        """
        events = await self._events(deltas=False)
        state = await self._fold(events)
        graph = ThoughtGraph()
        for event in events:
            graph = graph.add(event)
        return Result(
            task_id=self._task_id,
            context_id=events[0].context_id,
            state=state.state,
            reason=state.reason,
            messages=list(state.messages),
            usage=state.usage,
            thoughts=graph,
            content=state.content,
            finish_reason=state.last.finish_reason if state.last is not None else None,
            pending=list(state.pending.values()),
            error=state.error,
            compression=state.compression,
            parsed=state.content,
        )

    async def _fold(self, events: Sequence[Event]) -> RunState:
        return fold_all(events, await conversation(self._log, events[0].context_id, before=self._task_id))

    async def _events(self, *, deltas: bool) -> list[Event]:
        """The events of this replay, read anew."""
        events = await reading(self._log.read, self._task_id, deltas=deltas and self._log.keeps_deltas)
        until = (self._until or _ALL, 0)
        return [event for event in events if (event.seq, event.sub) <= until]

    async def _play(self, push: Push[Event]) -> None:
        events = await self._events(deltas=self._deltas)
        time = asyncio.get_running_loop().time
        due = time()
        for place, event in enumerate(events):
            if self._speed is not None and place and event.attempt == events[place - 1].attempt:
                # Counted from the beginning, so that what the readers take of it delays nothing.
                due += max(event.timestamp - events[place - 1].timestamp, 0) / 1000 / self._speed
                if due > time():
                    await asyncio.sleep(due - time())
            elif place % _TURN == _TURN - 1:
                await asyncio.sleep(0)
            push(event)


def replay(log: EventLog, task_id: str, *, speed: float | None = None, deltas: bool = True) -> Replay:
    """A recorded run once more, as a stream of its events. No model and no tool is called.

    ::

        recorded               --a----b--|   (a night)   --c----d--|
        replay(speed=2)        -a--b-c--d|
        replay().until(3)      abc|

    Every view works on it. Several attempts are replayed one right after the other.

    Args:
        log: Holds the run.
        task_id: The run.
        speed: 1 is the recorded pace, 4 four times as fast; None gives everything at once.
        deltas: Give the deltas too, where the log keeps them.

    Returns:
        A stream; what the log has at that time is read when it is subscribed. `UnknownRun` ends it if the log holds no
        such run.

    Raises:
        ConfigurationError: The speed is not more than 0.
    """
    if speed is not None and not speed > 0:
        raise ConfigurationError(f"speed must be more than 0, or None for all at once, not {speed!r}")
    return Replay(log, task_id, speed=speed, deltas=deltas)


def follow(
    log: EventLog,
    task_id: str,
    *,
    after: str | None = None,
    strict: bool = True,
    deltas: bool = False,
    until: Literal["attempt", "end"] = "attempt",
) -> RecordedStream:
    """The events of a run that somebody writes, maybe in another process: those that are there, then those that come.

    ::

        log                         abc   d----e--F
        follow(after="run/1.2.0")   --c---d----e--F|

    Without gap and without duplicate, up to the final event of the run's attempt, or of the run. Where the cursor lies
    in a part of an attempt that was lost in a crash, or is not of this run, a `gap` event comes first, and then
    everything that the reader needs: from the place where the lost part began, or from the first event.

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
        ConfigurationError: `after` is not a cursor, or `until` is not a place to end at.
    """
    cursor = read_cursor(after, strict=strict) if after is not None else None
    if until not in ("attempt", "end"):
        raise ConfigurationError(f"until is 'attempt' or 'end', not {until!r}")
    # Only what is asked for, so that a log of one's own may do without.
    options: dict[str, Any] = {**({"deltas": True} if deltas else {}), **({"until": until} if until == "end" else {})}

    async def work(push: Push[Event]) -> None:
        await _Follower(log, task_id, cursor, after, push).follow(**options)

    return RecordedStream(from_task(work, name="rxloop-follow"), run=(log, task_id))


class _Follower:
    """One reader of a run that is being written."""

    def __init__(
        self, log: EventLog, task_id: str, cursor: Cursor | None, after: str | None, push: Push[Event]
    ) -> None:
        self._log = log
        self._task_id = task_id
        self._cursor = cursor
        self._after = after
        self._push = push

    async def follow(self, **options: Any) -> None:
        """Deliver what the reader does not have, until the attempt ends, or as the options for the log say."""
        begin = await self._begin() if self._cursor is not None else 0
        expected = begin + 1
        events = self._log.follow(self._task_id, after_seq=begin, **options)
        try:
            async for event in events:
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
        """The `seq` after which the reader has to go on; tells it of a cursor that is not of this run."""
        cursor = self._cursor
        assert cursor is not None
        if cursor.task_id == self._task_id and cursor.attempt > 0:
            # Where the cursor is good, the event at it is all that has to be read beside what follows.
            held = await reading(self._log.read, self._task_id, after_seq=max(cursor.seq - 1, 0))
            if not cursor.seq or (held and (held[0].seq > cursor.seq or held[0].attempt == cursor.attempt)):
                return cursor.seq
        whole = await reading(self._log.read, self._task_id)
        if cursor.task_id == self._task_id and cursor.attempt > 0:
            later = next((event for event in whole if event.attempt > cursor.attempt), None)
            if later is not None and later.seq <= cursor.seq:
                return later.seq - 1
            if cursor.seq > whole[-1].seq and not ends_attempt(whole[-1]):
                # The run is ahead of its log, which will tell by what comes next whether the reader has it.
                return whole[-1].seq
        self._cursor = None
        self._gap(whole[0], "unknown-cursor")
        return 0

    def _gap(
        self, event: Event, reason: Literal["unknown-cursor", "lost-attempt", "trimmed"], count: int | None = None
    ) -> None:
        self._push(
            GapEvent(
                reason=reason,
                count=count,
                after=self._after,
                context_id=event.context_id,
                task_id=event.root_task_id,
                attempt=event.attempt,
                timestamp=event.timestamp,
            )
        )
