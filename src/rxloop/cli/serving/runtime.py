"""What `rxloop serve` serves: the agents that a module has, on a log."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from rxloop.agent import Agent
from rxloop.cli.agent_options import agents_of, load, made_of
from rxloop.cli.store import opened
from rxloop.errors import ConfigurationError
from rxloop.eventlog.opening import is_postgres
from rxloop.runtime.runtime import Runtime


@dataclass(frozen=True, slots=True)
class Cluster:
    """What several processes have in common: a Postgres database, with its log and its queue.

    Attributes:
        db: Its address.
        session_db: Its address past a PgBouncer, where `db` goes through one.
        tenant_limit: How many runs of one owner go on at once.
        version: That of the program.
    """

    db: str | None
    session_db: str | None = None
    tenant_limit: int | None = None
    version: str | None = None

    @asynccontextmanager
    async def runtime(self, agents: Mapping[str, Agent[Any, Any]], **options: Any) -> AsyncGenerator[Runtime]:
        """Make a runtime of agents on it, with these options; what is opened for it is closed.

        Raises:
            ConfigurationError: The database is not a Postgres.
            EventLogError: It cannot be reached.
        """
        if self.db is None or not is_postgres(self.db):
            raise ConfigurationError(
                "a queue needs a Postgres that all processes reach: --db postgresql://user@host/database, or RXLOOP_DB"
            )
        # Imported here: the extra may be missing.
        from rxloop.eventlog.postgres import PostgresEventLog
        from rxloop.workers.postgres import PostgresQueue

        log = PostgresEventLog(self.db, session_dsn=self.session_db)
        queue = PostgresQueue(self.session_db or self.db, tenant_limit=self.tenant_limit)
        try:
            await log.runs(limit=1)
            yield Runtime(agents, log=log, queue=queue, version=self.version, **options)
        finally:
            await queue.aclose()
            await log.aclose()


@asynccontextmanager
async def runtime_of(
    reference: str, db: str | None, *, named: bool = False, cluster: Cluster | None = None
) -> AsyncGenerator[Runtime]:
    """Make the runtime of what `module:object` names; a log that is opened for it is closed.

    Args:
        reference: Names agents, or a runtime.
        db: Where the runs of agents are kept.
        named: Whether somebody has asked for that place, and a runtime, which has one, is a mistake.
        cluster: What workers are called by, where runs are not to go on in this process.

    Raises:
        ConfigurationError: It is none of what can be served.
    """
    found = made_of(load(reference, "rxloop serve"), reference, "rxloop serve")
    if isinstance(found, Runtime):
        if named or cluster is not None:
            option = "--db" if named else "--queue"
            raise ConfigurationError(f"{option} does not go with {reference!r}: that runtime has a log of its own")
        yield found
        return
    agents = agents_of(found, reference)
    if agents is None:
        raise ConfigurationError(
            f"rxloop serve {reference!r} is {found!r}: it must be an Agent, a dict of agents, a Runtime, or a function "
            "that gives one"
        )
    if cluster is not None:
        async with cluster.runtime(agents) as runtime:
            yield runtime
        return
    async with opened(db, write=True) as log:
        yield Runtime(agents, log=log)


@asynccontextmanager
async def worker_of(reference: str, cluster: Cluster, **options: Any) -> AsyncGenerator[Runtime]:
    """Make a runtime that works, of what `module:object` names; what is opened for it is closed.

    Args:
        reference: Names agents, or a runtime that works.
        cluster: Where it works.
        **options: Those of the runtime.

    Raises:
        ConfigurationError: It is none of what can work.
    """
    found = made_of(load(reference, "rxloop worker"), reference, "rxloop worker")
    if isinstance(found, Runtime):
        if not (found.works and found.queue):
            raise ConfigurationError(
                f"{found!r} of {reference!r} is no worker: make it by Runtime(..., queue=queue, works=True)"
            )
        yield found
        return
    agents = agents_of(found, reference)
    if agents is None:
        raise ConfigurationError(
            f"rxloop worker {reference!r} is {found!r}: it must be an Agent, a dict of agents, a Runtime that works, "
            "or a function that gives one"
        )
    async with cluster.runtime(agents, works=True, **options) as runtime:
        yield runtime
