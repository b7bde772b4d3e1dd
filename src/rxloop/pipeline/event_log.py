"""Event log interface, with defaults for use in a single process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from typing_extensions import Unpack

from rxloop.errors import EventLogError
from rxloop.pipeline.local_state import LeaseTable, LocalInbox, LocalState
from rxloop.protocol.events import WAITING, Event, State, ends_attempt
from rxloop.protocol.ids import split_conversation_key

if TYPE_CHECKING:
    from rxloop.pipeline.artifacts import ArtifactStore
    from rxloop.pipeline.records import (
        ConversationPage,
        ConversationQuery,
        HistoryQuery,
        Mark,
        RunQuery,
        RunRecord,
        Snapshot,
        Until,
    )
    from rxloop.protocol.commands import Command
    from rxloop.state.run_state import RunFold

_SHORTCUTS = {
    "append_now": {"append_now", "append"},
    "is_orphaned": {"is_orphaned", "list_orphaned"},
    "snapshot": {"snapshot", "get_record", "read", "read_commands", "list_runs", "read_conversation"},
}
"""Optimised methods by name, with the methods they replace."""

_FINISHED: tuple[State, ...] = ("completed", "failed")


class EventLog(ABC):
    """Base class for event logs.

    Six methods are required: `append`, `read`, `follow`, `get_record`, `list_runs` and `aclose`. Other methods have
    defaults that are correct within a single process. To make commands survive a restart, override `send_command`,
    `read_commands` and `watch_commands`. To prevent concurrent execution by several processes, override the lease
    methods and `list_orphaned`. Without them, the second process only fails at its first `append`, with
    `ConflictError`.
    """

    keeps_deltas: bool = False
    """True if transient events are stored. They are passed to `append`, and returned by `read` and `follow` on
    request."""
    passes_deltas: bool = False
    """True if transient events are passed to `append` for current followers, without being stored."""
    accepts_empty_owner: bool = False
    """True if `list_runs` accepts an empty owner, for runs without an owner."""
    lease_seconds: float | None = None
    """Lease duration in seconds, or None if a holder cannot freeze independently."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Disable inherited shortcuts that would bypass an overridden method."""
        super().__init_subclass__(**options)
        for shortcut, methods in _SHORTCUTS.items():
            # The override may be inherited from a class that is not a log.
            nearest = next(vars(each) for each in cls.__mro__ if methods & vars(each).keys())
            if shortcut not in nearest:
                setattr(cls, shortcut, getattr(EventLog, shortcut))

    @abstractmethod
    async def append(self, task_id: str, events: Sequence[Event], *, expected_seq: int, writer: str = "") -> None:
        """Append a batch to a run atomically and durably.

        The log records the last writer for each run. A writer that does not know if a batch was stored may append it
        again. Identical events from the same writer are skipped. Identical events from another writer, or from a writer
        without a name, are a conflict.

        Args:
            task_id: Run ID.
            events: Durable events in order, and transient events if the log stores or forwards them.
            expected_seq: Last stored `seq`, or 0 for a new run.
            writer: Unique random token for the writer.

        Raises:
            ConflictError: If the last stored `seq` is different, because another writer appends to the run.
            EventLogError: If the batch was not stored.
        """

    @abstractmethod
    async def read(self, task_id: str, *, after_seq: int = 0, deltas: bool = False) -> Sequence[Event]:
        """Return durable events after `after_seq` in order, including transient events if `deltas` is True.

        Raises:
            UnknownRun: If the run does not exist.
        """

    @abstractmethod
    def follow(
        self, task_id: str, *, after_seq: int = 0, deltas: bool = False, until: Until = "attempt"
    ) -> AsyncIterator[Event]:
        """Yield durable events after `after_seq`, then new events until an attempt ends.

        Args:
            task_id: Run ID.
            after_seq: Skip durable events up to this `seq`.
            deltas: Include stored transient events, starting with those that belong to `after_seq`.
            until: `"end"` continues through pauses and further attempts. It stops when the run is completed, failed, or
                canceled as `superseded` by a later run in the conversation.

        Raises:
            UnknownRun: If the run does not exist. This is raised by the first iteration step.
            LogRolledBack: If an event that was already yielded is missing or different, for example after a restore.
        """

    @abstractmethod
    async def get_record(self, task_id: str) -> RunRecord:
        """Return the run record.

        Raises:
            UnknownRun: If the run does not exist.
        """

    @abstractmethod
    async def list_runs(self, **query: Unpack[RunQuery]) -> Sequence[RunRecord]:
        """Return the records of matching runs in order of arrival, independent of clocks.

        Args:
            query: Filters and paging options, see `RunQuery`. `RunFilter(**query)` validates and applies them.

        Raises:
            UnknownRun: If the run `after` does not exist.
            ConfigurationError: If `limit` is less than one.
        """

    async def count_runs(self, state: State) -> int:
        """Return the number of runs in a state. The default reads their records."""
        return len(await self.list_runs(states=(state,)))

    @abstractmethod
    async def aclose(self) -> None:
        """Close files and connections. This method is idempotent."""

    def append_now(self, task_id: str, events: Sequence[Event], *, expected_seq: int, writer: str = "") -> bool:
        """Append a batch without waiting, and return True. Errors are the same as for `append`.

        The default returns False without writing, and the caller must use `append`.
        """
        return False

    async def list_conversation(self, conversation: str, **query: Unpack[ConversationQuery]) -> Sequence[RunRecord]:
        """Return the records of a conversation in order of arrival.

        Args:
            conversation: Conversation key, see `RunRecord.conversation`.
            query: Filters and paging options.

        Raises:
            UnknownRun: If the run `after` does not exist.
            ConfigurationError: If `limit` is less than one.
        """
        context_id, owner = split_conversation_key(conversation)
        if owner or self.accepts_empty_owner:
            return await self.list_runs(context_id=context_id, owner=owner, **query)
        limit = query.get("limit")
        selected: list[RunRecord] = []
        while True:
            page = await self.list_runs(context_id=context_id, **query)
            selected += [record for record in page if not record.owner]
            if limit is None or len(page) < limit or len(selected) >= limit:
                return selected[:limit]
            query["after"] = page[-1].task_id

    async def read_conversation(
        self, conversation: str, *, before: str, after: Mark | None = None, version: int
    ) -> ConversationPage:
        """Return earlier runs of a conversation, as stored folds or events.

        The default reads the events of each run.

        Args:
            conversation: Conversation key, see `RunRecord.conversation`.
            before: Run ID. All runs are returned if it does not exist.
            after: Mark of a previous page. If earlier runs were not deleted or resumed, only later runs are returned.
            version: Supported version of the fold format.

        Raises:
            EventLogError: If the log read failed.
        """
        # Imported lazily to keep `import rxloop` fast.
        from rxloop.pipeline.records import ConversationPage, Mark, RunEvents

        listed = await self.list_conversation(conversation)
        records = list(takewhile(lambda record: record.task_id != before, listed))
        known = after.runs if after is not None and Mark.after(records[: after.runs]) == after else 0
        parts: list[RunEvents] = []
        for record in records[known:]:
            events = await self.read(record.task_id)
            parts.append(RunEvents(record.task_id, complete=ends_attempt(events[-1]), events=events))
        return ConversationPage(parts, Mark.after(records), from_start=not known)

    async def snapshot(
        self, task_id: str, *, since: Snapshot | None = None, history: HistoryQuery | None = None
    ) -> Snapshot:
        """Return a run with its commands and conversation neighbours. The default makes five or six reads in order.

        Args:
            task_id: Run ID.
            since: Previous snapshot. Only newer data is read.
            history: Requested part of the conversation history.

        Raises:
            UnknownRun: If the run does not exist.
            EventLogError: If the log read failed.
        """
        # Imported lazily to keep `import rxloop` fast.
        from rxloop.pipeline.records import Snapshot, has_started

        record = await self.get_record(task_id)
        known = since.events if since is not None else ()
        new = await self.read(task_id, after_seq=known[-1].seq if known else 0)
        commands = await self.read_commands(task_id, after=since.state.last_command if since is not None else 0)
        # Avoid listing the whole conversation, which may have thousands of runs.
        conversation = record.conversation
        waiting = await self.list_conversation(conversation, states=WAITING, newest_first=True, after=task_id)
        following = await self.list_conversation(conversation, after=task_id)
        later = next((each for each in following if has_started(each.state, each.seq)), None)
        page = None
        if history is not None:
            after, version = history
            page = await self.read_conversation(conversation, before=task_id, after=after, version=version)
        return Snapshot(record, [*known, *new], commands, waiting, later, page)

    def store_folds(self, conversation: str, folds: Sequence[RunFold], *, version: int) -> None:  # noqa: B027
        """Store conversation folds in the background, replacing folds for the same runs.

        Skip folds whose runs have changed. `read_conversation` must not return damaged folds or folds with another
        version. Errors only affect performance. The default stores nothing.
        """

    @property
    def stores_folds(self) -> bool:
        """True if the log overrides `store_folds`."""
        return type(self).store_folds is not EventLog.store_folds

    @property
    def takes_deltas(self) -> bool:
        """True if `append` accepts transient events."""
        return self.keeps_deltas or self.passes_deltas

    @property
    def artifacts(self) -> ArtifactStore | None:
        """Artifact store of the log. If None, agents keep artifacts in memory."""
        return None

    @property
    def local(self) -> LocalState:
        """Process-local state for this log object."""
        state = vars(self).get("_local")
        # `setdefault` is atomic, so concurrent threads get the same object.
        return state if state is not None else vars(self).setdefault("_local", LocalState())

    async def acquire_lease(self, conversation: str, task_id: str, on_lost: Callable[[], None]) -> bool:
        """Acquire a conversation lease for a run.

        The lease belongs to a run and a log object, which is the holder. A holder that is killed or frozen loses its
        leases, and further appends to their runs raise `Fenced`.

        The default stores leases in `local`. Leases of closed event loops can be acquired.

        Args:
            conversation: Conversation key, see `RunRecord.conversation`.
            task_id: Run ID. The run may not exist in the log yet.
            on_lost: Called once in the caller's event loop if another holder acquires the lease.

        Returns:
            False if any run holds the lease and its holder is alive, including this log object.

        Raises:
            EventLogError: If the log is unavailable.
        """
        return self.local.get(LeaseTable).acquire(conversation, task_id)

    async def has_lease(self, conversation: str, task_id: str) -> bool:
        """Return True if this log object still holds the stored lease for a run.

        Runs check this after a pause, because their process may have been frozen for longer than the lease duration.

        Returns:
            False if another holder had the lease in the meantime, even if it is free again.

        Raises:
            EventLogError: If the log is unavailable.
        """
        return self.local.get(LeaseTable).has(conversation, task_id)

    async def release_lease(self, conversation: str, task_id: str) -> None:
        """Release a conversation lease. This method is idempotent and ignores leases that are not held.

        Raises:
            EventLogError: If the log is unavailable. The lease becomes free as if its holder had died.
        """
        self.local.get(LeaseTable).release(conversation, task_id)

    async def list_orphaned(
        self, *, submitted_before: float = 30, submitted_limit: int | None = None, submitted_after: str | None = None
    ) -> Sequence[RunRecord]:
        """Return resumable runs without a live owner, in order of arrival.

        These runs have no live lease holder. They are working, were submitted but not started, were started by a
        process that died, or wait for input and have an unapplied answer or cancel command.

        The default returns unfinished runs without a lease in `local`. It measures `submitted_before` from the time
        when this object first saw a run.

        Args:
            submitted_before: Minimum age in seconds for submitted runs, measured by the log. Newer runs are left to the
                processes that were notified.
            submitted_limit: Maximum number of submitted runs that were not started. None means no limit.
            submitted_after: Return only submitted runs that arrived after this run. Unknown IDs are ignored.

        Raises:
            EventLogError: If the log is unavailable.
        """
        # Imported lazily to keep `import rxloop` fast.
        from rxloop.pipeline.orphaned_runs import list_orphaned

        return await list_orphaned(self, submitted_before, submitted_limit, submitted_after)

    async def is_orphaned(self, task_id: str) -> bool:
        """Return True if a working run has no live owner. The default searches the runs of `list_orphaned`."""
        orphans = await self.list_orphaned(submitted_limit=0)
        return any(each.task_id == task_id and each.state == "working" for each in orphans)

    async def send_command(self, task_id: str, command: Command) -> int:
        """Store a command for a run durably, even if another process owns the run. The default stores it in `local`.

        Commands are deleted with their run. The event of an applied command contains its number as `command_id`.

        Returns:
            Command number, which increases across all runs of the log.

        Raises:
            UnknownRun: If the run does not exist.
            EventLogError: If the command was not stored.
        """
        await self.get_record(task_id)
        return self.local.get(LocalInbox).send(task_id, command)

    async def read_commands(self, task_id: str, *, after: int = 0) -> Sequence[tuple[int, Command]]:
        """Return commands with numbers above `after`, in order.

        Raises:
            UnknownRun: If the run does not exist.
            EventLogError: If the log read failed.
        """
        await self.get_record(task_id)
        return self.local.get(LocalInbox).read(task_id, after)

    def watch_commands(self, task_id: str, notify: Callable[[], None]) -> Callable[[], None]:
        """Call `notify` when new commands may be available, from any process.

        Start watching before reading existing commands. The default only notices commands sent through this object.

        Args:
            task_id: Run ID. The run may not exist in the log yet.
            notify: Called in the caller's event loop, sometimes without a new command.

        Returns:
            Idempotent and thread-safe function to stop watching.
        """
        return self.local.get(LocalInbox).watch(task_id, notify)

    async def delete(self, task_id: str) -> None:
        """Delete a completed or failed run and its commands. The default raises `EventLogError`.

        Raises:
            UnknownRun: If the run does not exist.
            EventLogError: If the run is not finished, or the log does not support deletion.
        """
        raise EventLogError(f"{type(self).__name__} cannot delete runs; override delete()", retryable=False)

    async def trim(
        self, older_than: float, *, states: Collection[State] = _FINISHED, deltas_only: bool = False
    ) -> list[str]:
        """Delete old completed or failed runs. The default raises `EventLogError`.

        Args:
            older_than: Minimum age of the last event in seconds.
            states: States to delete, from `completed` and `failed`.
            deltas_only: Delete only transient events.

        Returns:
            IDs of affected runs.

        Raises:
            EventLogError: If the log write failed, or the log does not support deletion.
        """
        raise EventLogError(f"{type(self).__name__} cannot delete runs; override trim()", retryable=False)
