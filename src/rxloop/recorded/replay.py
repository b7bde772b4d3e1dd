"""Replay of recorded runs and access to conversation history."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rxloop.errors import ConfigurationError
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.log_retry import read_log
from rxloop.protocol.events import Event
from rxloop.protocol.messages import Message
from rxloop.protocol.visibility import select_public_messages
from rxloop.recorded.follow import RecordedStream
from rxloop.run.result import Result
from rxloop.state.fold import fold_all
from rxloop.state.run_state import RunState
from rxloop.storage.conversation import conversation
from rxloop.stream.sources import Push, from_task
from rxloop.thinking.graph import ThoughtGraph

_TURN = 256
"""Number of events to emit before other tasks can run."""

_ALL = 1 << 62


class Replay(RecordedStream):
    """Event stream returned by `replay`."""

    def __init__(
        self, log: EventLog, task_id: str, *, speed: float | None, deltas: bool, until: int | None = None
    ) -> None:
        """Create a replay, optionally limited by the seq `until`. See `replay` for the other arguments."""
        # All events are in memory already, so merging deltas has no benefit.
        super().__init__(from_task(self._play, name="rxloop-replay"), buffer=_ALL, run=(log, task_id))
        self._log = log
        self._task_id = task_id
        self._speed = speed
        self._deltas = deltas
        self._until = until

    def until(self, seq: int) -> Replay:
        """Return a replay ending at the given event.

        Raises:
            ConfigurationError: `seq` is less than 1.
        """
        if seq < 1:
            raise ConfigurationError(f"seq must be at least 1, got {seq}")
        until = seq if self._until is None else min(seq, self._until)
        return Replay(self._log, self._task_id, speed=self._speed, deltas=self._deltas, until=until)

    async def state_at(self, seq: int) -> RunState:
        """Return the state after an event, including the conversation.

        Raises:
            ConfigurationError: The run has no event with this seq.
            UnknownRun: The log does not contain the run.
        """
        events = await self._events(deltas=False)
        if not 1 <= seq <= len(events):
            raise ConfigurationError(f"seq must be from 1 to {len(events)} for run {self._task_id}, got {seq}")
        return await self._fold(events[:seq])

    async def result(self) -> Result[str]:
        """Return the result of the replayed events. Failed runs do not raise errors.

        Raises:
            UnknownRun: The log does not contain the run.
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
            files=state.files,
            citations=state.citations,
            finish_reason=state.last.finish_reason if state.last is not None else None,
            pending=list(state.pending.values()),
            error=state.error,
            compression=state.compression,
            parsed=state.content,
        )

    async def _fold(self, events: Sequence[Event]) -> RunState:
        return fold_all(events, await conversation(self._log, events[0].context_id, before=self._task_id))

    async def _events(self, *, deltas: bool) -> list[Event]:
        """Read the events again."""
        events = await read_log(self._log.read, self._task_id, deltas=deltas and self._log.keeps_deltas)
        until = (self._until or _ALL, 0)
        return [event for event in events if (event.seq, event.sub) <= until]

    async def _play(self, push: Push[Event]) -> None:
        events = await self._events(deltas=self._deltas)
        time = asyncio.get_running_loop().time
        due = time()
        for place, event in enumerate(events):
            if self._speed is not None and place and event.attempt == events[place - 1].attempt:
                # Measure from the start, so that slow readers don't delay later events.
                due += max(event.timestamp - events[place - 1].timestamp, 0) / 1000 / self._speed
                if due > time():
                    await asyncio.sleep(due - time())
            elif place % _TURN == _TURN - 1:
                await asyncio.sleep(0)
            push(event)


def replay(log: EventLog, task_id: str, *, speed: float | None = None, deltas: bool = True) -> Replay:
    """Replay a recorded run without calling models or tools.

    ::

        recorded               --a----b--|   (a night)   --c----d--|
        replay(speed=2)        -a--b-c--d|
        replay().until(3)      abc|

    Any view can be used. There is no pause between attempts.

    Args:
        log: Event log.
        task_id: Task id.
        speed: Speed factor, where 1 is the original speed. The default emits all events immediately.
        deltas: Whether to include deltas, if the log keeps them.

    Returns:
        Stream of events. Each subscription reads the log. It fails with `UnknownRun` if the log does not contain the
        run.

    Raises:
        ConfigurationError: The speed is not positive.
    """
    if speed is not None and not speed > 0:
        raise ConfigurationError(f"speed must be positive or None, got {speed!r}")
    return Replay(log, task_id, speed=speed, deltas=deltas)


async def history(log: EventLog, context_id: str, *, public: bool = False) -> list[Message]:
    """Return a conversation's messages in chronological order, as seen by its next run.

    Args:
        log: Event log.
        context_id: Context id. An unknown context has no messages.
        public: Whether to return only messages for clients, without system messages, hidden tool calls and their
            results, and provider state. Other messages must not leave the server.

    Raises:
        EventLogError: The log cannot be read.

    Example:
        >>> shown = [message.model_dump() for message in await history(log, "bob", public=True)]
    """
    messages = list((await conversation(log, context_id, before="")).messages)
    return list(select_public_messages(messages)) if public else messages
