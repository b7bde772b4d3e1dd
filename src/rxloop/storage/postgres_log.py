"""Postgres event log."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Literal

from typing_extensions import Unpack

from rxloop.errors import ConfigurationError
from rxloop.pipeline.artifacts import ArtifactStore
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.records import (
    FINISHED,
    ConversationPage,
    HistoryQuery,
    Mark,
    RunFilter,
    RunQuery,
    RunRecord,
    Snapshot,
    Until,
)
from rxloop.protocol.commands import Command
from rxloop.protocol.events import Event, State
from rxloop.state.run_state import RunFold
from rxloop.storage.postgres import reads
from rxloop.storage.postgres.address import Address, Connection
from rxloop.storage.postgres.engine import Engine, Engines
from rxloop.storage.postgres.rows import RUNS_PER_TRANSACTION, Batch, count_runs, insert_command, remove_run, trim
from rxloop.storage.postgres.schema import migrate
from rxloop.storage.postgres.serial_connection import T
from rxloop.storage.rules import check_batch, count_items
from rxloop.storage.tail import Page, Position, follow_events
from rxloop.support.threads import compute

log = logging.getLogger("rxloop")

Deltas = Literal["drop", "live", "keep"]

_GRACE_PERIOD = 5.0
"""Grace period in seconds after a server start or connection failure, in which runs are not reported as orphaned,
because their owners may still be reconnecting."""


class PostgresEventLog(EventLog):
    """Event log in a Postgres database, for multiple processes and machines.

    The tables have their own schema, which is created on first use or by `migrate`. A process opens at most six
    connections, regardless of the number of runs and readers. Calls wait for a server restart or failover.

    Example:
        >>> log = PostgresEventLog("postgresql://app@db.internal/app")
        >>> agent = Agent("zai:glm-4.7", log=log)
        >>> for record in await log.list_orphaned():
        ...     await agent.get_run(record.task_id).execute()
    """

    def __init__(
        self,
        dsn: str,
        *,
        session_dsn: str | None = None,
        schema: str = "rxloop",
        deltas: Deltas = "live",
        lease: float = 10,
        timeout: float = 10,
    ) -> None:
        """Create a log without connecting.

        Args:
            dsn: Database URL such as `postgresql://user@host:5432/database`, or a string such as `host=... dbname=...`.
                Missing parts are read from libpq environment variables such as `PGHOST` and `PGPASSWORD`.
            session_dsn: Database URL that bypasses PgBouncer. Required if `dsn` uses transaction pooling, because
                leases and notifications need a session.
            schema: Schema of the tables. A database may contain several logs.
            deltas: Handling of transient events. `"live"` merges them and sends them to current followers in any
                process, without storing them. `"keep"` also stores them with their timestamps for exact replays.
                `"drop"` discards them.
            lease: Lease duration in seconds. The process sends four heartbeats per period. A killed process loses its
                leases immediately, and a frozen process after this time.
            timeout: Maximum time in seconds to retry while the server is unreachable.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        if deltas not in ("drop", "live", "keep"):
            raise ConfigurationError(f"deltas must be 'drop', 'live' or 'keep', got {deltas!r}.")
        self._address = Address(dsn, session_dsn or dsn, schema)
        self._artifacts: ArtifactStore | None = None
        self.accepts_empty_owner = True
        self.keeps_deltas = deltas == "keep"
        self.passes_deltas = deltas != "drop"
        self.lease_seconds = lease
        self._engines = Engines(self._address, retry_seconds=timeout, lease=lease)

    def __repr__(self) -> str:
        return f"<PostgresEventLog {self._address}>"

    async def append(self, task_id: str, events: Sequence[Event], *, expected_seq: int, writer: str = "") -> None:
        """Append a batch to a run atomically and commit it, implementing `EventLog.append`.

        Concurrent batches of this process share a statement. The call waits for an unavailable server.

        Raises:
            ConflictError: If the last stored `seq` is different, because another writer appends to the run.
            Fenced: If another holder has the conversation lease.
            LogUnreachable: If the server did not respond within `timeout`. The batch may have been stored.
            EventLogError: If an event has the wrong number, or the server rejects the batch.
        """
        engine = self._engine()
        has_lease = engine.leases.has(task_id)

        def encode() -> Batch | None:
            check_batch(task_id, events, expected_seq, self.passes_deltas)
            options = {"has_lease": has_lease, "live": not self.keeps_deltas}
            return Batch(task_id, events, expected_seq, writer, **options) if events else None

        batch = await compute(encode, steps=count_items(events))
        if batch is not None:
            await engine.writer.append(batch)

    async def read(self, task_id: str, *, after_seq: int = 0, deltas: bool = False) -> Sequence[Event]:
        """Return events after `after_seq`, implementing `EventLog.read`.

        Raises:
            UnknownRun: If the run does not exist.
            EventLogError: If the database read fails.
        """
        return tuple((await self._read_page(task_id, deltas, False, (after_seq + 1, 0))).events)

    async def follow(
        self, task_id: str, *, after_seq: int = 0, deltas: bool = False, until: Until = "attempt"
    ) -> AsyncIterator[Event]:
        """Yield stored events after `after_seq`, then new events from any process.

        Implements `EventLog.follow`. Followers in one process share their database reads. Iteration stops after the
        final event of an attempt, unless a later attempt has already started.

        Raises:
            UnknownRun: If the run does not exist.
            LogRolledBack: If an event that was already yielded is missing, for example after a failover.
            EventLogError: If the database read fails, or the log is closed.
        """
        engine = self._engine()
        page = partial(self._read_page, task_id, deltas, True, engine=engine)
        join = partial(engine.listener.tails.join, task_id)
        async for event in follow_events(task_id, page, join, after_seq, deltas, until):
            yield event

    async def snapshot(
        self, task_id: str, *, since: Snapshot | None = None, history: HistoryQuery | None = None
    ) -> Snapshot:
        """Return a run and its neighbours, implementing `EventLog.snapshot`.

        Raises:
            UnknownRun: If the run does not exist.
            EventLogError: If the database read fails.
        """
        return await self._engine().run_read(
            lambda connection: reads.read_snapshot(connection, self._address, task_id, since, history)
        )

    async def read_conversation(
        self, conversation: str, *, before: str, after: Mark | None = None, version: int
    ) -> ConversationPage:
        """Return earlier runs of a conversation, implementing `EventLog.read_conversation`.

        Raises:
            EventLogError: If the database read fails.
        """
        return await self._engine().run_read(
            lambda connection: reads.read_conversation(connection, self._address, conversation, before, after, version)
        )

    def store_folds(self, conversation: str, folds: Sequence[RunFold], *, version: int) -> None:
        """Store conversation folds in the background, implementing `EventLog.store_folds`."""
        engine = self._engine()
        engine.run_in_background(
            lambda connection: reads.store_folds(connection, self._address, conversation, folds, version),
            lambda error: log.debug("Cannot store folds in %s: %s", self._address, error),
        )

    async def get_record(self, task_id: str) -> RunRecord:
        """Return the run record.

        Raises:
            UnknownRun: If the run does not exist.
            EventLogError: If the database read fails.
        """
        return await self._engine().run_read(lambda connection: reads.read_record(connection, self._address, task_id))

    async def list_runs(self, **query: Unpack[RunQuery]) -> Sequence[RunRecord]:
        """Return the records of matching runs, implementing `EventLog.list_runs`.

        Run numbers are assigned before commit. Another process may therefore commit a run that precedes an already
        listed run, and later pages will not contain it. Do not use pages to detect new runs.

        Raises:
            UnknownRun: If the run `after` does not exist.
            ConfigurationError: If `limit` is less than one.
            EventLogError: If the database read fails.
        """
        criteria = RunFilter(**query)
        return await self._engine().run_read(lambda connection: reads.read_records(connection, self._address, criteria))

    async def count_runs(self, state: State) -> int:
        """Return the number of runs in a state, implementing `EventLog.count_runs`.

        Raises:
            EventLogError: If the database read fails.
        """
        return await self._engine().run_read(lambda connection: count_runs(connection, self._address, state))

    async def acquire_lease(self, conversation: str, task_id: str, on_lost: Callable[[], None]) -> bool:
        """Acquire the conversation lease for a run, implementing `EventLog.acquire_lease`.

        Raises:
            EventLogError: If the server is unavailable.
        """
        return await self._engine().leases.acquire(conversation, task_id, on_lost)

    async def has_lease(self, conversation: str, task_id: str) -> bool:
        """Return True if this log object still holds the lease, implementing `EventLog.has_lease`.

        Raises:
            EventLogError: If the server is unavailable.
        """
        return await self._engine().leases.verify(conversation, task_id)

    async def release_lease(self, conversation: str, task_id: str) -> None:
        """Release the lease, implementing `EventLog.release_lease`.

        Raises:
            EventLogError: If the server is unavailable.
        """
        await self._engine().leases.release(conversation, task_id)

    async def list_orphaned(
        self, *, submitted_before: float = 30, submitted_limit: int | None = None, submitted_after: str | None = None
    ) -> Sequence[RunRecord]:
        """Return resumable runs without a live owner, implementing `EventLog.list_orphaned`.

        The result is empty shortly after a server start or a broken connection, so that owners can acquire their leases
        again. Connection failures are considered because a standby starts long before a failover.

        Raises:
            EventLogError: If the database read fails.
        """
        submitted = (submitted_before, submitted_limit, submitted_after)
        return await self._read_orphaned(partial(reads.list_orphaned, submitted=submitted), [])

    async def is_orphaned(self, task_id: str) -> bool:
        """Return True if a working run has no live owner, implementing `EventLog.is_orphaned`.

        Raises:
            EventLogError: If the database read fails.
        """
        return await self._read_orphaned(partial(reads.is_orphaned, task_id=task_id), False)

    async def _read_orphaned(self, query: Callable[..., Awaitable[T]], default: T) -> T:
        """Return the result of a query about orphaned runs, or the default shortly after a broken connection."""
        engine = self._engine()
        if engine.has_reconnected(_GRACE_PERIOD):
            return default
        result = await engine.run_read(lambda connection: query(connection, self._address, grace_period=_GRACE_PERIOD))
        # Check again, because the query itself may have reconnected.
        return default if engine.has_reconnected(_GRACE_PERIOD) else result

    async def send_command(self, task_id: str, command: Command) -> int:
        """Store a command for a run and commit it, implementing `EventLog.send_command`.

        Raises:
            UnknownRun: If the run does not exist.
            EventLogError: If the database write fails.
        """
        engine, key = self._engine(), secrets.token_hex(16)
        return await engine.run_write(lambda each: insert_command(each, self._address, task_id, key, command))

    async def read_commands(self, task_id: str, *, after: int = 0) -> Sequence[tuple[int, Command]]:
        """Return commands sent to a run, implementing `EventLog.read_commands`.

        Raises:
            UnknownRun: If the run does not exist.
            EventLogError: If the database read fails.
        """
        return await self._engine().run_read(lambda each: reads.read_commands(each, self._address, task_id, after))

    def watch_commands(self, task_id: str, notify: Callable[[], None]) -> Callable[[], None]:
        """Call `notify` when new commands may be available, implementing `EventLog.watch_commands`."""
        return self._engine().listener.watch(task_id, notify)

    async def delete(self, task_id: str) -> None:
        """Delete a finished run.

        Raises:
            UnknownRun: If the run does not exist.
            EventLogError: If the run is not finished, or the database write fails.
        """
        await self._engine().run_write(lambda connection: remove_run(connection, self._address, task_id))

    async def trim(
        self, older_than: float, *, states: Collection[State] = FINISHED, deltas_only: bool = False
    ) -> list[str]:
        """Delete old finished runs, implementing `EventLog.trim`.

        Raises:
            EventLogError: If the database write fails.
        """
        before = round((time.time() - older_than) * 1000)
        criteria = [state for state in states if state in FINISHED]
        removed: list[str] = []
        after = 0
        while True:
            # Use small transactions, so that other writers are not blocked.
            work = partial(
                trim, address=self._address, before=before, states=criteria, deltas_only=deltas_only, after=after
            )
            rows = await self._engine().run_write(work)
            removed += [task_id for _, task_id in rows]
            if len(rows) < RUNS_PER_TRANSACTION:
                return removed
            after = rows[-1][0]

    async def migrate(self, *, grant: str | None = None) -> None:
        """Create the tables, or migrate them to the current version.

        This happens automatically on first use. Call it explicitly if the regular role lacks the necessary permissions.

        Args:
            grant: Role that receives the minimum permissions for using the log.

        Raises:
            EventLogError: If the role lacks permissions, or the database write fails.
        """

        async def work(connection: Connection) -> None:
            await migrate(connection, self._address, grant)

        await self._engine().run_unchecked(work)

    @property
    def artifacts(self) -> ArtifactStore:
        """Artifact store in the same schema."""
        if self._artifacts is None:
            # Created lazily, because few runs write artifacts.
            from rxloop.storage.postgres_artifacts import PostgresArtifacts

            self._artifacts = PostgresArtifacts.from_engines(self._engines)
        return self._artifacts

    async def aclose(self) -> None:
        """Close the connections. This method is idempotent, and later calls reconnect."""
        await self._engines.aclose()

    def _engine(self) -> Engine:
        return self._engines.get()

    async def _read_page(
        self, task_id: str, deltas: bool, paged: bool, after: Position, *, engine: Engine | None = None
    ) -> Page:
        """Read a page of events, or all events."""
        return await (engine or self._engine()).run_read(
            lambda connection: reads.read_page(connection, self._address, task_id, after, deltas, paged)
        )
