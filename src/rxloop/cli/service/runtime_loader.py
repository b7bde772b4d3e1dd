"""The runtime that `rxloop serve` makes of the agents of a module."""

from __future__ import annotations

import gc
from collections.abc import AsyncGenerator, Collection, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from rxloop.agents.agent import Agent
from rxloop.cli.agent_loader import agents_of, load, made_of
from rxloop.cli.database import opened
from rxloop.errors import ConfigurationError
from rxloop.runtime.runtime import Runtime
from rxloop.storage.opening import is_postgres


@contextmanager
def spared_by_collector() -> Generator[None]:
    """Have the garbage collector pass over what is there, while the block lasts.

    It stays anyway, and each time that the collector went through all of it, all runs and readers stood still for some
    30 milliseconds.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


_SAID_BY = {
    "db": "Runtime(log=PostgresEventLog(...))",
    "session_db": "PostgresEventLog(session_dsn=...) and the address of PostgresQueue",
    "concurrency": "Runtime(concurrency=...)",
    "tenant_limit": "PostgresQueue(tenant_limit=...)",
    "program_version": "Runtime(version=...)",
    "adopt_every": "Runtime(adopt_every=...)",
    "grace": "Runtime(grace=...)",
}
"""Where the program says what an option of `rxloop worker` says."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """What several processes have in common: a Postgres database, with its log and its queue.

    Attributes:
        db: Its address.
        session_db: Its address past a PgBouncer, where `db` goes through one.
        tenant_limit: How many runs of one owner go on at once; workers look at it.
        version: That of the program.
    """

    # They may have a password in them.
    db: str | None = field(repr=False)
    session_db: str | None = field(default=None, repr=False)
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
            given = "" if self.db is None else f", and {_without_secrets(self.db)!r} is none"
            raise ConfigurationError(
                f"a queue needs a Postgres that all processes reach{given}: --db postgresql://user@host/database, or "
                "RXLOOP_DB"
            )
        # Imported here: the extra may be missing.
        from rxloop.runtime.postgres_queue import PostgresQueue
        from rxloop.storage.postgres_log import PostgresEventLog

        log = PostgresEventLog(self.db, session_dsn=self.session_db)
        queue = PostgresQueue(self.session_db or self.db, tenant_limit=self.tenant_limit)
        try:
            await log.list_runs(limit=1)
            yield Runtime(agents, log=log, queue=queue, version=self.version, **options)
        finally:
            await queue.aclose()
            await log.aclose()


def _without_secrets(address: str) -> str:
    """What may be shown of an address: its scheme, or the words of a file; there may be a password in all else."""
    scheme, sign, _ = address.partition("://")
    if sign:
        return scheme + sign
    # Postgres also knows `host=... password=...`, and some write `user:password@host/database`.
    return "..." if "@" in address or "=" in address else address


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
async def worker_of(
    reference: str, cluster: Cluster, typed: Collection[str], **options: Any
) -> AsyncGenerator[Runtime]:
    """Make a runtime that works, of what `module:object` names; what is opened for it is closed.

    Args:
        reference: Names agents, or a runtime that works.
        cluster: Where it works.
        typed: The options of the command that somebody has given: a runtime has all of them already.
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
        if said := [name for name in _SAID_BY if name in typed]:
            raise ConfigurationError(
                f"--{said[0].replace('_', '-')} does not go with {reference!r}, which is a Runtime: say it there, as "
                f"{_SAID_BY[said[0]]}"
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
