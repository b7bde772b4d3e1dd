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
    """Exclude existing objects from garbage collection for the duration of the block.

    These objects are permanent. Each full collection used to block all runs and readers for about 30 milliseconds.
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
"""Python equivalents of the `rxloop worker` options."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Shared Postgres database with its event log and queue.

    Attributes:
        db: Database URL.
        session_db: Direct database URL, if `db` refers to a PgBouncer.
        tenant_limit: Maximum number of concurrent runs per owner, enforced by workers.
        version: Application version.
    """

    # URLs may contain passwords.
    db: str | None = field(repr=False)
    session_db: str | None = field(default=None, repr=False)
    tenant_limit: int | None = None
    version: str | None = None

    @asynccontextmanager
    async def runtime(self, agents: Mapping[str, Agent[Any, Any]], **options: Any) -> AsyncGenerator[Runtime]:
        """Create a runtime using this database. Its resources are closed on exit.

        Raises:
            ConfigurationError: The database is not Postgres.
            EventLogError: The database is unavailable.
        """
        if self.db is None or not is_postgres(self.db):
            given = "" if self.db is None else f", and {_without_secrets(self.db)!r} is none"
            raise ConfigurationError(
                f"a queue needs a Postgres that all processes reach{given}: --db postgresql://user@host/database, or "
                "RXLOOP_DB"
            )
        # Imported lazily because the extra is optional.
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
    """Return a URL's scheme or a file path, because other parts may contain passwords."""
    scheme, sign, _ = address.partition("://")
    if sign:
        return scheme + sign
    # Postgres also accepts `host=... password=...`, and the scheme is sometimes omitted.
    return "..." if "@" in address or "=" in address else address


@asynccontextmanager
async def runtime_of(
    reference: str, db: str | None, *, named: bool = False, cluster: Cluster | None = None
) -> AsyncGenerator[Runtime]:
    """Create the runtime for a `module:object` path and close its log on exit.

    Args:
        reference: Import path of agents or a runtime.
        db: Database for the runs of agents.
        named: True if `db` was passed explicitly, which is an error for a runtime.
        cluster: Database and queue for workers. None executes runs in this process.

    Raises:
        ConfigurationError: The object cannot be served.
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
    """Create a worker runtime for a `module:object` path and close its resources on exit.

    Args:
        reference: Import path of agents or a worker runtime.
        cluster: Database and queue.
        typed: Options passed on the command line, which are not allowed for a runtime.
        **options: Runtime options.

    Raises:
        ConfigurationError: The object cannot be used as a worker.
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
"""Health check paths, which are requested frequently."""
_USUAL = {*vars(logging.LogRecord("", 0, "", 0, "", (), None)), "message", "asctime", "taskName"}


@contextmanager
def writes_log(*, json: bool) -> Generator[None]:
    """Write log records to stderr, with level `info` for rxloop and `warning` for other loggers."""
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
    """JSON formatter with one object per line, including `extra` fields."""

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
    """Plain text formatter. Tracebacks are reduced to their last location."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        said = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            said += f": {failure(record.exc_info[1])}"
        mark = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        return f"{time.strftime('%H:%M:%S', time.localtime(record.created))} {mark}{to_one_line(said, _LONGEST)}"


def log_requests(app: ASGIApp) -> ASGIApp:
    """Log completed requests with their paths but without content."""

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
