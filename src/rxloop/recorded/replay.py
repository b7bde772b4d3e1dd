"""Replay of a stored run, and the history of a conversation."""

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
"""Events that are delivered before the rest of the event loop has a turn."""

_ALL = 1 << 62


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
        """Fold the state of the run up to the event with that `seq`, its conversation included.

        Raises:
            ConfigurationError: The run has no such event.
            UnknownRun: The log holds no such run.
        """
        events = await self._events(deltas=False)
        if not 1 <= seq <= len(events):
            raise ConfigurationError(f"the run {self._task_id} has the events 1 to {len(events)}, and not {seq}")
        return await self._fold(events[:seq])

    async def result(self) -> Result[str]:
        """Give the result of the run up to the end of this replay. Nothing is raised for a run that failed.

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
        """The events of this replay, read anew."""
        events = await read_log(self._log.read, self._task_id, deltas=deltas and self._log.keeps_deltas)
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
    """Replay a recorded run, as a stream of its events. No model and no tool is called.

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


async def history(log: EventLog, context_id: str, *, public: bool = False) -> list[Message]:
    """Read the messages of a conversation, oldest first, as the next run of it would begin with them.

    Args:
        log: Holds the runs of the conversation.
        context_id: The conversation; of one that the log does not know there are none.
        public: As clients may see them: without messages of the system, without calls of hidden tools and their
            answers, and without what providers want back. Only these may leave the server.

    Raises:
        EventLogError: The log cannot be read.

    Example:
        >>> shown = [message.model_dump() for message in await history(log, "bob", public=True)]
    """
    messages = list((await conversation(log, context_id, before="")).messages)
    return list(select_public_messages(messages)) if public else messages
