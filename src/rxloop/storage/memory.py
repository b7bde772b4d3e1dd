"""In-memory event log."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Sequence
from heapq import merge
from itertools import islice, takewhile
from operator import attrgetter
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
    get_conversation,
)
from rxloop.protocol.commands import Command
from rxloop.protocol.envelope import COMMAND_ID
from rxloop.protocol.events import WAITING, Event, State
from rxloop.protocol.ids import make_conversation_key, split_conversation_key
from rxloop.storage.memory_run import BatchParts, MemoryRun, split_batch
from rxloop.storage.rules import check_batch, check_finished, count_repeats, make_conflict_error, make_unknown_run_error
from rxloop.support.tasks import CLOCK
from rxloop.support.threads import compute

if TYPE_CHECKING:
    from rxloop.pipeline.records import HistoryQuery, Snapshot

_ALL_SUBS = 1 << 62


class MemoryEventLog(EventLog):
    """Event log in memory.

    The log has no event loop state and may be used by consecutive event loops. It is not thread-safe.

    Example:
        >>> agent = Agent("zai:glm-4.7", log=MemoryEventLog())
        >>> first = await agent.run("My name is Ann.", context_id="ann")
        >>> again = await agent.run("What is my name?", context_id="ann")
    """

    def __init__(self, *, keep_deltas: bool = False) -> None:
        """Create an empty log.

        Args:
            keep_deltas: Store transient events with their timestamps for exact replays.
        """
        self.accepts_empty_owner = True
        self.keeps_deltas = keep_deltas
        self._runs: dict[str, MemoryRun] = {}
        # Indexed by conversation ID and key, so that the cost of a run does not depend on the total number of runs.
        self._by_context: dict[str, dict[str, dict[str, MemoryRun]]] = {}
        self._count = 0
        self._artifacts: ArtifactStore | None = None

    async def append(self, task_id: str, events: Sequence[Event], *, expected_seq: int, writer: str = "") -> None:
        """Append a batch to a run atomically, implementing `EventLog.append`.

        Raises:
            ConflictError: If the last stored `seq` is different, because another writer appends to the run.
            EventLogError: If an event has the wrong number, or is transient and `keep_deltas` is False.
        """

        def check() -> BatchParts:
            check_batch(task_id, events, expected_seq, self.keeps_deltas)
            return split_batch(events)

        parts = await compute(check, steps=len(events))
        if not events:
            return
        run = self._runs.get(task_id)
        last_seq = len(run.events) if run is not None else 0
        if last_seq != expected_seq:
            new = count_repeats(events, last_seq) if run is not None and writer and writer == run.writer else None
            if run is None or new is None or not run.contains(events[:new]):
                raise make_conflict_error(task_id, expected_seq, last_seq)
            parts = split_batch([event for event in events[new:] if event.durable or not run.contains([event])])
        if run is None:
            first = events[0]
            self._count += 1
            run = MemoryRun(task_id, first.context_id, get_conversation(first), self._count, CLOCK.get().monotonic())
            conversations = self._by_context.setdefault(run.context_id, {})
            self._runs[task_id] = conversations.setdefault(run.conversation, {})[task_id] = run
        run.extend(parts, writer)

    async def read(self, task_id: str, *, after_seq: int = 0, deltas: bool = False) -> Sequence[Event]:
        """Return events after `after_seq`, implementing `EventLog.read`.

        Raises:
            UnknownRun: If the run does not exist.
        """
        run = self._run(task_id)
        return tuple(run.get_events((after_seq, _ALL_SUBS), deltas))

    async def follow(
        self, task_id: str, *, after_seq: int = 0, deltas: bool = False, until: Until = "attempt"
    ) -> AsyncIterator[Event]:
        """Yield stored events after `after_seq`, then new events, implementing `EventLog.follow`.

        Iteration stops after the final event of an attempt, unless a later attempt has already started.

        Raises:
            UnknownRun: If the run does not exist.
        """
        run, position = self._run(task_id), (after_seq, 0)
        while True:
            for event in run.get_events(position, deltas):
                position = (event.seq, event.sub)
                yield event
            if run.get_events(position, deltas):
                continue
            if run.idle and (until == "attempt" or finishes(run.events[-1])):
                return
            await run.wait_for_events()

    async def snapshot(
        self, task_id: str, *, since: Snapshot | None = None, history: HistoryQuery | None = None
    ) -> Snapshot:
        """Return a run and its neighbours, implementing `EventLog.snapshot`.

        Raises:
            UnknownRun: If the run does not exist.
        """
        # Imported here to keep `import rxloop` fast.
        from rxloop.pipeline.records import Snapshot, find_neighbours

        run = self._run(task_id)
        commands = self.local.get(LocalInbox).read(task_id, since.state.last_command if since is not None else 0)
        records = [each.record() for each in self._get_conversation(run.conversation).values()]
        waiting, later = find_neighbours(task_id, records)
        page = None if history is None else self._make_page(records, task_id, history.after)
        return Snapshot(run.record(), tuple(run.events), commands, waiting, later, page)

    async def read_conversation(
        self, conversation: str, *, before: str, after: Mark | None = None, version: int
    ) -> ConversationPage:
        """Return earlier runs of a conversation, implementing `EventLog.read_conversation`."""
        return self._make_page([run.record() for run in self._get_conversation(conversation).values()], before, after)

    def _make_page(self, listed: Sequence[RunRecord], before: str, after: Mark | None) -> ConversationPage:
        """Return events of earlier runs in the conversation, after the mark if it is still valid."""
        records = list(takewhile(lambda record: record.task_id != before, listed))
        known = after.runs if after is not None and Mark.after(records[: after.runs]) == after else 0
        runs = [self._runs[record.task_id] for record in records[known:]]
        parts = [RunEvents(run.task_id, complete=run.idle, events=tuple(run.events)) for run in runs]
        return ConversationPage(parts, Mark.after(records), from_start=not known)

    async def get_record(self, task_id: str) -> RunRecord:
        """Return the run record.

        Raises:
            UnknownRun: If the run does not exist.
        """
        return self._run(task_id).record()

    async def list_runs(self, **query: Unpack[RunQuery]) -> Sequence[RunRecord]:
        """Return the records of matching runs, implementing `EventLog.list_runs`.

        Raises:
            UnknownRun: If the run `after` does not exist.
            ConfigurationError: If `limit` is less than one.
        """
        criteria = RunFilter(**query)
        context_id, owner = criteria.context_id, criteria.owner
        if context_id is None:
            runs = self._runs
        elif owner is None:
            parts = (each.values() for each in self._by_context.get(context_id, {}).values())
            runs = {run.task_id: run for run in merge(*parts, key=attrgetter("number"))}
        else:
            runs = self._get_conversation(make_conversation_key(context_id, owner))
        ordered = reversed(runs.values()) if criteria.newest_first or criteria.latest_only else runs.values()
        pairs = ((run, record) for run in ordered if criteria.matches(record := run.record()))
        if criteria.latest_only:
            latest = list(_select_first_runs(pairs))
            pairs = iter(latest if criteria.newest_first else latest[::-1])
        if criteria.after is not None:
            position = self._run(criteria.after).number
            descending = criteria.newest_first
            pairs = (each for each in pairs if (each[0].number < position if descending else each[0].number > position))
        return [record for _, record in islice(pairs, criteria.limit)]

    async def list_orphaned(
        self, *, submitted_before: float = 30, submitted_limit: int | None = None, submitted_after: str | None = None
    ) -> Sequence[RunRecord]:
        """Return resumable runs without a live owner, implementing `EventLog.list_orphaned`."""
        before, leases = CLOCK.get().monotonic() - submitted_before, self.local.get(LeaseTable)
        selected = [
            run
            for run in self._runs.values()
            if (not run.idle or self._has_answer(run))
            and not leases.has(run.conversation, run.task_id)
            and (run.state != "submitted" or run.inserted_at <= before)
        ]
        last = self._runs.get(submitted_after or "")
        submitted = [run for run in selected if run.state == "submitted" and (last is None or run.number > last.number)]
        listed = {run.number for run in submitted[:submitted_limit]}
        return [run.record() for run in selected if run.state != "submitted" or run.number in listed]

    async def send_command(self, task_id: str, command: Command) -> int:
        """Store a command for a run, implementing `EventLog.send_command`.

        Raises:
            UnknownRun: If the run does not exist.
        """
        self._run(task_id)
        return self.local.get(LocalInbox).send(task_id, command)

    async def read_commands(self, task_id: str, *, after: int = 0) -> Sequence[tuple[int, Command]]:
        """Return the commands of a run, implementing `EventLog.read_commands`.

        Raises:
            UnknownRun: If the run does not exist.
        """
        self._run(task_id)
        return self.local.get(LocalInbox).read(task_id, after)

    async def delete(self, task_id: str) -> None:
        """Delete a finished run.

        Raises:
            UnknownRun: If the run does not exist.
            EventLogError: If the run is not finished.
        """
        run = self._run(task_id)
        check_finished(task_id, run.state)
        self._remove(run)

    async def trim(
        self, older_than: float, *, states: Collection[State] = FINISHED, deltas_only: bool = False
    ) -> list[str]:
        """Delete old finished runs, implementing `EventLog.trim`."""
        before = round((time.time() - older_than) * 1000)
        selected = [
            run
            for run in self._runs.values()
            if run.state in FINISHED and run.state in states and run.events[-1].timestamp < before
        ]
        if deltas_only:
            selected = [run for run in selected if run.deltas]
        for run in selected:
            run.deltas.clear()
            if not deltas_only:
                self._remove(run)
        return [run.task_id for run in selected]

    @property
    def artifacts(self) -> ArtifactStore:
        """Artifact store of this log."""
        if self._artifacts is None:
            # Created lazily, because few runs write artifacts.
            from rxloop.storage.memory_artifacts import MemoryArtifacts

            self._artifacts = MemoryArtifacts()
        return self._artifacts

    async def aclose(self) -> None:
        """Do nothing. The events remain available."""

    def _run(self, task_id: str) -> MemoryRun:
        try:
            return self._runs[task_id]
        except KeyError:
            raise make_unknown_run_error(task_id) from None

    def _get_conversation(self, key: str) -> dict[str, MemoryRun]:
        return self._by_context.get(split_conversation_key(key)[0], {}).get(key, {})

    def _has_answer(self, run: MemoryRun) -> bool:
        """Return True if the run waits for input and has an unapplied answer or cancel command."""
        commands = self.local.get(LocalInbox).read(run.task_id)
        if not commands or run.state not in WAITING:
            return False
        own = (event for event in run.events if event.metadata and event.parent_task_id is None)
        applied = max((event.metadata.get(COMMAND_ID, 0) for event in own), default=0)
        return any(number > applied and command.kind != "message" for number, command in commands)

    def _remove(self, run: MemoryRun) -> None:
        self.local.get(LocalInbox).remove(run.task_id)
        del self._runs[run.task_id]
        conversations = self._by_context[run.context_id]
        rest = conversations[run.conversation]
        del rest[run.task_id]
        if not rest:
            del conversations[run.conversation]
        if not conversations:
            del self._by_context[run.context_id]


def _select_first_runs(runs: Iterable[tuple[MemoryRun, RunRecord]]) -> Iterator[tuple[MemoryRun, RunRecord]]:
    """Yield each conversation's first run."""
    seen = set[str]()
    for run, record in runs:
        if run.conversation not in seen:
            seen.add(run.conversation)
            yield run, record
