"""What `rxloop serve` and `rxloop worker` share: the runtime of a module, and the log of the process."""

from __future__ import annotations

import gc
import logging
import sys
import time
from collections.abc import AsyncGenerator, Collection, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import orjson
from typing_extensions import override

from rxloop.agents.agent import Agent
from rxloop.cli.agent_loader import agents_of, load, made_of
from rxloop.cli.database import opened
from rxloop.cli.terminal import failure
from rxloop.errors import ConfigurationError
from rxloop.runtime.runtime import Runtime
from rxloop.storage.opening import is_postgres
from rxloop.support.text import to_one_line

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


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


requests = logging.getLogger("rxloop.requests")

_LONGEST = 2_000
_QUIET = ("/healthz", "/readyz")
"""What is asked every few seconds, by machines."""
_USUAL = {*vars(logging.LogRecord("", 0, "", 0, "", (), None)), "message", "asctime", "taskName"}


@contextmanager
def writes_log(*, json: bool) -> Generator[None]:
    """Write what is logged to stderr: rxloop from `info` on, everybody else's warnings."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if json else _Lines())
    root, ours = logging.getLogger(), logging.getLogger("rxloop")
    before = ours.level
    root.addHandler(handler)
    ours.setLevel(logging.INFO)
    try:
        yield
    finally:
        ours.setLevel(before)
        root.removeHandler(handler)


class _Json(logging.Formatter):
    """One object a line, with what was given as `extra`."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        found: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": to_one_line(record.getMessage(), _LONGEST),
            **{name: value for name, value in vars(record).items() if name not in _USUAL},
        }
        if record.exc_info and record.exc_info[1] is not None:
            found["error"] = to_one_line(failure(record.exc_info[1]), _LONGEST)
        return orjson.dumps(found, default=str).decode()


class _Lines(logging.Formatter):
    """A line for people; of a traceback the place where it happened."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        said = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            said += f": {failure(record.exc_info[1])}"
        mark = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        return f"{time.strftime('%H:%M:%S', time.localtime(record.created))} {mark}{to_one_line(said, _LONGEST)}"


def log_requests(app: ASGIApp) -> ASGIApp:
    """Log each request once it is answered: its path, and nothing of what is asked or answered."""

    async def logged(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _QUIET:
            await app(scope, receive, send)
            return
        begun, status = time.perf_counter(), 0

        async def sending(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await app(scope, receive, sending)
        finally:
            seconds = round(time.perf_counter() - begun, 3)
            data = {"method": scope["method"], "path": scope["path"], "status": status, "seconds": seconds}
            requests.info("%(method)s %(path)s %(status)d, %(seconds).3f s", data, extra=data)

    return logged
