"""Event log in a Postgres database."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
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
from rxloop.storage.postgres.address import Address, Connection
from rxloop.storage.postgres.engine import Engine, Engines
from rxloop.storage.postgres.reads import (
    list_orphaned,
    read_commands,
    read_conversation,
    read_page,
    read_record,
    read_records,
    read_snapshot,
    store_folds,
)
from rxloop.storage.postgres.rows import AT_ONCE, Batch, put_command, remove_run, trim
from rxloop.storage.postgres.schema import migrate
from rxloop.storage.rules import check_batch
from rxloop.storage.tail import PAGE, Page, Place, followed

log = logging.getLogger("rxloop")

Deltas = Literal["drop", "live", "keep"]

_SETTLING = 5.0
"""Seconds after a start of the server, or a broken session, in which nobody is taken for dead: the living come back."""


class PostgresEventLog(EventLog):
    """Keeps the durable events of runs in a Postgres database, for any number of processes and machines.

    The tables are in a schema of their own, and are made at the first use, or by `migrate`. A process has at most six
    connections, however many runs it writes and however many readers follow them. A server that restarts, or is
    replaced by another one, is waited for.

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
        patience: float = 10,
    ) -> None:
        """Make a log; nothing is connected yet.

        Args:
            dsn: The database, as `postgresql://user@host:5432/database` or `host=... dbname=...`. What is left out is
                taken from the environment (`PGHOST`, `PGPASSWORD`, ...), as psql does.
            session_dsn: The same database past a PgBouncer that `dsn` goes through, if that gives connections for one
                transaction at a time: turns and notifications need one of their own.
            schema: The schema of the tables; several logs may be in one database.
            deltas: What becomes of transient events: `"live"` gives them to those who follow at that moment, wherever
                they are, put together as they are written, and does not keep them; `"keep"` keeps them as well, with
                their times, for faithful replays; `"drop"` does neither.
            lease: Seconds for which this process may be silent until others may take its turns: it says four times as
                often that it is alive. One that is killed is found at once, one that is frozen after so long.
            patience: Seconds for which a server that cannot be reached is asked again before a call fails.

        Raises:
            ConfigurationError: An argument cannot be used.
        """
        if deltas not in ("drop", "live", "keep"):
            raise ConfigurationError(f"deltas is 'drop', 'live' or 'keep', not {deltas!r}")
        self._address = Address(dsn, session_dsn or dsn, schema)
        self._artifacts: ArtifactStore | None = None
        self.keeps_deltas = deltas == "keep"
        self.passes_deltas = deltas != "drop"
        self.lease_seconds = lease
        self._engines = Engines(self._address, patience=patience, lease=lease)

    def __repr__(self) -> str:
        return f"<PostgresEventLog {self._address}>"

    # -- the events

    async def append(self, task_id: str, events: Sequence[Event], *, expected_seq: int, writer: str = "") -> None:
        """Append a batch to a run, or nothing of it, as `EventLog.append` says; then it is committed.

        What waits in this process is written together. A server that is away is waited for.

        Raises:
            ConflictError: The log holds another last `seq`: somebody else writes this run.
            Fenced: Somebody else has the turn of the conversation.
            LogUnreachable: The server has not answered for as long as `patience`; whether it wrote is not known.
            EventLogError: An event has the wrong number, or the server refuses it; the message says why.
        """
        check_batch(task_id, events, expected_seq, self.passes_deltas)
        if not events:
            return
        engine = self._engine()
        mine = engine.turns.has(events[0].context_id, task_id)
        batch = Batch(task_id, events, expected_seq, writer, mine=mine, live=not self.keeps_deltas)
        await engine.writer.append(batch)

    async def read(self, task_id: str, *, after_seq: int = 0, deltas: bool = False) -> Sequence[Event]:
        """Return the events of a run after `after_seq`, as `EventLog.read` says.

        Raises:
            UnknownRun: The log does not have the run.
            EventLogError: The server cannot be read.
        """
        return tuple((await self._page(task_id, deltas, None, (after_seq + 1, 0))).events)

    async def follow(
        self, task_id: str, *, after_seq: int = 0, deltas: bool = False, until: Until = "attempt"
    ) -> AsyncIterator[Event]:
        """The events after `after_seq`, then those that come, from whatever process; see `EventLog.follow`.

        All who follow a run in this process share what is read of it. It ends when it has caught up with the final
        event of an attempt, whatever its state; if a later attempt has begun by then, it goes on with that one.

        Raises:
            UnknownRun: The log does not have the run.
            LogRolledBack: The log lacks an event that was given, as after a failover.
            EventLogError: The server cannot be read, or the log was closed.
        """
        engine = self._engine()
        page = partial(self._page, task_id, deltas, PAGE, engine=engine)
        joined = partial(engine.hearing.tails.joined, task_id)
        async for event in followed(task_id, page, joined, after_seq, deltas, until):
            yield event

    async def snapshot(
        self, task_id: str, *, since: Snapshot | None = None, history: HistoryQuery | None = None
    ) -> Snapshot:
        """Return a run with its neighbours, as `EventLog.snapshot` says.

        Raises:
            UnknownRun: The log does not have the run.
            EventLogError: The server cannot be read.
        """
        return await self._engine().reading(
            lambda connection: read_snapshot(connection, self._address, task_id, since, history)
        )

    async def read_conversation(
        self, context_id: str, *, before: str, after: Mark | None = None, version: int
    ) -> ConversationPage:
        """Return the runs of a conversation that come before a run, as `EventLog.read_conversation` says.

        Raises:
            EventLogError: The server cannot be read.
        """
        return await self._engine().reading(
            lambda connection: read_conversation(connection, self._address, context_id, before, after, version)
        )

    def store_folds(self, context_id: str, folds: Sequence[RunFold], *, version: int) -> None:
        """Store folds of a conversation when there is time, as `EventLog.store_folds` says."""
        engine = self._engine()
        engine.when_there_is_time(
            lambda connection: store_folds(connection, self._address, context_id, folds, version),
            lambda error: log.debug("no folds are kept in %s: %s", self._address, error),
        )

    # -- the runs

    async def get_record(self, task_id: str) -> RunRecord:
        """Return the record of a run.

        Raises:
            UnknownRun: The log does not have the run.
            EventLogError: The server cannot be read.
        """
        return await self._engine().reading(lambda connection: read_record(connection, self._address, task_id))

    async def list_runs(self, **query: Unpack[RunQuery]) -> Sequence[RunRecord]:
        """Return the records of the matching runs, as `EventLog.list_runs` says.

        A run has its number before it is committed, so one of another process may still come to stand before a run that
        was listed a moment ago, and then is not after it: pages are for what is there, and not for hearing of new runs.

        Raises:
            UnknownRun: The log does not have the run `after`.
            ConfigurationError: `limit` is less than one.
            EventLogError: The server cannot be read.
        """
        wanted = RunFilter(**query)
        return await self._engine().reading(lambda connection: read_records(connection, self._address, wanted))

    # -- turns

    async def acquire_lease(self, context_id: str, task_id: str, on_lost: Callable[[], None]) -> bool:
        """Acquire the lease of a conversation for a run, as `EventLog.acquire_lease` says.

        Raises:
            EventLogError: The server cannot be asked.
        """
        return await self._engine().turns.take(context_id, task_id, on_lost)

    async def has_lease(self, context_id: str, task_id: str) -> bool:
        """Return True if this log object still holds the lease, as `EventLog.has_lease` says.

        Raises:
            EventLogError: The server cannot be asked.
        """
        return await self._engine().turns.ask(context_id, task_id)

    async def release_lease(self, context_id: str, task_id: str) -> None:
        """Release the lease, as `EventLog.release_lease` says.

        Raises:
            EventLogError: The server cannot be asked.
        """
        await self._engine().turns.give_back(context_id, task_id)

    async def list_orphaned(
        self, *, submitted_before: float = 30, submitted_limit: int | None = None, submitted_after: str | None = None
    ) -> Sequence[RunRecord]:
        """Return the runs that can continue and have no living owner, as `EventLog.list_orphaned` says.

        There are none for a moment after the server has started, or this process has found a connection broken, since
        a standby that takes over has started long before: those who are alive take their turns again then.

        Raises:
            EventLogError: The server cannot be read.
        """
        engine = self._engine()
        if engine.came_back_within(_SETTLING):
            return []
        found = await engine.reading(
            lambda connection: list_orphaned(
                connection, self._address, (submitted_before, submitted_limit, submitted_after), _SETTLING
            )
        )
        # It may have come back for this.
        return [] if engine.came_back_within(_SETTLING) else found

    # -- mail

    async def send_command(self, task_id: str, command: Command) -> int:
        """Store a command for a run, as `EventLog.send_command` says; then it is committed.

        Raises:
            UnknownRun: The log does not have the run.
            EventLogError: The server does not take it.
        """
        engine, key = self._engine(), secrets.token_hex(16)
        return await engine.writing(lambda connection: put_command(connection, self._address, task_id, key, command))

    async def read_commands(self, task_id: str, *, after: int = 0) -> Sequence[tuple[int, Command]]:
        """Return the commands of a run, as `EventLog.read_commands` says.

        Raises:
            UnknownRun: The log does not have the run.
            EventLogError: The server cannot be read.
        """
        return await self._engine().reading(lambda connection: read_commands(connection, self._address, task_id, after))

    def watch_commands(self, task_id: str, notify: Callable[[], None]) -> Callable[[], None]:
        """Call `notify` when there may be new commands for a run, as `EventLog.watch_commands` says."""
        return self._engine().hearing.watch(task_id, notify)

    # -- what is kept

    async def delete(self, task_id: str) -> None:
        """Remove a run that has ended for good.

        Raises:
            UnknownRun: The log does not have the run.
            EventLogError: The run can still go on, or the server cannot be written.
        """
        await self._engine().writing(lambda connection: remove_run(connection, self._address, task_id))

    async def trim(
        self, older_than: float, *, states: Collection[State] = FINISHED, deltas_only: bool = False
    ) -> list[str]:
        """Remove old finished runs, as `EventLog.trim` says.

        Raises:
            EventLogError: The server cannot be written.
        """
        before = round((time.time() - older_than) * 1000)
        wanted = [state for state in states if state in FINISHED]
        removed: list[str] = []
        after = 0
        while True:
            # A few at once, so that others can write meanwhile.
            work = partial(
                trim, address=self._address, before=before, states=wanted, deltas_only=deltas_only, after=after
            )
            found = await self._engine().writing(work)
            removed += [task_id for _, task_id in found]
            if len(found) < AT_ONCE:
                return removed
            after = found[-1][0]

    async def migrate(self, *, grant: str | None = None) -> None:
        """Make the tables, or bring them to the version that this program knows, as a role that may do so.

        A log does that by itself at its first use. Where its role has few rights, another one does it before.

        Args:
            grant: A role that gets the rights that a log needs from then on, and no more.

        Raises:
            EventLogError: The role may not, or the server cannot be written.
        """

        async def work(connection: Connection) -> None:
            await migrate(connection, self._address, grant)

        await self._engine().as_owner(work)

    @property
    def artifacts(self) -> ArtifactStore:
        """Artifact store in the same schema."""
        if self._artifacts is None:
            # Few runs make any.
            from rxloop.storage.postgres_artifacts import PostgresArtifacts

            self._artifacts = PostgresArtifacts.over(self._engines)
        return self._artifacts

    async def aclose(self) -> None:
        """Close the connections; may be called more than once. A log that is used again makes others."""
        await self._engines.aclose()

    def _engine(self) -> Engine:
        return self._engines.here()

    async def _page(
        self, task_id: str, deltas: bool, limit: int | None, after: Place, *, engine: Engine | None = None
    ) -> Page:
        """Events of a run after a place."""
        return await (engine or self._engine()).reading(
            lambda connection: read_page(connection, self._address, task_id, after, deltas, limit)
        )
