"""Event log: six required methods, and defaults that are correct in one process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from typing_extensions import Unpack

from rxloop.errors import EventLogError, UnknownRun
from rxloop.pipeline.local_state import FirstSeen, LeaseTable, LocalInbox, LocalState
from rxloop.protocol.events import WAITING, Event, State, ends_attempt
from rxloop.state.fold import fold_all
from rxloop.support.tasks import CLOCK

if TYPE_CHECKING:
    from rxloop.pipeline.artifacts import ArtifactStore
    from rxloop.pipeline.records import ConversationPage, HistoryQuery, Mark, RunQuery, RunRecord, Snapshot, Until
    from rxloop.protocol.commands import Command
    from rxloop.state.run_state import RunFold

_SHORTCUTS = {
    "append_now": {"append_now", "append"},
    "snapshot": {"snapshot", "get_record", "read", "read_commands", "list_runs", "read_conversation"},
}
"""Methods that a log may make quicker than by its other methods, each with those that it replaces."""

_FINISHED: tuple[State, ...] = ("completed", "failed")


class EventLog(ABC):
    """Durable events of runs.

    Six methods are required: `append`, `read`, `follow`, `get_record`, `list_runs` and `aclose`. The others have
    defaults that are correct in one process. Two promises need more than the defaults: a command outlives the process
    only if the log overrides `send_command`, `read_commands` and `watch_commands`, and processes exclude each other
    before they execute a run only if it overrides the methods of leases and `list_orphaned`. With the defaults, the
    second process gets a `ConflictError` from its first `append`.
    """

    keeps_deltas: bool = False
    """True if transient events are stored. `append` then gets them, and `read` and `follow` return them on demand."""
    passes_deltas: bool = False
    """True if `append` gets transient events for the followers of that moment, although none is stored."""
    lease_seconds: float | None = None
    """Seconds of silence after which another process may take a lease; None if a holder cannot freeze alone."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Let an override of a method see every call: an inherited shortcut would pass it by."""
        super().__init_subclass__(**options)
        for shortcut, methods in _SHORTCUTS.items():
            # The override may come from a base class that is not a log.
            nearest = next(vars(each) for each in cls.__mro__ if methods & vars(each).keys())
            if shortcut not in nearest:
                setattr(cls, shortcut, getattr(EventLog, shortcut))

    # -- required

    @abstractmethod
    async def append(self, task_id: str, events: Sequence[Event], *, expected_seq: int, writer: str = "") -> None:
        """Append a batch to a run as a whole; when it returns, the batch is durable.

        The log keeps with each run the writer of its last batch. A writer that does not know whether a batch was stored
        may append it again: events that the same writer has already stored, byte for byte, are skipped. From any other
        writer, and from a writer without a name, equal events are a conflict.

        Args:
            task_id: The run.
            events: Events in order: durable ones, and transient ones if the log keeps or passes them.
            expected_seq: The last `seq` that the log holds of the run; 0 for a new run.
            writer: Random token of the writer, which no other writer has.

        Raises:
            ConflictError: The log holds another last `seq`: another writer writes this run.
            EventLogError: The batch could not be written.
        """

    @abstractmethod
    async def read(self, task_id: str, *, after_seq: int = 0, deltas: bool = False) -> Sequence[Event]:
        """Return the durable events of a run after `after_seq`, in order, and with `deltas` the transient ones.

        Raises:
            UnknownRun: The log does not have the run.
        """

    @abstractmethod
    def follow(
        self, task_id: str, *, after_seq: int = 0, deltas: bool = False, until: Until = "attempt"
    ) -> AsyncIterator[Event]:
        """Yield the durable events after `after_seq`, then new ones, until the final event of an attempt.

        Args:
            task_id: The run.
            after_seq: The last `seq` that is not wanted.
            deltas: Yield the transient events too, where the log keeps them; those of `after_seq` come again.
            until: `"end"` continues over pauses and attempts until the run is completed or failed, or canceled with the
                reason `superseded`, since a later run of its conversation dropped its questions.

        Raises:
            UnknownRun: The log does not have the run; raised by the first step of the iteration.
            LogRolledBack: The log lacks an event that was yielded, or has another one in its place, as after a restore.
        """

    @abstractmethod
    async def get_record(self, task_id: str) -> RunRecord:
        """Return the record of a run.

        Raises:
            UnknownRun: The log does not have the run.
        """

    @abstractmethod
    async def list_runs(self, **query: Unpack[RunQuery]) -> Sequence[RunRecord]:
        """Return the records of the matching runs, in the order in which the log got the runs, never by a clock.

        Args:
            query: The filters and the page, as `RunQuery` describes them. `RunFilter(**query)` checks and applies them.

        Raises:
            UnknownRun: The log does not have the run `after`.
            ConfigurationError: `limit` is less than one.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Close files and connections. Idempotent."""

    # -- optional: writing, conversations, artifacts

    def append_now(self, task_id: str, events: Sequence[Event], *, expected_seq: int, writer: str = "") -> bool:
        """Append a batch without waiting, as `append` does and with its errors, and return True.

        The default returns False: nothing is done, and the caller has to use `append`.
        """
        return False

    async def read_conversation(
        self, context_id: str, *, before: str, after: Mark | None = None, version: int
    ) -> ConversationPage:
        """Return the runs of a conversation that come before a run, as stored folds or as events.

        The default returns events, run by run.

        Args:
            context_id: The conversation.
            before: The run; if the log does not have it, all runs of the conversation come before it.
            after: The end of an earlier page. Only later runs are returned, if the runs before it are unchanged: none
                was deleted, and none was resumed.
            version: The version of the folds that the caller understands.

        Raises:
            EventLogError: The log cannot be read.
        """
        # Imported here: importing rxloop is quicker without.
        from rxloop.pipeline.records import ConversationPage, Mark, RunEvents

        listed = await self.list_runs(context_id=context_id)
        records = list(takewhile(lambda record: record.task_id != before, listed))
        known = after.runs if after is not None and Mark.after(records[: after.runs]) == after else 0
        parts: list[RunEvents] = []
        for record in records[known:]:
            events = await self.read(record.task_id)
            parts.append(RunEvents(record.task_id, complete=ends_attempt(events[-1]), events=events))
        return ConversationPage(parts, Mark.after(records), whole=not known)

    async def snapshot(
        self, task_id: str, *, since: Snapshot | None = None, history: HistoryQuery | None = None
    ) -> Snapshot:
        """Return a run, its commands and its neighbours by one call; the default makes five to six reads, in order.

        Args:
            task_id: The run.
            since: An earlier snapshot: only what came after it is read.
            history: The part of the conversation before the run that is wanted, too.

        Raises:
            UnknownRun: The log does not have the run.
            EventLogError: The log cannot be read.
        """
        # Imported here: importing rxloop is quicker without.
        from rxloop.pipeline.records import Snapshot, has_begun

        record = await self.get_record(task_id)
        known = since.events if since is not None else ()
        new = await self.read(task_id, after_seq=known[-1].seq if known else 0)
        commands = await self.read_commands(task_id, after=since.state.last_command if since is not None else 0)
        # Not all runs of the conversation, of which there may be thousands.
        place = record.context_id
        waiting = await self.list_runs(context_id=place, states=WAITING, newest_first=True, after=task_id)
        after_it = await self.list_runs(context_id=place, after=task_id)
        later = next((each for each in after_it if has_begun(each.state, each.seq)), None)
        page = None
        if history is not None:
            after, version = history
            page = await self.read_conversation(place, before=task_id, after=after, version=version)
        return Snapshot(record, [*known, *new], commands, waiting, later, page)

    def store_folds(self, context_id: str, folds: Sequence[RunFold], *, version: int) -> None:  # noqa: B027
        """Store folds of a conversation when there is time, each in place of those of the same runs.

        A fold whose runs have changed is left out. A fold that is damaged, or of another version, is never returned by
        `read_conversation`. If storing fails, only time is lost. The default stores nothing.
        """

    @property
    def stores_folds(self) -> bool:
        """True if the log overrides `store_folds`, so that folds are worth making."""
        return type(self).store_folds is not EventLog.store_folds

    @property
    def takes_deltas(self) -> bool:
        """True if `append` gets transient events, since the log stores them or passes them to followers."""
        return self.keeps_deltas or self.passes_deltas

    @property
    def artifacts(self) -> ArtifactStore | None:
        """Artifact store next to the events; None lets an agent keep artifacts in memory."""
        return None

    # -- optional: leases

    @property
    def local(self) -> LocalState:
        """State that this process keeps with the log object."""
        state = vars(self).get("_local")
        # `setdefault` is atomic, so that two threads get the same one.
        return state if state is not None else vars(self).setdefault("_local", LocalState())

    async def acquire_lease(self, context_id: str, task_id: str, on_lost: Callable[[], None]) -> bool:
        """Acquire the lease of a conversation for a run.

        The lease belongs to one run and to one log object, its holder, and ends with it: a holder that is killed or
        frozen loses its leases, and what it appends to their runs from then on is refused with `Fenced`.

        The default is a table in `local`; the lease of an event loop that is closed is free.

        Args:
            context_id: The conversation.
            task_id: The run, which the log need not have yet.
            on_lost: Called once, in the event loop of the caller, when another holder turns out to have the lease.

        Returns:
            False if a run has the lease, and its holder is alive: whichever run, and this log object included.

        Raises:
            EventLogError: The log cannot be asked.
        """
        return self.local.get(LeaseTable).acquire(context_id, task_id)

    async def has_lease(self, context_id: str, task_id: str) -> bool:
        """Return True if this log object still holds the lease for a run, by what is stored.

        A run asks after a silence, since its process may have been frozen for longer than the lease lasts.

        Returns:
            False, too, if another holder had the lease since it was acquired, although it is free again.

        Raises:
            EventLogError: The log cannot be asked.
        """
        return self.local.get(LeaseTable).has(context_id, task_id)

    async def release_lease(self, context_id: str, task_id: str) -> None:
        """Release the lease of a conversation. Idempotent; a lease that was lost or never acquired is skipped.

        Raises:
            EventLogError: The log cannot be asked. The lease is free when its holder would be found dead.
        """
        self.local.get(LeaseTable).release(context_id, task_id)

    async def list_orphaned(
        self, *, submitted_before: float = 30, submitted_limit: int | None = None, submitted_after: str | None = None
    ) -> Sequence[RunRecord]:
        """Return the runs that can continue and have no living owner, in the order in which the log got them.

        No living holder has a lease for these runs. They are working; or they were submitted, and no process began
        them, or the process that did has died; or they wait for input, and an answer or a cancel is not applied yet.

        The default finds the unfinished runs without a lease in `local`. It counts `submitted_before` from the moment
        at which this object first saw a run.

        Args:
            submitted_before: Seconds since the log got a submitted run. Younger ones are left to the processes that
                were notified. The clock of the process that submitted the run does not count.
            submitted_limit: Maximum number of submitted runs that no process began, the first ones; None for all, 0
                for none.
            submitted_after: Only submitted runs that the log got after this run; all of them if it is None, or the
                log does not have the run.

        Raises:
            EventLogError: The log cannot be asked.
        """
        now = CLOCK.get().monotonic()
        records = await self.list_runs(states=("submitted", "working", "input-required", "auth-required"))
        submitted = [record.task_id for record in records if record.state == "submitted"]
        seen = self.local.get(FirstSeen).update(submitted, now)
        later = set(submitted)
        if submitted_after is not None:
            try:
                found = await self.list_runs(states=("submitted",), after=submitted_after)
                later = {record.task_id for record in found}
            except UnknownRun:
                pass
        orphaned: list[RunRecord] = []
        for record in records:
            if await self.has_lease(record.context_id, record.task_id):
                continue
            if record.state == "submitted":
                if record.task_id not in later or seen[record.task_id] > now - submitted_before:
                    continue
                if submitted_limit is not None:
                    submitted_limit -= 1
                    if submitted_limit < 0:
                        continue
            elif record.state != "working" and not await self._is_answered(record.task_id):
                continue
            orphaned.append(record)
        return orphaned

    async def _is_answered(self, task_id: str) -> bool:
        """Return True if an answer or a cancel was sent to a waiting run and is not applied yet."""
        commands = await self.read_commands(task_id)
        if all(command.kind == "say" for _, command in commands):
            return False
        applied = fold_all(await self.read(task_id)).last_command
        return any(number > applied and command.kind != "say" for number, command in commands)

    # -- optional: commands, removal

    async def send_command(self, task_id: str, command: Command) -> int:
        """Store a command for a run that another process may own; when it returns, the command is durable.

        A command stays until its run is deleted. It is applied once, since the event that it becomes has its number in
        the metadata, as `mail_id`, and the fold keeps the highest. The default keeps it in `local`, for the life of
        the process.

        Returns:
            Its number, which is greater than that of any earlier command to any run of the log.

        Raises:
            UnknownRun: The log does not have the run.
            EventLogError: The command could not be written.
        """
        await self.get_record(task_id)
        return self.local.get(LocalInbox).send(task_id, command)

    async def read_commands(self, task_id: str, *, after: int = 0) -> Sequence[tuple[int, Command]]:
        """Return the commands of a run with numbers above `after`, in order, each with its number.

        Raises:
            UnknownRun: The log does not have the run.
            EventLogError: The log cannot be read.
        """
        await self.get_record(task_id)
        return self.local.get(LocalInbox).read(task_id, after)

    def watch_commands(self, task_id: str, notify: Callable[[], None]) -> Callable[[], None]:
        """Call `notify` when there may be new commands for a run, from whatever process.

        Earlier commands do not count: start watching, then read the commands that are there. The default notices the
        commands that are sent through this object.

        Args:
            task_id: The run, which the log need not have yet.
            notify: Called in the event loop of the caller; sometimes without a new command.

        Returns:
            Function that stops watching; idempotent, may be called from any thread.
        """
        return self.local.get(LocalInbox).watch(task_id, notify)

    async def delete(self, task_id: str) -> None:
        """Remove a run that is completed or failed, with its commands. The default raises an `EventLogError`.

        Raises:
            UnknownRun: The log does not have the run.
            EventLogError: The run can still continue, or the log cannot remove runs.
        """
        raise EventLogError(f"{type(self).__name__} does not remove runs: override delete()", retryable=False)

    async def trim(
        self, older_than: float, *, states: Collection[State] = _FINISHED, deltas_only: bool = False
    ) -> list[str]:
        """Remove old runs that are completed or failed. The default raises an `EventLogError`.

        Args:
            older_than: Seconds since the last event of a run.
            states: Only runs in these states, out of `completed` and `failed`.
            deltas_only: Remove only the transient events of these runs.

        Returns:
            The ids of the runs of which anything was removed.

        Raises:
            EventLogError: The log cannot be written, or cannot remove runs.
        """
        raise EventLogError(f"{type(self).__name__} does not remove runs: override trim()", retryable=False)
