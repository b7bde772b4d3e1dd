"""Replay of recorded runs and access to conversation history."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from rxloop.errors import ConfigurationError
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.log_retry import read_log
from rxloop.pipeline.records import get_conversation
from rxloop.protocol.events import Event
from rxloop.protocol.ids import make_conversation_key
from rxloop.protocol.messages import Message
from rxloop.protocol.visibility import select_public_messages
from rxloop.recorded.follow import FINAL_STATES, RecordedStream, read_pages
from rxloop.recorded.questions import IDLE_STATES, read_status
from rxloop.run.result import Result
from rxloop.state.fold import fold_all
from rxloop.state.history import CANCELED_CALL, INTERRUPTED, NEVER_BEGAN
from rxloop.state.run_state import RunState
from rxloop.storage.conversation import conversation
from rxloop.storage.log_urls import check_log
from rxloop.stream.back_pressure import WindowedPush
from rxloop.stream.sources import Push, from_task
from rxloop.stream.stream import ReadOnlyHold
from rxloop.support.misuse import check_minimum, check_positive
from rxloop.support.threads import compute
from rxloop.thinking.graph import ThoughtGraph

_TURN = 256
"""Number of events to emit before other tasks can run."""

_MAX_SEQ = 1 << 62

_PLACEHOLDERS = (CANCELED_CALL, NEVER_BEGAN, INTERRUPTED)
"""Results of open calls for the next run of the conversation."""


class Replay(RecordedStream):
    """Event stream returned by `replay`."""

    def __init__(
        self, log: EventLog, task_id: str, *, speed: float | None, deltas: bool, until: int | None = None
    ) -> None:
        """Create a replay, optionally limited by the seq `until`. See `replay` for the other arguments."""
        reading = ReadOnlyHold()
        source = from_task(self._emit_events, name="rxloop-replay")
        super().__init__(source, run=(log, task_id), reading=reading)
        self._gate = reading.gate
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
        check_minimum(1, seq=seq)
        until = seq if self._until is None else min(seq, self._until)
        return Replay(self._log, self._task_id, speed=self._speed, deltas=self._deltas, until=until)

    async def get_state(self, seq: int) -> RunState:
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
        state = await self._drop_questions(await self._fold(events))
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

    async def _drop_questions(self, state: RunState) -> RunState:
        """Remove questions that cannot be answered any more, because of commands or later runs of the conversation."""
        if self._until is not None or not state.pending:
            return state
        status = await read_status(self._log, await read_log(self._log.get_record, self._task_id))
        if status.record.seq != state.seq:
            return state
        pending = {each.input_id for each in status.pending}
        state = state.replace(
            state=status.state, pending={key: state.pending[key] for key in state.pending if key in pending}
        )
        return state if status.last is None else state.replace(reason=status.last.reason, error=status.last.error)

    async def _fold(self, events: Sequence[Event]) -> RunState:
        return fold_all(events, await conversation(self._log, get_conversation(events[0]), before=self._task_id))

    async def _events(self, *, deltas: bool) -> list[Event]:
        """Read the events again."""
        events = await read_log(self._log.read, self._task_id, deltas=deltas and self._log.keeps_deltas)
        until = (self._until or _MAX_SEQ, 0)
        return [event for event in events if (event.seq, event.sub) <= until]

    async def _emit_events(self, push: Push[Event]) -> None:
        windowed_push = WindowedPush(push, self._gate)
        time = asyncio.get_running_loop().time
        due, index, previous = time(), 0, None
        async with aclosing(self._read_events()) as events:
            async for event in events:
                if self._speed is not None and previous is not None and event.attempt == previous[0]:
                    # Measure from the start, so that slow readers don't delay later events.
                    due += max(event.timestamp - previous[1], 0) / 1000 / self._speed
                    if due > time():
                        await asyncio.sleep(due - time())
                elif index % _TURN == _TURN - 1:
                    await asyncio.sleep(0)
                index, previous = index + 1, (event.attempt, event.timestamp)
                await windowed_push(event)

    async def _read_events(self) -> AsyncGenerator[Event]:
        """Yield the events that exist now, in pages if the log has pages."""
        record = await read_log(self._log.get_record, self._task_id)
        deltas = self._deltas and self._log.keeps_deltas
        if deltas and record.state not in IDLE_STATES:
            # Pages end before the deltas that follow the last event.
            for event in await self._events(deltas=True):
                yield event
            return
        last_seq = min(self._until or _MAX_SEQ, record.seq)
        async with aclosing(read_pages(self._log, self._task_id, last_seq=last_seq, deltas=deltas)) as events:
            async for event in events:
                yield event


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
    check_positive(optional=True, speed=speed)
    check_log(log)
    return Replay(log, task_id, speed=speed, deltas=deltas)


async def history(log: EventLog, context_id: str, *, owner: str | None = None, public: bool = False) -> list[Message]:
    """Return a conversation's messages in chronological order, as seen by its next run.

    Args:
        log: Event log.
        context_id: Context id. An unknown context has no messages.
        owner: Owner of the conversation, or an empty string for runs without an owner. It may be omitted if only one
            owner has a conversation with this id.
        public: Whether to return only messages for clients, without system messages, hidden tool calls and their
            results, and provider state. Other messages must not leave the server. If the last run is waiting or
            working, its open calls have no results. Otherwise they have the results that the next run will see.

    Raises:
        EventLogError: The log cannot be read.
        ConfigurationError: `log` is not an event log, or several owners have a conversation with this id.

    Example:
        >>> shown = [message.model_dump() for message in await history(log, "bob", public=True)]
    """
    check_log(log)
    key = make_conversation_key(context_id, await _find_owner(log, context_id) if owner is None else owner)
    return await read_public_messages(log, key) if public else list((await conversation(log, key, before="")).messages)


async def read_public_messages(log: EventLog, key: str) -> list[Message]:
    """Return the messages of `history(..., public=True)` for a conversation key."""
    messages = (await conversation(log, key, before="")).messages
    shown = await compute(lambda: list(select_public_messages(messages)), steps=len(messages))
    known = _remove_unknown_results(shown)
    return known if len(known) < len(shown) and await _is_last_run_open(log, key) else shown


def _remove_unknown_results(messages: Sequence[Message]) -> list[Message]:
    """Remove the placeholders for results of the last calls."""
    end = len(messages)
    while end and messages[end - 1].role == "tool":
        end -= 1
    return [*messages[:end], *(each for each in messages[end:] if each.text not in _PLACEHOLDERS)]


async def _find_owner(log: EventLog, context_id: str) -> str:
    """Return the only owner of the conversations with an id."""
    owners = {record.owner or "" for record in await read_log(log.list_runs, context_id=context_id, latest_only=True)}
    if len(owners) > 1:
        raise ConfigurationError(
            f"history() requires owner=, because {len(owners)} owners have a conversation with the id {context_id!r}. "
            'Pass owner="" for runs without an owner.'
        )
    return next(iter(owners), "")


async def _is_last_run_open(log: EventLog, conversation: str) -> bool:
    runs = await read_log(log.list_conversation, conversation, newest_first=True, limit=1)
    return bool(runs) and runs[0].state not in FINAL_STATES
