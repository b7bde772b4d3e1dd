"""Event log in memory."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import merge
from itertools import islice, takewhile
from typing import TYPE_CHECKING

from typing_extensions import Unpack

from rxloop.pipeline.artifacts import ArtifactStore
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.local_state import LeaseTable, LocalInbox
from rxloop.pipeline.records import (
    FINISHED,
    ConversationPage,
    Mark,
    RunEvents,
    RunFilter,
    RunQuery,
    RunRecord,
    Until,
    finishes,
    last_end,
    state_after,
)
from rxloop.protocol.commands import Command
from rxloop.protocol.events import WAITING, Event, State, StatusUpdateEvent, TaskEvent, ends_attempt
from rxloop.storage.rules import check_batch, check_finished, conflict, repeated, unknown_run
from rxloop.support.tasks import CLOCK

if TYPE_CHECKING:
    from rxloop.pipeline.records import HistoryQuery, Snapshot

_ALL_SUBS = 1 << 62


class MemoryEventLog(EventLog):
    """Keeps the durable events of runs in memory.

    One log serves many runs at once in one event loop, and several event loops one after another: it keeps nothing of
    a loop. It is not made for several threads.

    Example:
        >>> agent = Agent("zai:glm-4.7", log=MemoryEventLog())
        >>> first = await agent.run("My name is Ann.", context_id="ann")
        >>> again = await agent.run("What is my name?", context_id="ann")
    """

    def __init__(self, *, keep_deltas: bool = False) -> None:
        """Make an empty log.

        Args:
            keep_deltas: Keep transient events as well, with their times, for faithful replays.
        """
        self.keeps_deltas = keep_deltas
        self._runs: dict[str, _Run] = {}
        # What a run of a conversation costs does not depend on how many others there are.
        self._by_context: dict[str, dict[str, _Run]] = {}
        self._count = 0
        self._artifacts: ArtifactStore | None = None

    async def append(self, task_id: str, events: Sequence[Event], *, expected_seq: int, writer: str = "") -> None:
        """Append a batch to a run, or nothing of it, as `EventLog.append` says.

        Raises:
            ConflictError: The log holds another last `seq`: somebody else writes this run.
            EventLogError: An event has the wrong number, or is transient where those are not kept.
        """
        run = self._runs.get(task_id)
        held = len(run.events) if run is not None else 0
        check_batch(task_id, events, expected_seq, self.keeps_deltas)
        if not events:
            return
        if held != expected_seq:
            new = repeated(events, held) if run is not None and writer and writer == run.writer else None
            if run is None or new is None or not run.holds(events[:new]):
                raise conflict(task_id, expected_seq, held)
            events = [event for event in events[new:] if event.durable or not run.holds([event])]
        if run is None:
            context_id = events[0].context_id
            self._count += 1
            run = self._runs[task_id] = _Run(task_id, context_id, self._count, CLOCK.get().monotonic())
            self._by_context.setdefault(context_id, {})[task_id] = run
        run.extend(events, writer)

    async def read(self, task_id: str, *, after_seq: int = 0, deltas: bool = False) -> Sequence[Event]:
        """The events of a run after `after_seq`, in order, as `EventLog.read` gives them.

        Raises:
            UnknownRun: The log holds no such run.
        """
        run = self._run(task_id)
        return tuple(run.events_after((after_seq, _ALL_SUBS), deltas))

    async def follow(
        self, task_id: str, *, after_seq: int = 0, deltas: bool = False, until: Until = "attempt"
    ) -> AsyncIterator[Event]:
        """The events after `after_seq`, then those that come; see `EventLog.follow`.

        It ends when it has caught up with the final event of an attempt, whatever its state; if a later attempt has
        begun by then, it goes on with that one.

        Raises:
            UnknownRun: The log holds no such run.
        """
        run, place = self._run(task_id), (after_seq, 0)
        while True:
            for event in run.events_after(place, deltas):
                place = (event.seq, event.sub)
                yield event
            if run.events_after(place, deltas):
                continue
            if run.at_rest and (until == "attempt" or finishes(run.events[-1])):
                return
            await run.grown()

    async def snapshot(
        self, task_id: str, *, since: Snapshot | None = None, history: HistoryQuery | None = None
    ) -> Snapshot:
        """Return a run with its neighbours, as `EventLog.snapshot` says.

        Raises:
            UnknownRun: The log does not have the run.
        """
        # Imported here: importing rxloop is quicker without.
        from rxloop.pipeline.records import Snapshot, find_neighbours

        run = self._run(task_id)
        commands = self.local.get(LocalInbox).read(task_id, since.state.last_command if since is not None else 0)
        records = [each.record() for each in self._by_context[run.context_id].values()]
        waiting, later = find_neighbours(task_id, records)
        page = None if history is None else self._page(records, task_id, history.after)
        return Snapshot(run.record(), tuple(run.events), commands, waiting, later, page)

    def _page(self, listed: Sequence[RunRecord], before: str, after: Mark | None) -> ConversationPage:
        """Return the events of the runs of a conversation that come before a run, and after a mark that still holds."""
        records = list(takewhile(lambda record: record.task_id != before, listed))
        known = after.runs if after is not None and Mark.after(records[: after.runs]) == after else 0
        runs = [self._runs[record.task_id] for record in records[known:]]
        parts = [RunEvents(run.task_id, complete=run.at_rest, events=tuple(run.events)) for run in runs]
        return ConversationPage(parts, Mark.after(records), whole=not known)

    async def get_record(self, task_id: str) -> RunRecord:
        """What is known of a run without its events.

        Raises:
            UnknownRun: The log holds no such run.
        """
        return self._run(task_id).record()

    async def list_runs(self, **query: Unpack[RunQuery]) -> Sequence[RunRecord]:
        """Return the records of the matching runs, as `EventLog.list_runs` says.

        Raises:
            UnknownRun: The log does not have the run `after`.
            ConfigurationError: `limit` is less than one.
        """
        wanted = RunFilter(**query)
        kept = (self._runs if wanted.context_id is None else self._by_context.get(wanted.context_id, {})).values()
        ordered = reversed(kept) if wanted.newest_first or wanted.latest_only else kept
        found = ((run, record) for run in ordered if wanted.matches(record := run.record()))
        if wanted.latest_only:
            latest = list(_one_of_each(found))
            found = iter(latest if wanted.newest_first else latest[::-1])
        if wanted.after is not None:
            place = self._run(wanted.after).number
            down = wanted.newest_first
            found = (each for each in found if (each[0].number < place if down else each[0].number > place))
        return [record for _, record in islice(found, wanted.limit)]

    async def list_orphaned(
        self, *, submitted_before: float = 30, submitted_limit: int | None = None, submitted_after: str | None = None
    ) -> Sequence[RunRecord]:
        """Return the runs that can continue and have no living owner, as `EventLog.list_orphaned` says."""
        before, leases = CLOCK.get().monotonic() - submitted_before, self.local.get(LeaseTable)
        found = [
            run
            for run in self._runs.values()
            if (not run.at_rest or self._has_answer(run))
            and not leases.has(run.context_id, run.task_id)
            and (run.state != "submitted" or run.arrived <= before)
        ]
        last = self._runs.get(submitted_after or "")
        submitted = [run for run in found if run.state == "submitted" and (last is None or run.number > last.number)]
        listed = {run.number for run in submitted[:submitted_limit]}
        return [run.record() for run in found if run.state != "submitted" or run.number in listed]

    async def send_command(self, task_id: str, command: Command) -> int:
        """Keep a command for a run, as `EventLog.send_command` says.

        Raises:
            UnknownRun: The log does not have the run.
        """
        self._run(task_id)
        return self.local.get(LocalInbox).send(task_id, command)

    async def read_commands(self, task_id: str, *, after: int = 0) -> Sequence[tuple[int, Command]]:
        """Return the commands of a run, as `EventLog.read_commands` says.

        Raises:
            UnknownRun: The log does not have the run.
        """
        self._run(task_id)
        return self.local.get(LocalInbox).read(task_id, after)

    async def delete(self, task_id: str) -> None:
        """Remove a run that has ended for good.

        Raises:
            UnknownRun: The log holds no such run.
            EventLogError: The run can still go on.
        """
        run = self._run(task_id)
        check_finished(task_id, run.state)
        self._remove(run)

    async def trim(
        self, older_than: float, *, states: Collection[State] = FINISHED, deltas_only: bool = False
    ) -> list[str]:
        """Remove old finished runs, as `EventLog.trim` says."""
        before = round((time.time() - older_than) * 1000)
        found = [
            run
            for run in self._runs.values()
            if run.state in FINISHED and run.state in states and run.events[-1].timestamp < before
        ]
        if deltas_only:
            found = [run for run in found if run.deltas]
        for run in found:
            run.deltas.clear()
            if not deltas_only:
                self._remove(run)
        return [run.task_id for run in found]

    @property
    def artifacts(self) -> ArtifactStore:
        """Artifact store next to the events."""
        if self._artifacts is None:
            # Few runs make any.
            from rxloop.storage.memory_artifacts import MemoryArtifacts

            self._artifacts = MemoryArtifacts()
        return self._artifacts

    async def aclose(self) -> None:
        """Nothing is open; the events stay where they are."""

    def _run(self, task_id: str) -> _Run:
        try:
            return self._runs[task_id]
        except KeyError:
            raise unknown_run(task_id) from None

    def _has_answer(self, run: _Run) -> bool:
        """Return True if the run waits for input, and an answer or a cancel is not applied yet."""
        commands = self.local.get(LocalInbox).read(run.task_id)
        if not commands or run.state not in WAITING:
            return False
        own = (event for event in run.events if event.metadata and event.parent_task_id is None)
        applied = max((event.metadata.get("mail_id", 0) for event in own), default=0)
        return any(number > applied and command.kind != "say" for number, command in commands)

    def _remove(self, run: _Run) -> None:
        self.local.get(LocalInbox).remove(run.task_id)
        del self._runs[run.task_id]
        rest = self._by_context[run.context_id]
        del rest[run.task_id]
        if not rest:
            del self._by_context[run.context_id]


@dataclass(slots=True)
class _Run:
    """The events of one run; the event with `seq` n is at n - 1."""

    task_id: str
    context_id: str
    number: int
    """Counts the runs in the order in which the log got them."""
    arrived: float
    """When the log got it, by its own clock."""
    events: list[Event] = field(default_factory=list[Event])
    deltas: list[Event] = field(default_factory=list[Event])
    state: State = "submitted"
    end: StatusUpdateEvent | None = None
    writer: str = ""
    # One for each follower that waits, made in its event loop and gone when the wait is over.
    waiters: set[asyncio.Future[None]] = field(default_factory=set[asyncio.Future[None]])

    def extend(self, events: Sequence[Event], writer: str) -> None:
        durable = [event for event in events if event.durable]
        if durable:
            self.writer = writer
        self.events.extend(durable)
        self.deltas.extend(event for event in events if not event.durable)
        self.state = state_after(self.state, durable)
        self.end = last_end(durable) or self.end
        for waiter in self.waiters:
            # A loop that was closed in the middle of a wait has no follower any more.
            if not waiter.done() and not waiter.get_loop().is_closed():
                waiter.set_result(None)
        self.waiters.clear()

    def holds(self, events: Sequence[Event]) -> bool:
        """Whether exactly these events are here already."""
        held = {_place(event): event for event in (*self.events, *self.deltas)}
        return all(_place(event) in held and held[_place(event)].to_json() == event.to_json() for event in events)

    def events_after(self, place: tuple[int, int], deltas: bool) -> list[Event]:
        """The events after a place, in order."""
        durable = self.events[place[0] :]
        if not (deltas and self.deltas):
            return durable
        return list(merge(durable, self.deltas[bisect_right(self.deltas, place, key=_place) :], key=_place))

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
        task = first if isinstance(first, TaskEvent) else None
        return RunRecord(
            task_id=self.task_id,
            context_id=self.context_id,
            agent_name=task.agent_name if task else "",
            model=task.model if task else "",
            owner=task.owner if task else None,
            metadata=first.metadata,
            usage=self.end.usage if self.end else None,
            error=self.end.error if self.end else None,
            state=self.state,
            attempt=last.attempt,
            seq=last.seq,
            created=first.timestamp,
            updated=last.timestamp,
        )


def _one_of_each(found: Iterable[tuple[_Run, RunRecord]]) -> Iterator[tuple[_Run, RunRecord]]:
    """The first run of each conversation."""
    seen = set[str]()
    for run, record in found:
        if run.context_id not in seen:
            seen.add(run.context_id)
            yield run, record


def _place(event: Event) -> tuple[int, int]:
    return event.seq, event.sub
