"""An event log in Postgres: for many machines."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from functools import cached_property, partial
from typing import Literal

from typing_extensions import Unpack

from rxloop.errors import ConfigurationError
from rxloop.eventlog._postgres.address import Address, Connection
from rxloop.eventlog._postgres.engine import Engine, Engines
from rxloop.eventlog._postgres.folds import keep, parts
from rxloop.eventlog._postgres.reads import (
    condition_of,
    histories,
    mail_of,
    orphans,
    page,
    record,
    records,
)
from rxloop.eventlog._postgres.removing import AT_ONCE, remove_run, trim
from rxloop.eventlog._postgres.rows import Batch, put_mail
from rxloop.eventlog._postgres.schema import migrate
from rxloop.eventlog._tail import PAGE, Page, Place, followed
from rxloop.eventlog.rules import FINISHED, check_batch
from rxloop.eventlog.wanted import Choice, Wanted, check_limit
from rxloop.pipeline.seams import ArtifactStore
from rxloop.pipeline.values import Histories, KeptFold, Mark, Parts, RunRecord, Until
from rxloop.protocol.events import Event, State
from rxloop.protocol.mail import Mail

log = logging.getLogger("rxloop")

Deltas = Literal["drop", "live", "keep"]

_SETTLING = 5.0
"""Seconds after a start of the server, or a broken session, in which nobody is taken for dead: the living come back."""


class PostgresEventLog:
    """Keeps the durable events of runs in a Postgres database, for any number of processes and machines.

    The tables are in a schema of their own, and are made at the first use, or by `migrate`. A process has at most six
    connections, however many runs it writes and however many readers follow them. A server that restarts, or is
    replaced by another one, is waited for.

    Example:
        >>> log = PostgresEventLog("postgresql://app@db.internal/app")
        >>> agent = Agent("zai:glm-4.7", log=log)
        >>> for record in await log.orphans():
        ...     await agent.settle(record.task_id)
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
        self.identity = self._address.identity
        """What two logs on one database and schema have in common."""
        self.keeps_deltas = deltas == "keep"
        self.passes_deltas = deltas != "drop"
        self.lease: float | None = lease
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
        """The events of a run after `after_seq`, in order, as `EventLog.read` gives them.

        Raises:
            UnknownRun: The log holds no such run.
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
            UnknownRun: The log holds no such run.
            LogWentBack: The log lacks an event that was given, as after a failover.
            EventLogError: The server cannot be read, or the log was closed.
        """
        engine = self._engine()
        page = partial(self._page, task_id, deltas, PAGE, engine=engine)
        joined = partial(engine.hearing.tails.joined, task_id)
        async for event in followed(task_id, page, joined, after_seq, deltas, until):
            yield event

    async def histories(self, context_id: str, *, before: str, after: Mark | None = None) -> Histories:
        """The durable events of a conversation before a run, as `ReadsConversations.histories` gives them.

        Raises:
            EventLogError: The server cannot be read.
        """
        return await self._engine().reading(
            lambda connection: histories(connection, self._address, context_id, before, after)
        )

    async def parts(self, context_id: str, *, before: str, after: Mark | None = None, version: int) -> Parts:
        """The runs of a conversation before a run, as `KeepsFolds.parts` gives them.

        Raises:
            EventLogError: The server cannot be read.
        """
        return await self._engine().reading(
            lambda connection: parts(connection, self._address, context_id, before, after, version)
        )

    def keep_folds(self, context_id: str, folds: Sequence[KeptFold], *, version: int) -> None:
        """Keep folds of a conversation when there is time, as `KeepsFolds.keep_folds` says."""
        engine = self._engine()
        engine.when_there_is_time(
            lambda connection: keep(connection, self._address, context_id, folds, version),
            lambda error: log.debug("no folds are kept in %s: %s", self._address, error),
        )

    # -- the runs

    async def record(self, task_id: str) -> RunRecord:
        """What is known of a run without its events.

        Raises:
            UnknownRun: The log holds no such run.
            EventLogError: The server cannot be read.
        """
        return await self._engine().reading(lambda connection: record(connection, self._address, task_id))

    async def runs(
        self,
        *,
        latest_only: bool = False,
        newest_first: bool = False,
        after: str | None = None,
        limit: int | None = None,
        **wanted: Unpack[Choice],
    ) -> Sequence[RunRecord]:
        """The runs of the log, or those like this, in the order in which it got them, as `EventLog.runs` lists them.

        A run has its number before it is committed, so one of another process may still come to stand before a run that
        was listed a moment ago, and then is not after it: pages are for what is there, and not for hearing of new runs.

        Raises:
            UnknownRun: The log does not hold the run `after`.
            ConfigurationError: `limit` is less than one.
            EventLogError: The server cannot be read.
        """
        check_limit(limit)
        where = condition_of(Wanted(**wanted), latest_only)
        return await self._engine().reading(
            lambda connection: records(connection, self._address, where, after, limit, newest_first)
        )

    # -- turns

    async def take_turn(self, context_id: str, task_id: str, lost: Callable[[], None]) -> bool:
        """Take the turn of a conversation for a run, as `TakesTurns.take_turn` says.

        Raises:
            EventLogError: The server cannot be asked.
        """
        return await self._engine().turns.take(context_id, task_id, lost)

    async def has_turn(self, context_id: str, task_id: str) -> bool:
        """Tell whether the turn is still that of this log object, as `TakesTurns.has_turn` says.

        Raises:
            EventLogError: The server cannot be asked.
        """
        return await self._engine().turns.ask(context_id, task_id)

    async def give_turn_back(self, context_id: str, task_id: str) -> None:
        """Give the turn back, as `TakesTurns.give_turn_back` says.

        Raises:
            EventLogError: The server cannot be asked.
        """
        await self._engine().turns.give_back(context_id, task_id)

    async def orphans(
        self, *, submitted_before: float = 30, submitted_limit: int | None = None, submitted_after: str | None = None
    ) -> Sequence[RunRecord]:
        """The runs that wait for somebody to go on with them, as `TakesTurns.orphans` says.

        There are none for a moment after the server has started, or this process has found a connection broken, since
        a standby that takes over has started long before: those who are alive take their turns again then.

        Raises:
            EventLogError: The server cannot be read.
        """
        engine = self._engine()
        if engine.came_back_within(_SETTLING):
            return []
        found = await engine.reading(
            lambda connection: orphans(
                connection, self._address, (submitted_before, submitted_limit, submitted_after), _SETTLING
            )
        )
        # It may have come back for this.
        return [] if engine.came_back_within(_SETTLING) else found

    # -- mail

    async def send(self, task_id: str, mail: Mail) -> int:
        """Put a letter into the mail of a run, as `Mailbox.send` says; then it is committed.

        Raises:
            UnknownRun: The log holds no such run.
            EventLogError: The server does not take it.
        """
        engine, key = self._engine(), secrets.token_hex(16)
        return await engine.writing(lambda connection: put_mail(connection, self._address, task_id, key, mail))

    async def mail(self, task_id: str, *, after: int = 0) -> Sequence[tuple[int, Mail]]:
        """The letters of a run after that number, as `Mailbox.mail` gives them.

        Raises:
            UnknownRun: The log holds no such run.
            EventLogError: The server cannot be read.
        """
        return await self._engine().reading(lambda connection: mail_of(connection, self._address, task_id, after))

    def watch(self, task_id: str, arrived: Callable[[], None]) -> Callable[[], None]:
        """Be told when there may be new mail for a run, as `Mailbox.watch` says."""
        return self._engine().hearing.watch(task_id, arrived)

    # -- what is kept

    async def delete(self, task_id: str) -> None:
        """Remove a run that has ended for good.

        Raises:
            UnknownRun: The log holds no such run.
            EventLogError: The run can still go on, or the server cannot be written.
        """
        await self._engine().writing(lambda connection: remove_run(connection, self._address, task_id))

    async def trim(
        self, older_than: float, *, states: Collection[State] = FINISHED, deltas_only: bool = False
    ) -> list[str]:
        """Remove the runs that ended for good, and longer ago than that. A run that can still go on always stays.

        Args:
            older_than: Seconds since the last event of a run.
            states: Only runs in these states, of `completed` and `failed`.
            deltas_only: Remove only the transient events of these runs.

        Returns:
            The ids of the runs that something was removed of.

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

    @cached_property
    def artifacts(self) -> ArtifactStore:
        """Where the artifacts of these runs are kept, unless an agent is told otherwise: in the same schema."""
        # Few runs make any.
        from rxloop.eventlog.postgres_artifacts import PostgresArtifacts

        return PostgresArtifacts.over(self._engines)

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
            lambda connection: page(connection, self._address, task_id, after, deltas, limit)
        )
