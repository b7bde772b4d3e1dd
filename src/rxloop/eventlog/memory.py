"""An event log in memory: for tests, and for conversations that need not outlive the process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from rxloop.errors import ConflictError, EventLogError, UnknownRun
from rxloop.events import Event, State, StatusUpdateEvent, TaskEvent, ends_attempt
from rxloop.protocols import RunRecord


class MemoryEventLog:
    """Keeps the durable events of runs in memory.

    One log serves many runs at once in one event loop, and several event loops one after another: it keeps nothing of
    a loop. It is not made for several threads.

    Example:
        >>> agent = Agent("zai:glm-4.7", log=MemoryEventLog())
        >>> first = await agent.run("My name is Ann.", context_id="ann")
        >>> again = await agent.run("What is my name?", context_id="ann")
    """

    def __init__(self) -> None:
        self._runs: dict[str, _Run] = {}

    async def append(self, task_id: str, events: Sequence[Event], *, expected_seq: int) -> None:
        """Append a batch to a run: all of it, or nothing.

        Args:
            task_id: The run.
            events: Durable events, numbered on from `expected_seq` without a gap.
            expected_seq: The last `seq` that the log holds of the run; 0 for a new one.

        Raises:
            ConflictError: The log holds another last `seq`: somebody else writes this run.
            EventLogError: An event is transient or has the wrong number.
        """
        run = self._runs.get(task_id)
        held = len(run.events) if run is not None else 0
        if held != expected_seq:
            raise ConflictError(
                f"run {task_id}: the writer expected seq {expected_seq} to be the last, but the log holds {held}; "
                "somebody else writes this run"
            )
        for seq, event in enumerate(events, start=held + 1):
            if not event.durable:
                raise EventLogError(f"run {task_id}: {event.kind} is transient and does not belong in the log")
            if event.seq != seq:
                raise EventLogError(f"run {task_id}: {event.kind} has seq {event.seq} where {seq} comes next")
        if events:
            self._runs.setdefault(task_id, _Run(task_id)).extend(events)

    async def read(self, task_id: str, *, after_seq: int = 0) -> Sequence[Event]:
        """The durable events of a run behind `after_seq`, in order.

        Raises:
            UnknownRun: The log holds no such run.
        """
        return tuple(self._run(task_id).events[after_seq:])

    async def follow(self, task_id: str, *, after_seq: int = 0) -> AsyncIterator[Event]:
        """The durable events behind `after_seq`, then those that come.

        It ends when it has caught up with the final event of an attempt, whatever its state; where a later attempt has
        begun by then, it goes on with that one.

        Raises:
            UnknownRun: The log holds no such run.
        """
        run = self._run(task_id)
        while True:
            while after_seq < len(run.events):
                event = run.events[after_seq]
                after_seq += 1
                yield event
            if run.at_rest:
                return
            await run.grown()

    async def runs(self, *, context_id: str | None = None, unfinished: bool = False) -> Sequence[RunRecord]:
        """The runs of a conversation, or of all, oldest first.

        Args:
            context_id: Only those of this conversation.
            unfinished: Only those that are neither completed nor failed.
        """
        records = sorted((run.record() for run in self._runs.values()), key=lambda record: record.created)
        return [
            record
            for record in records
            if (context_id is None or record.context_id == context_id) and not (unfinished and record.finished)
        ]

    async def aclose(self) -> None:
        """Nothing is open; the events stay where they are."""

    def _run(self, task_id: str) -> _Run:
        try:
            return self._runs[task_id]
        except KeyError:
            raise UnknownRun(f"the log holds no run {task_id}") from None


@dataclass(slots=True)
class _Run:
    """The events of one run; the event with `seq` n is at n - 1."""

    task_id: str
    events: list[Event] = field(default_factory=list[Event])
    state: State = "submitted"
    # One for each follower that waits, made in its event loop and gone when the wait is over.
    waiters: set[asyncio.Future[None]] = field(default_factory=set[asyncio.Future[None]])

    def extend(self, events: Sequence[Event]) -> None:
        self.events.extend(events)
        for event in events:
            if isinstance(event, StatusUpdateEvent) and event.parent_task_id is None:
                self.state = event.state
        for waiter in self.waiters:
            # A loop that was closed in the middle of a wait has no follower any more.
            if not waiter.done() and not waiter.get_loop().is_closed():
                waiter.set_result(None)
        self.waiters.clear()

    @property
    def at_rest(self) -> bool:
        """Whether the last attempt is over. The end of a nested agent's run is not the end of this one."""
        last = self.events[-1]
        return ends_attempt(last)

    async def grown(self) -> None:
        """Wait for the next batch."""
        waiter = asyncio.get_running_loop().create_future()
        self.waiters.add(waiter)
        try:
            await waiter
        finally:
            self.waiters.discard(waiter)

    def record(self) -> RunRecord:
        first, last = self.events[0], self.events[-1]
        return RunRecord(
            task_id=self.task_id,
            context_id=first.context_id,
            agent_name=first.agent_name if isinstance(first, TaskEvent) else "",
            state=self.state,
            attempt=last.attempt,
            seq=last.seq,
            created=first.timestamp,
            updated=last.timestamp,
        )
